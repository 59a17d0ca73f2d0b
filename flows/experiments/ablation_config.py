"""The configuration of an ablation: a list of changes in a TOML file, by path or by the name of a shipped one.

seeds = 3                        # runs of each change; `--seeds` overrides it

[base]                           # settings of all runs, the base too
"chunk.budget_tokens" = "2M"

[changes.embedding-norm]      # a name, and what differs from the base
"train.model.embedding_norm" = true

[then]                           # for changes whose metrics cannot be compared: a second run for each model,
tokens_share = 0.25              # which continues from it, reads this share of the tokens, and is what is measured

[then.settings]                  # alike in all second runs; overrides the change
"chunk.denoising" = "prefix_lm"
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from flows.experiments.trials import as_setting
from flows.recipe.errors import format_config_errors
from model.errors import RecipeError
from tasks.common.config import StrictConfig

ABLATIONS = Path(__file__).parents[1] / "shipped" / "ablations"

BASE = "base"

ONLY_SECOND = "second-run-alone"
"""Name of the second run from new weights, which shows what all first runs are worth."""

Setting = bool | int | float | str | list[Any]


class SecondRun(StrictConfig):
    """A run that continues from the model of each first run and is alike for all: objectives with targets of their own
    can be compared when all models finally train on one (Lester et al. 2021, section 2.2)."""

    tokens_share: float = Field(default=0.25, gt=0, le=1)
    """Its tokens, as a share of the first run's in the base."""
    settings: dict[str, Setting] = Field(min_length=1)
    """Settings of the second run, which override the change's: at least those of the changes that it must not have."""


class AblationConfig(StrictConfig):
    """The contents of the file."""

    seeds: int = Field(default=3, ge=1, le=100)
    """Runs of each change, under consecutive seeds. One seed gives differences without an interval."""
    vary: tuple[str, ...] = Field(default=("train.seed",), min_length=1)
    """Keys that the seeds are written to. `train.seed` decides initial weights and dropout, and leaves all data
    unchanged; `seed`, from which every stage derives its own, also samples and orders documents anew, so that intervals
    are wider and hold for other data too."""
    base: dict[str, Setting] = Field(default_factory=dict)
    """Settings that override the recipe's in every run."""
    changes: dict[str, dict[str, Setting]] = Field(min_length=1)
    """Name -> settings that differ from the base."""
    then: SecondRun | None = None
    """A second run after each, which is measured instead; the table then has a row of the second run alone."""

    @field_validator("changes")
    @classmethod
    def _check_changes(cls, changes: dict[str, dict[str, Setting]]) -> dict[str, dict[str, Setting]]:
        if BASE in changes:
            raise ValueError(f"`{BASE}` is the name of what all are compared with; give the change another")
        if ONLY_SECOND in changes:
            raise ValueError(f"`{ONLY_SECOND}` is the name of the second run from new weights; give the change another")
        empty = [name for name, settings in changes.items() if not settings]
        if empty:
            raise ValueError(f"`{empty[0]}` names no setting, so that it changes nothing")
        return changes

    def settings(self, change: str, seed: int) -> list[str]:
        """Return the settings of a run, as `--set` takes them; `change` may be the base."""
        values = {**self.base, **self.changes.get(change, {})}
        values.update(dict.fromkeys(self.vary, seed))
        return [as_setting(key, value) for key, value in values.items()]

    def settings_of_second(self, change: str, seed: int, tokens: int) -> list[str]:
        """Return the settings of the second run of a change, where the first run of the base reads `tokens`."""
        assert self.then is not None, "only with a second run"
        values = {"chunk.budget_tokens": max(1, round(self.then.tokens_share * tokens)), **self.then.settings}
        return [*self.settings(change, seed), *(as_setting(key, value) for key, value in values.items())]

    @property
    def names(self) -> list[str]:
        """The base and all changes, in order, and last the second run alone, where there are second runs."""
        return [BASE, *self.changes, *([ONLY_SECOND] if self.then is not None else [])]


def changes_file(name: str) -> Path:
    """Return the file of a path or of the name of a shipped one; RecipeError where there is none."""
    for candidate in (Path(name), ABLATIONS / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    shipped = ", ".join(sorted(path.stem for path in ABLATIONS.glob("*.toml")))
    raise RecipeError(f"changes `{name}`: there is no such file, and no shipped one has this name ({shipped})")


def read_changes(path: Path, seeds: int | None) -> AblationConfig:
    """Return the changes in a file; `seeds` overrides its own. RecipeError where the file is invalid."""
    try:
        values: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    try:
        return AblationConfig.model_validate({**values, **({} if seeds is None else {"seeds": seeds})})
    except ValidationError as error:
        raise RecipeError(format_config_errors(error, path)) from error
