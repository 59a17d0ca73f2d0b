"""Files of a folder that `init` names and does not read: links, pipes, outputs of tools, and tables without a header."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.inspection.scan import scan_folder
from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS
from model.errors import InputError
from tasks.artifacts.build import RunContext
from tasks.artifacts.results import SampleResult

ENGLISH = "The furnace was lit before dawn and the iron ran white into the sand of the moulds. "


def test_links_that_lead_nowhere_and_pipes_are_named(tmp_path: Path):
    mine = tmp_path / "mine"
    (mine / "books").mkdir(parents=True)
    os.mkfifo(mine / "books" / "pipe.txt")
    (mine / "books" / "gone.txt").symlink_to("nowhere.txt")
    (mine / "books" / "turns.txt").symlink_to("turns.txt")
    (mine / "more").symlink_to("books")
    with pytest.raises(InputError, match=r"nothing in it can be read .*gone\.txt.*a link to nowhere\.txt"):
        scan_folder(mine)
    (mine / "books" / "read.txt").write_text(ENGLISH)
    (mine / "books" / "same.txt").symlink_to("read.txt")
    scan = scan_folder(mine)
    assert [len(source.files) for source in scan.sources] == [2], "a link to a file is read"
    assert {bad.path.name: bad.hint.partition(",")[0] for bad in scan.unreadable} == {
        "pipe.txt": "a FIFO",
        "gone.txt": "a link to nowhere.txt",
        "turns.txt": "a link to turns.txt",
        "more": "a link to a folder",
    }
    recipe = tmp_path / "mine.toml"
    assert CliRunner().invoke(app, ["init", str(mine), "--output", str(recipe)]).exit_code == 0
    sample = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="run"), load_recipe(recipe, tmp_path).sample)
    assert SampleResult.of(sample.report).files == {"books": {"excluded": 3, "read": 2}}
