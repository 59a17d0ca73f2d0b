"""The table [mix] of a recipe: how many proxies, of what kind, and within which bounds. Loads no Prefect."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from flows.experiments.studies import Value, named_in_errors, read_config, split_settings
from flows.recipe.load import as_setting, load_recipe, locate_recipe
from flows.recipe.schema import Recipe
from model.config import EXPERT
from model.errors import RecipeError
from tasks.common.config import StrictConfig

DATA = ("sources", "sample", "clean", "dedup", "decontaminate", "vocab")

LEAST_PROXIES, LEAST_KEPT_BACK, LEAST_SPARE = 6, 3, 2
"""Proxies in all, those that judge the fit, and those that the fit has beyond its unknowns, one for each source."""

MOST_PROXIES = 2048

HINT = """which says how many proxies are trained, and in [mix.settings] how small they are; without it each would be a\
 whole training. Add one (docs/studies.md), e.g.:

[mix]
proxies = 32

[mix.settings]
"train.model.width" = 128
"chunk.budget_tokens" = 2_000_000
"""


class MixConfig(StrictConfig):
    """How many proxies, of what kind, and within which bounds."""

    proxies: int = Field(default=32, ge=LEAST_PROXIES, le=MOST_PROXIES)
    """Small trainings, each on its own mixture; the first on the recipe's."""
    seeds: Annotated[int, EXPERT] = Field(default=3, ge=2, le=100)
    """Trainings on the recipe's own mixture, under consecutive `train.seed`: what a seed alone changes."""
    kept_back: Annotated[float, EXPERT] = Field(default=0.25, gt=0, lt=1)
    """Share of the proxies that are kept out of the fit to judge it."""
    floor: Annotated[float, EXPERT] = Field(default=0.005, ge=0, lt=1)
    """Least share of a source: a large model may need text that proxies can do without."""
    seed: Annotated[int, EXPERT] = Field(default=1, ge=0, lt=2**63)
    """Seed of the mixtures."""
    metric: Annotated[str, EXPERT] = "bits_per_byte"
    """Metric of SCORES on each source's held-out text whose mean is minimised."""
    settings: dict[str, Value] = Field(default_factory=dict)
    """Settings of proxies that differ from the recipe. Of the data stages only `chunk` may differ: the vocabulary must
    be the recipe's, since weights do not transfer to another."""

    @field_validator("settings")
    @classmethod
    def _refuse_other_data(cls, settings: dict[str, Value]) -> dict[str, Value]:
        for key in settings:
            if key.partition(".")[0] in DATA or key in ("seed", "budget_tokens", "chunk.weights"):
                instead = "chunk.budget_tokens" if key == "budget_tokens" else "keys of train, chunk or evaluate"
                raise ValueError(f"{key} would give proxies other text than the recipe's; set {instead} instead")
        return settings

    @property
    def fitted(self) -> int:
        """Number of proxies that the fit is made from."""
        return self._fitted_of(self.proxies)

    def check_enough(self, sources: int) -> None:
        """Raise RecipeError where the fit would have too few proxies for a recipe of so many sources."""
        if sources < 2:
            raise RecipeError("mix: the recipe has one source, and a mixture needs two or more")
        if self.fitted < sources + LEAST_SPARE:
            more = range(self.proxies, MOST_PROXIES + 1)
            fitting = (one for one in more if self._fitted_of(one) >= sources + LEAST_SPARE)
            enough = next(fitting, None)
            hint = (
                f"Train {enough} or more (mix.proxies)"
                if enough is not None
                else f"Not even {MOST_PROXIES} are enough: keep fewer back (mix.kept_back)"
            )
            raise RecipeError(
                f"mix: {self.proxies} proxies, of which {self.proxies - self.fitted} judge the fit, leave {self.fitted}"
                f" for {sources} unknowns, too few to tell a source's effect from chance. {hint}"
            )

    def _fitted_of(self, proxies: int) -> int:
        return proxies - max(LEAST_KEPT_BACK, round(self.kept_back * proxies))


def read_mix(path: Path, proxies: int | None, settings: Sequence[str] = ()) -> MixConfig:
    """Return the table [mix] of a recipe, with `settings`; RecipeError where there is none, or an invalid one."""
    return read_config(MixConfig, path, "mix", HINT, settings, proxies=proxies)


def read_mixture(
    recipe: str, root: Path, proxies: int | None, settings: Sequence[str]
) -> tuple[MixConfig, Recipe, Path, tuple[str, ...]]:
    """Return the table [mix] of a recipe, the recipe, its file, and the settings of all runs.

    Raises RecipeError where proxies would be too few, or no recipe.
    """
    path = locate_recipe(recipe, root)
    of_mix, others = split_settings(settings, "mix")
    config, base = read_mix(path, proxies, of_mix), load_recipe(path, root, others)
    config.check_enough(len(base.sample.sources))
    of_proxy = [as_setting(key, value) for key, value in config.settings.items()]
    with named_in_errors(f"{path}, [mix.settings]", path, of_proxy):
        load_recipe(path, root, [*others, *of_proxy])
    return config, base, path, tuple(others)
