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


def test_every_key_of_a_stage_is_there_with_its_help() -> None:
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


def test_bounds_defaults_and_what_is_runtime_are_reported() -> None:
    page = PAGE
    assert "| `seed` | integer, at least 0, below 2^63 | `1` | Run seed," in page
    assert "| `paths` | list of text | needed | *runtime* Files, folders," in page
    assert '### `[train.model]`, `architecture = "bert"`' in page


def test_every_command_is_there() -> None:
    names = "demo", "runs list", "data history", "model eval", "study search add", "training resume", "store verify"
    assert [name for name in names if f"### `bessemer {name}" not in PAGE] == []
    assert "    bessemer training join" in PAGE
    assert "\b" not in PAGE


def test_keys_that_few_recipes_set_are_folded_and_counted() -> None:
    every, shown, folded = map(int, re.search(r"Of (\d+) keys the tables show\s(\d+); the other (\d+),", PAGE).groups())
    assert every == shown + folded
    assert 80 <= shown <= 95, "keys that people set; mark others with EXPERT of model.config"
    blocks = re.findall(
        r"<details><summary>(\d+) (?:more )?that few recipes set</summary>\n(.*?)</details>", PAGE, re.S
    )
    assert [int(count) for count, _ in blocks] == [len(re.findall(r"^\| `", block, re.M)) for _, block in blocks]
    assert PAGE.count("<details>") == PAGE.count("</details>") == len(blocks)
    clip = PAGE.partition("### `[train.clip]`")[2].partition("###")[0]
    assert "| key |" not in clip.partition("<details>")[0], "`train.clip` is marked, so its table is folded as a whole"


def test_keys_that_no_stage_has_are_there() -> None:
    for key in ("weights_from", "priority", "task", "preset"):
        assert f"| `{key}` |" in PAGE
    assert "### `[machines]`" in PAGE
