"""What all studies share: files of settings, a folder with the report, and the name that both have.

A study is many runs of one recipe. Its runs have ids of their own (`trials.run_variants`, `trial_log`), so that a study
that is called again continues; its folder has the report as `table.json`, `table.md` and `page.html`.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from pydantic import ValidationError

from flows.recipe.checks import table_at
from flows.recipe.errors import format_config_errors
from flows.recipe.load import apply_setting, read_toml
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

log = logging.getLogger(__name__)


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
