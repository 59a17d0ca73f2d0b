"""What a recipe may say about cleaning: which preset for which source, limits, and what becomes of emoji."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.clean.presets import EDITS, LIMITS
from tasks.config import RUNTIME, StrictConfig

PresetName = Literal["gopher", "c4", "code", "minimal"]


class CleanConfig(StrictConfig):
    """Presets, limits and switches of the chain."""

    preset: PresetName = "gopher"
    """Edits and rules for documents that are not code: `gopher`, `c4`, `minimal` (repair only) or `code`."""

    presets: dict[str, PresetName] = Field(default_factory=dict)
    """Source name -> preset, for sources that need another one; documents of the format code take `code` by default."""

    limits: dict[str, float] = Field(default_factory=dict)
    """Rule name -> limit in the rule's own unit, instead of the limit of its paper."""

    add: tuple[str, ...] = ()
    """Rules used besides those of the preset, such as `c4_curly_bracket`."""

    without: tuple[str, ...] = ()
    """Edits and rules of the preset that are left out."""

    emoji: Literal["keep", "name", "drop"] = "name"
    """What becomes of emoji and emoticons: kept, replaced by their name in the document's language, or removed."""

    wipe_out_limit: float = Field(default=0.9, gt=0, le=1)
    """Largest share of a source's documents that may be dropped (0 to 1)."""

    wipe_out_overrides: dict[str, float] = Field(default_factory=dict)
    """Source name -> its own wipe-out limit (0 to 1)."""

    workers: Annotated[int, RUNTIME] = Field(default=1, ge=1, le=1024)
    """Processes that clean parts side by side."""

    @model_validator(mode="after")
    def _names_exist(self) -> "CleanConfig":
        for name in (*self.limits, *self.add):
            if name not in LIMITS:
                raise ValueError(f"there is no rule `{name}`; rules are {', '.join(sorted(LIMITS))}")
        for name in self.without:
            if name not in LIMITS and name not in EDITS:
                raise ValueError(f"there is no edit or rule `{name}`; they are {', '.join(sorted({*LIMITS, *EDITS}))}")
        return self

    def preset_of(self, source: str, kind: str) -> PresetName:
        """The preset for a document of `source` whose format is `kind` (text, markdown, html, code)."""
        return self.presets.get(source) or ("code" if kind == "code" else self.preset)
