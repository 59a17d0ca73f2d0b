"""`weights_from` of a recipe: shares of the sources that `bessemer mix` found, instead of weights by hand.

The settings of a recipe's network, whole: those of its preset, and of the model that training goes on from.

Benchmarks as a recipe names them: a task that ships, a file, and what is to differ.

    [[benchmarks]]
    task = "blimp"                           # flows/shipped/benchmarks/blimp.toml
    path = "{recipe}/blimp.jsonl.gz"

A task says where in a record the parts of an item stand, which decontaminate needs, and how the item is asked and
scored, which evaluate needs; so that another way of scoring never builds documents anew.
"""

import difflib
import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.checksummed_json import given_text
from model.config.presets import KEY, expanded, overruled
from model.errors import InputError, RecipeError

EDITED = "Run `bessemer mix` again, or take the key `digest` out of a file that you changed yourself."


def apply_mixture_weights(sources: list[Any], file: Any, folder: Path, origin: str) -> list[Any]:
    """The recipe's sources with the weights that a file gives them; as they are where `file` is None.

    A relative path is the recipe's folder's. Raises RecipeError where a source has a weight by hand too or is not in
    the file, InputError where the file is none of `bessemer mix`, IntegrityError where it is damaged.
    """
    if file is None:
        return sources
    path = folder / str(file)
    try:
        weights = json.loads(given_text(path, EDITED))["weights"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{origin}: weights_from = {str(file)!r} names {path}, which is no file of weights"
            f" ({type(error).__name__}). `bessemer mix RECIPE` writes one: mixtures/NAME/weights.json"
        ) from error
    named = [source for source in sources if isinstance(source, dict)]
    by_hand = [source.get("name") for source in named if "weight" in source]
    if by_hand:
        raise RecipeError(
            f"{origin}: source `{by_hand[0]}` has a weight, and weights_from gives it another; leave one of them out"
        )
    names = [source.get("name") for source in named]
    if set(names) != set(weights):
        raise RecipeError(
            f"{origin}: weights_from was found for the sources {', '.join(sorted(weights))}, and the recipe has"
            f" {', '.join(sorted(map(str, names)))}; shares hold for the very sources that they were found for"
        )
    return [{**source, "weight": weights[source["name"]]} if isinstance(source, dict) else source for source in sources]


def resolve_model_config(train: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """`train.model` with the settings of its preset and, for what is left out, of `train.base_model`.

    Raises RecipeError for an unknown preset; `origin` names the recipe. A base that cannot be read is told where it is
    needed.
    """
    model = expanded(dict(train.get("model", {})), f"{origin}: train.model")
    base = train.get("base_model")
    if not isinstance(base, str | Path):
        return model
    from tasks.train.base_model import settings_of_base

    of_base = settings_of_base(Path(base))
    if model.get("architecture", of_base.get("architecture")) != of_base.get("architecture"):
        return model
    return {**of_base, **model}


def preset_warnings(train: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence without a stop where `train.model` has settings beside its preset that are not that network's."""
    model = train.get("model", {})
    found = overruled(model)
    if not found:
        return ()
    told = ", ".join(f"{key} {asked} instead of {published}" for key, (asked, published) in found.items())
    keys = " and ".join(found) if len(found) < 3 else "these keys"
    return (
        f"the network is no {model[KEY]}, but one with {told}: what stands beside a preset overrules it. Leave {keys}"
        f" out of train.model for the published network",
    )


TASKS = Path(__file__).parents[1] / "shipped" / "benchmarks"

OF_FILES = ("path", "answers_path", "adapter")
"""Keys of a benchmark that decontaminate takes as they are; `fields` it takes beside those of the task."""


def shipped_tasks() -> list[str]:
    """Names of the tasks that ship, sorted."""
    return sorted(path.stem for path in TASKS.glob("*.toml"))


def split_benchmarks(values: dict[str, Any], origin: str) -> None:
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
