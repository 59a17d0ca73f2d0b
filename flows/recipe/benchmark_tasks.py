"""Write each benchmark of a recipe into the settings of decontaminate and evaluate.

It is a task that ships, a file, and what differs:

    [[benchmarks]]
    task = "blimp"                           # flows/shipped/benchmarks/blimp.toml
    path = "{recipe}/blimp.jsonl.gz"

Its task says where the parts of an item are in a record, which decontaminate needs, and how the item is prompted and
scored, which evaluate needs; each stage gets its own part, so that another way of scoring rebuilds no documents.
"""

import difflib
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.recipe.checks import table_at
from model.errors import RecipeError

TASKS = Path(__file__).parents[1] / "shipped" / "benchmarks"

FILE_KEYS = ("path", "answers_path", "adapter")
"""Keys of a benchmark that decontaminate takes unchanged; `fields` it merges with those of the task."""


def split_benchmarks(values: dict[str, Any], origin: str) -> None:
    """Take `benchmarks` out of `values` and write each into the tables of decontaminate and evaluate.

    Raises RecipeError for a task that does not ship, and for a benchmark without a name.
    """
    benchmarks = values.pop("benchmarks", [])
    if not isinstance(benchmarks, list) or not all(isinstance(entry, dict) for entry in benchmarks):
        raise RecipeError(f"{origin}: write each benchmark as a table [[benchmarks]] with `task` and `path`")
    if not benchmarks:
        return
    decontaminate, evaluate = dict(values.get("decontaminate", {})), dict(values.get("evaluate", {}))
    files, scoring = decontaminate.get("benchmarks", []), evaluate.get("benchmarks", {})
    if not isinstance(files, list):
        raise RecipeError(
            f"{origin}: decontaminate.benchmarks is {files!r}, and must be a list; write"
            f" `[[decontaminate.benchmarks]]` for each of its tables"
        )
    files, scoring = [*files], {**table_at(scoring, "evaluate.benchmarks", origin)}
    for entry in benchmarks:
        task = _task(entry, origin)
        name = entry.get("name", entry.get("task"))
        if name is None:
            raise RecipeError(f"{origin}: a benchmark has neither `task` nor `name`; say which of the two it is")
        file = {key: entry[key] for key in FILE_KEYS if key in entry}
        own = table_at(entry.get("fields", {}), f"benchmarks: fields of `{name}`", origin)
        scored = table_at(scoring.get(str(name), {}), f"evaluate.benchmarks.{name}", origin)
        fields = {**task.get("fields", {}), **own}
        files.append({"name": name, **file, **({"fields": fields} if fields else {})})
        given = {key: entry[key] for key in entry if key not in (*FILE_KEYS, "task", "name", "fields")}
        scoring[str(name)] = {**task.get("scoring", {}), **scored, **given}
    values["decontaminate"] = {**decontaminate, "benchmarks": files}
    values["evaluate"] = {**evaluate, "benchmarks": scoring}


def _task(entry: Mapping[str, Any], origin: str) -> dict[str, Any]:
    name = entry.get("task")
    if name is None:
        return {}
    if name not in shipped_tasks():
        close = difflib.get_close_matches(str(name), shipped_tasks(), n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        raise RecipeError(
            f"{origin}: no task `{name}` ships (those that do: {', '.join(shipped_tasks())}).{hint} For a benchmark of"
            f" your own leave `task` out, and say in `fields` and `form` how it is read and scored."
        )
    return read_task(str(name))


def shipped_tasks() -> list[str]:
    """Return the names of the tasks that ship, sorted."""
    return sorted(path.stem for path in TASKS.glob("*.toml"))


@functools.cache
def read_task(name: str) -> dict[str, Any]:
    """Return `fields` and `scoring` of a task that ships."""
    return tomllib.loads((TASKS / f"{name}.toml").read_text(encoding="utf-8"))
