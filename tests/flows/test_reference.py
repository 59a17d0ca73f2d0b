"""The reference is generated, and has every key and every command."""

import re
from pathlib import Path

import pytest

from flows.cli import COMMANDS
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.reference import NAME, main, reference

PROJECT = Path(__file__).parents[2]


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path)])
    main()
    assert (tmp_path / NAME).read_text(encoding="utf-8") == reference()


def test_the_page_is_not_kept() -> None:
    assert f"docs/{NAME}" in (PROJECT / ".gitignore").read_text().split()


def test_links_of_the_page_lead_to_files_of_the_documentation() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", reference())
    assert [target for target in targets if "://" not in target and not (PROJECT / "docs" / target).exists()] == []


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
    assert "### `bessemer train resume`" in page
    assert "    bessemer train join" in page
    assert "\b" not in page
