"""A root in which the first three stages of the small recipe exist, and what Prefect's forms submit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext


def build_until(last: str, recipe: Recipe, root: Path) -> dict[str, Artifact]:
    """Build the pipeline up to `last` and return the artifacts by stage."""
    context = RunContext(root, "run")
    return run_stages(recipe, lambda stage, *inputs: BUILDERS[stage](context, *inputs), last)


@pytest.fixture(scope="session")
def build() -> Callable[[str, Recipe, Path], dict[str, Artifact]]:
    """`build_until`, for tests that want other stages than the first three."""
    return build_until


@pytest.fixture(scope="session")
def three_stages_built(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three-stages")
    build_until("dedup", load_recipe(foundry / "foundry.toml", root), root)
    return root


@pytest.fixture
def root(three_stages_built: Path, tmp_path: Path) -> Path:
    """A root of one's own with sample, clean and dedup of the small recipe."""
    shutil.copytree(three_stages_built, tmp_path / "root")
    return tmp_path / "root"


ABSENT: Any = object()


def submitted_untouched(schema: dict[str, Any], given: dict[str, Any], ui: str) -> dict[str, Any]:
    """What the form of a deployment submits where nobody touched it, in the `classic` UI or in `V2`.

    `tests/flows/browser/test_untouched_forms.py` compares this with what real browsers submit.
    """

    def filled(field: dict[str, Any], value: Any) -> Any:
        if "$ref" in field:
            field = {**schema["definitions"][field["$ref"].rpartition("/")[2]], **field}
        value = field.get("default", ABSENT) if value is ABSENT else value
        if "anyOf" in field:
            # The first folds the second, and is shown until something is said within it.
            return ABSENT if value is ABSENT else filled(field["anyOf"][1], value)
        if field["type"] == "boolean" and ui == "classic":
            return False if value is ABSENT else value
        if field["type"] == "object" and "properties" not in field:
            return {"__prefect_kind": "json", **({} if value is ABSENT else {"value": json.dumps(value, indent=2)})}
        if field["type"] == "object":
            held = {} if value is ABSENT else value
            inner = {name: filled(one, held.get(name, ABSENT)) for name, one in field["properties"].items()}
            return {name: one for name, one in inner.items() if one is not ABSENT} or value
        return value

    return filled({**schema, "type": "object"}, given)


@pytest.fixture(scope="session")
def untouched_form() -> Callable[[dict[str, Any], dict[str, Any], str], dict[str, Any]]:
    return submitted_untouched
