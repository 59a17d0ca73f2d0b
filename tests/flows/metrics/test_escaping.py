"""What reaches a terminal: no sequence, link or reversed line of somebody else's text, whichever call prints it."""

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows import cli
from flows.inspection.terminal import print_views
from flows.metrics.escaping import EscapedStream, EscapingConsole, escaped
from flows.metrics.text_diff import ADDED, SAME

HOSTILE = "a\x1b]8;;https://evil.example\x07b\x1b[8mc\u202ed\x9b31me\rf\u2066g\u200bh\udce9i"
SHOWN = r"a\u001b]8;;https://evil.example\u0007b\u001b[8mc\u202ed\u009b31me\u000df\u2066g\u200bh\udce9i"
PROGRAM = Path(sys.executable).with_name("bessemer")


def _console(width: int = 200, terminal: bool = True) -> tuple[EscapingConsole, io.StringIO]:
    out = io.StringIO()
    return EscapingConsole(out, force_terminal=terminal, color_system="truecolor", width=width), out


@given(st.text())
def test_what_is_printed_holds_no_character_that_steers_and_nothing_else_changes(text: str):
    shown = escaped(text)
    steering = [
        sign
        for sign in shown
        if (unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") and sign not in "\t\n")
        or unicodedata.bidirectional(sign) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    ]
    assert steering == []
    if shown == escaped(shown) and "\\" not in text:
        assert json.loads(f'"{json.dumps(shown, ensure_ascii=False)[1:-1]}"'.replace(r"\\u", r"\u")) == text


def test_letters_of_all_scripts_and_emoji_stay():
    for text in ("naïve\tword\n", "می‌خواهم", "क्‍ष", "👩‍💻", "עברית", "日本語"):
        assert escaped(text) == text


def test_json_that_is_printed_with_its_own_letters_is_the_same_value_after_escaping():
    value = {"text": f"{HOSTILE} 日本語 \U000e0041"}
    assert json.loads(escaped(json.dumps(value, ensure_ascii=False))) == value


@pytest.mark.parametrize("form", ["string", "markup", "text", "table", "styled", "title"])
def test_a_console_shows_sequences_as_text(form: str):
    console, out = _console()
    if form == "string":
        console.print(HOSTILE, markup=False)
    elif form == "markup":
        console.print(f"[bold]{HOSTILE}[/]".replace("[8m", r"\[8m"))
    elif form == "text":
        console.print(Text.assemble(("before ", "red"), (HOSTILE.replace("\x07", "").replace("\r", ""), "green")))
    elif form == "styled":
        console.print(HOSTILE, style="dim", markup=False)
    elif form == "title":
        table = Table(title="x\x1b[2Jy")
        table.add_column("a wide column", min_width=20)
        table.add_row("1")
        console.print(table)
        assert r"x\u001b[2Jy" in out.getvalue()
        return
    else:
        table = Table()
        table.add_column("file\x1b[1m")
        table.add_row(HOSTILE.replace("[8m", r"\[8m"))
        console.print(table)
    printed = Text.from_ansi(out.getvalue()).plain  # without the console's own colours
    expected = SHOWN if form != "text" else SHOWN.replace(r"\u0007", "").replace(r"\u000d", "")
    assert expected in printed.replace("\n", "")
    assert "\x1b]" not in out.getvalue()
    assert "\u202e" not in out.getvalue()


def test_no_line_is_cut_where_escapes_make_it_longer():
    console, out = _console(width=20, terminal=False)
    console.print(Text("\x1b" * 10 + "end"))
    assert out.getvalue().replace("\n", "") == r"\u001b" * 10 + "end"
    assert max(map(len, out.getvalue().splitlines())) <= 20


def test_a_console_prints_no_link_of_markup():
    console, out = _console()
    console.print("[link=https://evil.example]a run[/link]")
    console.print(Text("a run", style="link https://evil.example"))
    assert "evil" not in out.getvalue()
    assert out.getvalue().count("a run") == 2


def test_a_console_keeps_its_own_colours():
    console, out = _console()
    console.print("[red]x[/] :warning:")
    assert out.getvalue() == "\x1b[31mx\x1b[0m :warning:\n"


def test_streams_escape_what_print_writes_and_give_consoles_the_stream_behind():
    behind = io.StringIO()
    stream = EscapedStream(cast("TextIO", EscapedStream(behind)))
    print(HOSTILE, file=stream)
    assert behind.getvalue() == SHOWN + "\n"
    Console(file=stream.unescaped, force_terminal=True, color_system="standard").print("[red]x")
    assert "\x1b[31mx" in behind.getvalue()


def test_what_colorama_writes_when_a_process_ends_is_not_shown():
    behind = io.StringIO()
    EscapedStream(behind).write("\x1b[0m")
    assert behind.getvalue() == ""
    EscapedStream(behind).write("a\x1b[0m")
    assert behind.getvalue() == r"a\u001b[0m"


@pytest.mark.parametrize(
    "words", [["--\x1b[2Jno-such"], ["estimate", "no\x1b]0;owned\x07\u202ename.toml"], ["\u202enope"]]
)
def test_errors_of_the_command_are_escaped(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["bessemer", *words])
    monkeypatch.setattr(cli, "filter_environment", lambda: None)  # It changes this process.
    # main() puts its streams over these.
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    reported = capsys.readouterr().err
    assert escaped(reported) == reported
    assert r"\u202e" in reported or r"\x1b[2J" in reported


def _on_a_terminal(*words: str | Path, cwd: Path) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200"}
    read = bytearray()
    with subprocess.Popen(words, cwd=cwd, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # which is how a terminal's output ends
            while block := os.read(ours, 65536):
                read += block
        assert process.wait(60) == 0
    os.close(ours)
    return read.decode("utf-8", "surrogateescape")


def test_names_of_files_reach_no_terminal_as_sequences(tmp_path: Path):
    """`init` surveys a folder, with its files' names in tables and remarks, and bars above them."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "fine.txt").write_text("A sentence of plain English that anybody can read. " * 40)
    (folder / "a\x1b]0;owned\x07b\u202egnp.jsonl").write_text('{"text": "x"\n{broken\n')
    reported = _on_a_terminal(PROGRAM, "init", "corpus", "--output", "\u202erecipe.toml", cwd=tmp_path)
    assert [sign for sign in ("\x1b]", "\x07", "\u202e") if sign in reported] == []
    assert r"\u202erecipe.toml" in reported


def test_what_is_printed_while_bars_are_drawn_is_escaped(tmp_path: Path):
    script = """
import logging, sys
from flows.metrics.escaping import escape_output
from flows.commands.common import shown_progress
escape_output()
with shown_progress(False) as bars:
    bars.progress("sample", 1, 2, "files")
    logging.warning("%s", sys.argv[1])
    print(sys.argv[1])
    bars.note("sample", sys.argv[1])
print("end", sys.argv[1])
"""
    words = "x\x1b]8;;https://evil.example\x07y\x1b[8mz"
    reported = _on_a_terminal(sys.executable, "-c", script, words, cwd=tmp_path)
    assert reported.count(escaped(words)) == 4
    assert [sign for sign in ("\x1b]8", "\x1b[8m") if sign in reported] == []


def test_peek_shows_sequences_of_documents_as_text():
    console, out = _console()
    view = {"title": f"kept {HOSTILE}", "doc_id": "0" * 32, "source": "web", "path": HOSTILE, "record": 0}
    print_views([{**view, "segments": [(SAME, HOSTILE), (ADDED, HOSTILE)]}], console, full=True)
    printed = Text.from_ansi(out.getvalue()).plain
    assert printed.count(SHOWN) == 3
    assert [sign for sign in ("\x1b]", "\u202e", "\x1b[8m") if sign in out.getvalue()] == []
