"""The command line itself: its version, its help, its groups, and options that hold for every command."""

import inspect
import json
import os
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import OptionInfo
from typer.testing import CliRunner

from flows.cli import app
from flows.commands.common import print_found
from model.errors import InputError

PROJECT = Path(__file__).parents[2]
SCREEN_LINES, SCREEN_COLUMNS = 60, 100


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that name it."""
    yield words, command
    for name, inner in command.commands.items() if isinstance(command, TyperGroup) else ():
        yield from commands(inner, (*words, name))


ALL = dict(commands(get_command(app)))


def test_the_version_is_that_of_the_project():
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"bessemer {version}\n")


def test_the_commands_are_those_of_the_documentation():
    groups = {words[0]: set() for words in ALL if len(words) > 1}
    for words in ALL:
        if len(words) == 2:
            groups[words[0]].add(words[1])
    assert {words[0] for words in ALL if len(words) == 1} - set(groups) == {
        *("demo", "init", "check", "plan", "estimate", "run", "nightly", "reference")
    }
    assert groups == {
        "runs": {"list", "compare", "report", "export-metrics"},
        "data": {"peek", "history", "forget", "step", "leaks", "tokens", "tokenizers"},
        "model": {
            *(
                "generate",
                "chat",
                "eval",
                "finetune",
                "predict",
                "export",
                "card",
                "profile",
                "presets",
                "promote",
                "current",
            )
        },
        "study": {"search", "ablate", "mix", "scale"},
        "training": {"status", "resume", "join"},
        "serve": {"start", "stop", "status"},
        "store": {"verify", "accept", "gc"},
    }


def test_json_of_commands_holds_no_number_that_json_does_not_have(capsys: pytest.CaptureFixture[str]):
    """As the loss of a step that the guard skipped."""
    print_found({"loss": float("nan"), "path": Path("a"), "most": float("inf"), "text": "é\ud800"}, as_json=True)
    shown = capsys.readouterr().out
    assert json.loads(shown, parse_constant=pytest.fail) == {"loss": None, "path": "a", "most": None, "text": "é\ud800"}
    assert shown.startswith('{\n "loss": null,')


def test_the_path_of_every_option_may_begin_at_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A shell leaves `--output=~/card.md` as it is, and the card would be in a folder named `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    taken = set[str]()
    for words, command in ALL.items():
        hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
        for name, hint in hints.items():
            path, (option, *_) = getattr(hint, "__origin__", None), getattr(hint, "__metadata__", (None,))
            if isinstance(option, OptionInfo) and Path in (path, *get_args(path)) and option.parser is None:
                taken.add(f"{' '.join(words)} {name}")
                assert option.callback is not None, words
                if name != "untrusted":
                    assert option.callback(Path("~/it")) == tmp_path / "it", (words, name)
    assert {"model card output", "init output", "serve start password_file"} <= taken
    done = CliRunner().invoke(app, ["check", "quickstart", "--untrusted=~/none"])
    assert f"--untrusted {tmp_path}/none: there is no such folder" in done.stderr


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_help_fits_a_screen_and_cuts_no_line(words: tuple[str, ...]):
    short, long = (
        CliRunner().invoke(app, [*words, option], terminal_width=SCREEN_COLUMNS, color=False)
        for option in ("-h", "--help")
    )
    assert (short.exit_code, short.output) == (0, long.output)
    lines = long.output.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage: ")] == []


def test_the_root_is_taken_before_the_command_and_behind_it(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for words in (
        ["--root", str(first), "runs", "list"],
        [f"--root={first}", "runs", "list"],
        ["runs", "--root", str(first), "list"],
        ["runs", "list", "--root", str(first)],
    ):
        shown = CliRunner().invoke(app, words)
        assert (shown.exit_code, str(first) in shown.output.replace("\n", "")) == (0, True), words
    both = CliRunner().invoke(app, ["--root", str(first), "runs", "list", "--root", str(second)])
    assert str(second) in both.output.replace("\n", ""), "the one closer to the command decides"
    assert CliRunner().invoke(app, ["--root"]).exit_code == 2


def test_an_address_that_is_no_root_is_an_error_of_the_recipe():
    done = CliRunner().invoke(app, ["plan", "quickstart", "--root", "s3:///x"])
    assert done.stderr.startswith("RecipeError: --root s3:///x names no bucket")


@pytest.mark.parametrize(
    ("root", "why"),
    [("zip://x", "`zip` opens no object store"), ("file://x", "a folder of this machine is no object store")],
)
def test_a_scheme_that_opens_no_object_store_is_an_error_of_the_recipe(root: str, why: str):
    done = CliRunner().invoke(app, ["runs", "list", "--root", root])
    assert done.stderr.startswith(f"RecipeError: --root {root}: {why}")


@pytest.mark.parametrize("within", ["", "/root"])
def test_a_root_that_is_a_file_is_refused(tmp_path: Path, within: str):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["plan", "quickstart", "--root", f"{tmp_path}/file{within}"])
    assert done.exit_code == InputError.exit_code
    assert (
        f"--root {tmp_path}/file{within}: {tmp_path}/file is a file; choose a folder of yours with --root"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("typed", "completed"), [("runs", {"list", "compare", "report", "export-metrics"}), ("chat", set[str]())]
)
def test_a_shell_completes_commands(typed: str, completed: set[str]):
    environment = {
        **os.environ,
        "_BESSEMER_COMPLETE": "complete_bash",
        "COMP_WORDS": f"bessemer {typed} ",
        "COMP_CWORD": "2",
    }
    words = [str(Path(sys.executable).with_name("bessemer"))]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert (completed <= set(done.stdout.split()), done.stderr) == (True, "")


def test_a_list_of_runs_is_json_beside_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webbrowser, "open", lambda page: True)
    shown = CliRunner().invoke(app, ["runs", "list", "--open", "--json", "--root", str(tmp_path)])
    assert (shown.exit_code, json.loads(shown.stdout)) == (0, [])


def test_a_command_of_a_group_is_found_without_it():
    refused = CliRunner().invoke(app, ["chat", "latest"])
    assert refused.exit_code == 2
    assert "No such command 'chat'. Did you mean `bessemer model chat`?" in refused.stderr
