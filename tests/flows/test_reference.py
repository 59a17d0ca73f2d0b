"""The generated reference has every recipe key with its help, and every command."""

import re

from typer.testing import CliRunner

from flows.cli import app
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.reference import reference

PAGE = reference(app)


def test_the_command_prints_the_page() -> None:
    shown = CliRunner().invoke(app, ["reference"])
    assert (shown.exit_code, shown.stdout) == (0, PAGE)


def test_every_key_of_a_stage_stands_there_with_its_help() -> None:
    page = PAGE
    assert set(re.findall(r"^### `\[([a-z]+)\]`", page, re.MULTILINE)) >= {*STAGES, "search", "mix", "variables"}
    missing = [
        f"{stage}.{name}"
        for stage in STAGES
        for name in Recipe.model_fields[stage].annotation.model_fields  # type: ignore[union-attr]
        if f"| `{name}` |" not in page and f".{name}" not in page
    ]
    assert [
        name
        for name in missing
        if name.split(".")[1] not in ("limit", "weights", "priorities", "row_length", "sources")
    ] == []
    assert not re.search(r"^\| `[a-z_]+` \|.*\|  \|$", page, re.MULTILINE), "a key without help"


def test_bounds_defaults_and_what_is_runtime_are_told() -> None:
    page = PAGE
    assert "| `seed` | integer, at least 0, below 2^63 | `1` | Run seed," in page
    assert "| `paths` | list of text | needed | *runtime* Files, folders," in page
    assert '### `[train.model]`, `architecture = "bert"`' in page


def test_every_command_is_there() -> None:
    names = "demo", "runs list", "data history", "model eval", "study search add", "training resume", "store verify"
    assert [name for name in names if f"### `bessemer {name}" not in PAGE] == []
    assert "    bessemer training join" in PAGE
    assert "\b" not in PAGE
