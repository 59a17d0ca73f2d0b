"""A ladder of sizes: a TOML file, by path or by the name under which it ships.

seeds = 2                        # runs of each size; `--seeds` overrules
tokens_per_parameter = 20        # what each model reads; or `tokens`, the same for all

[base]                           # settings of all runs
"train.model.mup_base_width" = 64

[[sizes]]                        # four or more; the largest is held back
width = 64
layers = 2
heads = 4
"""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from flows.trial_runs import as_setting
from flows.wrong_keys import wrong_values
from model.errors import RecipeError
from tasks.config import StrictConfig

LADDERS = Path(__file__).parent.parent / "ladders"
Setting = bool | int | float | str | list[Any]


class Size(StrictConfig):
    """A network of the ladder; all else is the recipe's."""

    width: int = Field(ge=8, le=2**16)
    layers: int = Field(ge=1, le=512)
    heads: int = Field(ge=1, le=512)

    @property
    def name(self) -> str:
        """As runs and tables call it."""
        return f"{self.layers} layers of {self.width}"

    @property
    def settings(self) -> dict[str, Setting]:
        """What it sets in a recipe."""
        return {f"train.model.{key}": value for key, value in self.model_dump().items()}


class LadderConfig(StrictConfig):
    """The contents of the file."""

    seeds: int = Field(default=2, ge=1, le=100)
    """Runs of each size, under seeds that follow each other."""
    tokens_per_parameter: float = Field(default=20.0, gt=0, le=10_000)
    """Tokens that a model reads for each of its weights in blocks (Hoffmann et al. 2022: 20)."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens that every model reads, in place of so many for each weight. The law is then of size alone (Kaplan et al.
    2020, section 3.2), and its E is the loss that so much text leaves however large the network."""
    measure: str = "bits per byte"
    """What the law is of: a figure of held-out text as the ablation's table names it, or `training loss`."""
    base: dict[str, Setting] = Field(default_factory=dict)
    """Settings that overrule the recipe's in every run."""
    sizes: tuple[Size, ...] = Field(min_length=4)
    """The networks, four or more: the one with the most weights is held back, and the law is fitted to the others."""

    @model_validator(mode="after")
    def _enough_to_fit(self) -> "LadderConfig":
        if len({size.name for size in self.sizes}) < len(self.sizes):
            raise ValueError("two sizes are the same")
        if (len(self.sizes) - 1) * self.seeds < 4:
            each = f"{self.seeds} {'seed' if self.seeds == 1 else 'seeds'}"
            raise ValueError(
                f"{len(self.sizes)} sizes of {each}, the largest held back, leave {(len(self.sizes) - 1) * self.seeds}"
                f" runs to fit, too few to tell three unknowns and their scatter; take two seeds, or more sizes"
            )
        return self

    def tokens_of(self, parameters: int) -> int:
        """What a model with so many weights in blocks reads."""
        return self.tokens or round(self.tokens_per_parameter * parameters)

    def run_settings(self, size: Size, tokens: int, most_tokens: int, seed: int) -> list[str]:
        """What a run sets, as `--set` takes it; all keep the text that the one of `most_tokens` reads."""
        budgets = {"budget_tokens": most_tokens, "chunk.budget_tokens": tokens}
        values = {**self.base, **size.settings, **budgets, "train.seed": seed}
        return [as_setting(key, value) for key, value in values.items()]


def ladder_file(name: str) -> Path:
    """The file of a path, or of a name under which one ships; RecipeError names those that do."""
    for candidate in (Path(name), LADDERS / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    shipped = ", ".join(sorted(path.stem for path in LADDERS.glob("*.toml")))
    raise RecipeError(f"ladder `{name}`: there is no such file, and of those that ship none has this name ({shipped})")


def read_ladder(path: Path, seeds: int | None) -> LadderConfig:
    """The ladder in a file; `seeds` overrule its own. RecipeError where it is none."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    try:
        return LadderConfig.model_validate({**values, **({} if seeds is None else {"seeds": seeds})})
    except ValidationError as error:
        raise RecipeError(wrong_values(error, path)) from error
