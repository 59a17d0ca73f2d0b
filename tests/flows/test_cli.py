"""The command itself: its version and its help."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import COMMANDS, app

PROJECT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_project():
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.output) == (0, f"bessemer {version}\n")


@pytest.mark.parametrize("words", [[], ["run"], ["plan"]])
def test_help_has_a_short_name(words: list[str]):
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)


def test_the_help_names_every_command():
    told = CliRunner().invoke(app, ["--help"]).output
    assert "From raw text to a trained, evaluated language model" in told
    names = [command.__name__.replace("_", "-") for command in COMMANDS]
    assert [name for name in names if name not in told] == []
