"""A root in which the first three stages of the small recipe stand, for tests that look at what stands."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.builders import BUILDERS
from flows.recipe import Recipe, load_recipe
from flows.road import walk
from tasks.artifact import Artifact
from tasks.build import RunContext


class Enough(Exception):
    """The last stage that the fixture wants is built."""


def build_until(last: str, recipe: Recipe, root: Path) -> dict[str, Artifact]:
    """Build the road up to `last` and return the artifacts by stage."""
    context, artifacts = RunContext(root, "run"), {}

    def step(stage: str, *inputs: Any) -> Artifact:
        artifacts[stage] = BUILDERS[stage](context, *inputs)
        if stage == last:
            raise Enough
        return artifacts[stage]

    with pytest.raises(Enough):
        walk(recipe, step)
    return artifacts


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
