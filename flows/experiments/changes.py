"""The changes of an ablation: a TOML file, given by path or by the name of a shipped one. Loads no Prefect.

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

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from flows.experiments.ablation_report import BASE, ONLY_SECOND
from flows.experiments.studies import SHIPPED, Setting, Variant, named_in_errors, read_config, study_name
from flows.recipe.load import as_setting, load_recipe, locate_recipe, shipped_file
from flows.recipe.schema import Recipe
from tasks.common.config import StrictConfig
from tasks.common.confinement import allow

FOLDER = "ablations"

ABLATIONS = SHIPPED / FOLDER


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
        values = {**self.base, **self.changes.get(change, {}), **dict.fromkeys(self.vary, seed)}
        return [as_setting(key, value) for key, value in values.items()]

    def settings_of_second(self, change: str, seed: int, tokens: int) -> list[str]:
        """Return the settings of the second run of a change, where the first run of the base reads `tokens`."""
        assert self.then is not None, "only with a second run"
        values = {"chunk.budget_tokens": max(1, round(self.then.tokens_share * tokens)), **self.then.settings}
        return [*self.settings(change, seed), *(as_setting(key, value) for key, value in values.items())]

    def describe_second_run(self) -> str:
        """Return how models are measured in a second run; empty without one."""
        if self.then is None:
            return ""
        sets = ", ".join(f"{key} {value}" for key, value in self.then.settings.items())
        return (
            f" Each model continued in a second run, alike for all, on {self.then.tokens_share:.0%} as many tokens"
            f" ({sets}), which was measured. {ONLY_SECOND} is the second run from new weights; speed is of first runs."
        )

    @property
    def names(self) -> list[str]:
        """The base and all changes, in order, and last the second run alone, where there are second runs."""
        return [BASE, *self.changes, *([ONLY_SECOND] if self.then is not None else [])]


@dataclass(frozen=True)
class Ablation:
    """What an ablation runs, and the folder of its report."""

    config: AblationConfig
    folder: Path
    variants: dict[tuple[str, int], Variant]


def read_ablation(
    recipe: str, changes: str, root: Path, seeds: int | None, limit: float, settings: tuple[str, ...]
) -> Ablation:
    """Return the ablation of a recipe by a file of changes; RecipeError where a change does not fit the recipe."""
    home = root.resolve()
    path, file = locate_recipe(recipe, home), shipped_file(changes, ABLATIONS, "changes")
    config = read_config(AblationConfig, file, seeds=seeds)
    folder = home / FOLDER / study_name(path.stem, file.stem)
    return Ablation(config, folder, variants_of(config, path, home, settings, limit, str(file)))


def variants_of(
    config: AblationConfig, path: Path, root: Path, settings: tuple[str, ...], limit: float, file: str = "changes"
) -> dict[tuple[str, int], Variant]:
    """Return the variant of each (change, seed); raise RecipeError for an invalid one, which names its `file`."""
    base = load_recipe(path, root, settings, limit)
    found: dict[tuple[str, int], Variant] = {}

    def load(change: str, seed: int, sets: list[str], suffix: str) -> Recipe:
        table = "[base]" if change == BASE else f"[changes.{change}]"
        with named_in_errors(f"{file}, {table}{' with [then.settings]' if suffix else ''}", path, sets):
            recipe = load_recipe(path, root, [*settings, *sets], limit)
        return recipe.model_copy(update={"name": f"{recipe.name}, {change}, seed {seed}{suffix}"[:80]})

    for seed in range(base.seed, base.seed + config.seeds):
        first = load(BASE, seed, config.settings(BASE, seed), "")
        for change in config.names:
            if config.then is None:
                found[change, seed] = Variant(load(change, seed, config.settings(change, seed), ""))
                continue
            sets = config.settings_of_second(change, seed, first.chunk.budget_tokens)
            second = load(change, seed, sets, ", second run")
            if change == ONLY_SECOND:
                found[change, seed] = Variant(second)
                continue

            def second_recipe(model: Path, change: str = change, seed: int = seed, sets: list[str] = sets) -> Recipe:
                allow(model)
                return load(change, seed, [*sets, as_setting("train.base_model", str(model))], ", second run")

            found[change, seed] = Variant(load(change, seed, config.settings(change, seed), ""), second_recipe)
    return found
