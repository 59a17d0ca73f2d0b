"""How mixing weights are found: the recipe's table `[mix]`, of which every key has a default.

[mix]
proxies = 32

[mix.settings]                  # what makes a proxy of the recipe: a small network, few tokens
"train.model.width" = 128
"chunk.budget_tokens" = 2_000_000
"""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from flows.wrong_keys import wrong_values
from model.errors import RecipeError
from tasks.config import StrictConfig

TABLE = "mix"
EXAMPLE = """[mix]
proxies = 32

[mix.settings]
"train.model.width" = 128
"chunk.budget_tokens" = 2_000_000
"""
DATA = ("sources", "sample", "clean", "dedup", "decontaminate", "vocab")


class MixConfig(StrictConfig):
    """How many proxies, of what kind, and within which bounds."""

    proxies: int = Field(default=32, ge=4, le=2048)
    """Small trainings, each on a mixture of its own; the first on the recipe's."""
    kept_back: float = Field(default=0.25, gt=0, lt=1)
    """Share of the proxies on which the fit is judged and not made."""
    floor: float = Field(default=0.005, ge=0, lt=1)
    """Least share of a source: what proxies can do without, a large model may not."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Decides the mixtures."""
    metric: str = "bits_per_byte"
    """Figure of SCORES on each source's held-out text whose mean is minimised."""
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What proxies have otherwise than the recipe. Of the data only what `chunk` does may differ: the vocabulary must
    be the recipe's, since weights do not carry over to another."""

    @field_validator("settings")
    @classmethod
    def _the_data_stay(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key in settings:
            if key.partition(".")[0] in DATA or key in ("seed", "budget_tokens", "chunk.weights"):
                told = "chunk.budget_tokens" if key == "budget_tokens" else "keys of train, chunk or evaluate"
                raise ValueError(f"{key} would give proxies other text than the recipe's; set {told} instead")
        return settings

    @property
    def fitted(self) -> int:
        """Proxies on which the fit is made."""
        return self.proxies - max(2, round(self.kept_back * self.proxies))


def read_mix(path: Path, proxies: int | None) -> MixConfig:
    """The table of a recipe; RecipeError where there is none, or a wrong one."""
    table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE)
    if table is None:
        raise RecipeError(
            f"{path}: no table [{TABLE}], which says how many proxies are trained, and in [{TABLE}.settings] how small"
            f" they are; without it each would be a whole training. Add one (docs/search.md), e.g.:\n\n{EXAMPLE}"
        )
    if not isinstance(table, dict):
        raise RecipeError(f"{path}: {TABLE} is {table!r}, and a table of settings belongs there")
    try:
        return MixConfig.model_validate({**table, **({} if proxies is None else {"proxies": proxies})})
    except ValidationError as error:
        raise RecipeError(wrong_values(error, path, TABLE)) from error
