"""Benchmarks as a recipe names them: a task that ships, a file, and what is to differ.

    [[benchmarks]]
    task = "blimp"                           # flows/benchmarks/blimp.toml
    path = "{recipe}/blimp.jsonl.gz"

A task says where in a record the parts of an item stand, which decontaminate needs, and how the item is asked and
scored, which evaluate needs; so that another way of scoring never builds documents anew.
"""

import difflib
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.errors import RecipeError

TASKS = Path(__file__).parent / "benchmarks"
OF_FILES = ("path", "answers_path", "adapter")
"""Keys of a benchmark that decontaminate takes as they are; `fields` it takes beside those of the task."""


def shipped_tasks() -> list[str]:
    """Names of the tasks that ship, sorted."""
    return sorted(path.stem for path in TASKS.glob("*.toml"))


def place_benchmarks(values: dict[str, Any], origin: str) -> None:
    """Take the recipe's `benchmarks` out of `values` and give each to decontaminate and evaluate.

    Raises RecipeError for a task that does not ship, and for a benchmark without a name.
    """
    asked = values.pop("benchmarks", [])
    if not isinstance(asked, list) or not all(isinstance(entry, dict) for entry in asked):
        raise RecipeError(f"{origin}: write each benchmark as a table [[benchmarks]] with `task` and `path`")
    if not asked:
        return
    decontaminate, evaluate = dict(values.get("decontaminate", {})), dict(values.get("evaluate", {}))
    files, scoring = list(decontaminate.get("benchmarks", [])), dict(evaluate.get("benchmarks", {}))
    for entry in asked:
        task = _task(entry, origin)
        name = entry.get("name", entry.get("task"))
        if name is None:
            raise RecipeError(f"{origin}: a benchmark has neither `task` nor `name`; say which of the two it is")
        file = {key: entry[key] for key in OF_FILES if key in entry}
        fields = {**task.get("fields", {}), **entry.get("fields", {})}
        files.append({"name": name, **file, **({"fields": fields} if fields else {})})
        given = {key: entry[key] for key in entry if key not in (*OF_FILES, "task", "name", "fields")}
        scoring[name] = {**task.get("scoring", {}), **scoring.get(name, {}), **given}
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


@functools.cache
def read_task(name: str) -> dict[str, Any]:
    """`fields` and `scoring` of a task that ships."""
    return tomllib.loads((TASKS / f"{name}.toml").read_text(encoding="utf-8"))
