"""The reference has every key and every command, and the page in docs/ is the one that they make."""

import re
from pathlib import Path

from flows.cli import COMMANDS
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.reference import NAME, reference

PAGE = Path(__file__).parents[2] / "docs" / NAME


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make reference`"


def test_every_key_of_a_stage_stands_there_with_its_help() -> None:
    page = reference()
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
    page = reference()
    assert "| `seed` | integer, at least 0, below 2^63 | `1` | Run seed," in page
    assert "| `paths` | list of text | needed | *runtime* Files, folders," in page
    assert '### `[train.model]`, `architecture = "bert"`' in page


def test_every_command_stands_there() -> None:
    names = [command.__name__.replace("_", "-") for command in COMMANDS]
    page = reference()
    assert [name for name in names if f"### `bessemer {name}" not in page] == []
    assert "### `bessemer training resume`" in page
    assert "    bessemer training join" in page
    assert "\b" not in page
