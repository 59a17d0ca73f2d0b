"""Opening a recipe by file or by name, with the input of the demo written first where it is asked for."""

from collections.abc import Sequence
from pathlib import Path

from flows.recipe import RECIPES, Recipe, find_recipe, load_recipe

QUICKSTART = RECIPES / "quickstart.toml"


def open_recipe(name: str, root: Path, settings: Sequence[str] = (), limit: float = 1.0) -> Recipe:
    """The recipe in a file, or that ships under a name; `settings` and `limit` as `load_recipe` takes them.

    The demo reads documentation of this Python that stands nowhere as text: it is written under `root` first.
    """
    return load_recipe(recipe_file(name, root), root, settings, limit)


def recipe_file(name: str, root: Path) -> Path:
    """The file of a recipe given by path or by the name under which it ships, its input written."""
    path = find_recipe(name)
    if path == QUICKSTART:
        from flows.quickstart import prepare

        prepare(root)
    return path
