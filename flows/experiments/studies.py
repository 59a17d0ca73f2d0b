"""What all studies share: files of settings, a folder with the report, and the name that both have.

A study is many runs of one recipe. Its runs have ids of their own (`trials.run_variants`, `trial_log`), so that a study
that is called again continues; its folder has the report as `table.json`, `table.md` and `page.html`.

Neither this module nor those that read a study's files load Prefect, so that a command checks them before its server
starts.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, TypeVar

from pydantic import ValidationError

from flows.metrics.heldout import HeldOut
from flows.recipe.checks import table_at
from flows.recipe.errors import format_config_errors
from flows.recipe.load import apply_setting, read_toml
from flows.recipe.schema import Recipe
from flows.reports.document import Document
from model.checksummed_json import write_sealed
from model.errors import RecipeError
from model.files import write_atomically
from tasks.common.config import StrictConfig

TABLE, MARKDOWN, PAGE = "table.json", "table.md", "page.html"

SHIPPED = Path(__file__).parents[1] / "shipped"

Value = bool | int | float | str

Setting = Value | list[object]
"""A value of a recipe."""

Config = TypeVar("Config", bound=StrictConfig)

LOSS, SPEED = "training loss", "tokens a second"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """What is run for one (change, seed)."""

    recipe: Recipe
    second_recipe: Callable[[Path], Recipe] | None = None
    """Returns the recipe of the second run, which is measured instead, from the folder of the first one's model."""


@dataclass
class RunResult:
    """The metrics of one run. Of `values`, those in `higher` are better the higher they are."""

    values: dict[str, float] = field(default_factory=dict)
    higher: set[str] = field(default_factory=set)
    items: dict[str, dict[str, float]] = field(default_factory=dict)
    """Benchmark (as `values` names it) -> item -> its primary score."""
    built: tuple[str, ...] = ()
    run_id: str = ""
    cause: str = ""
    """Why there are no metrics."""
    heldout: HeldOut = field(default_factory=HeldOut)
    of_heldout: dict[str, str] = field(default_factory=dict)
    """Held-out metric, as `values` names it -> its metric of SCORES."""
    of_tokens: dict[str, str] = field(default_factory=dict)
    """Metric that can only be compared for the same tokens -> the identity of the rows, or the content of the
    vocabulary."""

    def followed_by(self, second: "RunResult") -> "RunResult":
        """Return the second run's metrics with this run's speed, since second runs are alike."""
        speed = {SPEED: self.values[SPEED]} if SPEED in self.values else {}
        built = tuple(dict.fromkeys([*self.built, *second.built]))
        return replace(second, values=second.values | speed, built=built)


@contextmanager
def named_in_errors(place: str, recipe: Path, settings: Sequence[str]) -> Iterator[None]:
    """Name `place`, where a study has its `settings`, in errors of a `recipe` that they are applied to.

    The recipe alone is valid, and nobody wrote these settings as `--set`.
    """
    try:
        yield
    except RecipeError as error:
        said = str(error).removeprefix(f"{recipe}:").strip()
        for setting in settings:
            said = said.replace(f"--set {setting}", setting)
        raise RecipeError(f"{place}: {said}") from error


def study_name(*parts: str) -> str:
    """Return the name of a study's folder, which begins with a letter or a digit."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).lstrip(".-") or "study"


def split_settings(settings: Sequence[str], table: str) -> tuple[list[str], list[str]]:
    """Return the settings `KEY=VALUE` of a table of the recipe that no run depends on, and the others."""
    of_table = [setting for setting in settings if setting.strip().startswith(f"{table}.")]
    return of_table, [setting for setting in settings if setting not in of_table]


def read_config(
    kind: type[Config],
    path: Path,
    table: str = "",
    hint: str = "",
    settings: Sequence[str] = (),
    **given: int | None,
) -> Config:
    """Return the settings in a file, or in its `table`; `settings` and those `given` that are not None override them.

    Raises RecipeError, with the `hint`, where there is no such table, and where settings are wrong.
    """
    try:
        _, whole = read_toml(path)
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: there is no such file") from error
    values = whole.get(table) if table else whole
    if values is None:
        raise RecipeError(f"{path}: no table [{table}], {hint}")
    values = table_at(values, table, str(path))
    for setting in settings:
        apply_setting(whole, setting)
    overrides = {key: value for key, value in given.items() if value is not None}
    try:
        return kind.model_validate({**values, **overrides})
    except ValidationError as error:
        raise RecipeError(format_config_errors(error, path, *([table] if table else []))) from error


class ReportFiles(TypedDict):
    """The files of a study's report."""

    table: str
    markdown: str
    page: str


def write_report(found: Mapping[str, object], document: Document, folder: Path) -> ReportFiles:
    """Write the report of the runs so far, and return the paths. A page that cannot be drawn is logged."""
    write_sealed(folder / TABLE, found)
    write_atomically(folder / MARKDOWN, document.markdown().encode())
    try:
        document.write_page(folder / PAGE)
    except Exception:
        log.exception("the page of %s could not be drawn", folder)
    return {"table": str(folder / TABLE), "markdown": str(folder / MARKDOWN), "page": str(folder / PAGE)}
