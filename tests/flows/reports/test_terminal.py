"""Where no bar can be drawn, a line now and then says how far a stage is."""

import io
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from flows.reports import progress as terminal
from flows.reports.progress import ProgressBars
from flows.reports.tables import funnel_table, recall_table, sources_table
from flows.reports.terminal import print_rejected_record, print_step
from flows.runs.run_documents import StepRead
from tasks.artifacts.tables.rows import RejectRow


def reported(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(terminal, "QUIET_SECONDS", seconds)
    out = io.StringIO()
    with ProgressBars(Console(file=out, width=80)) as bars:
        bars.progress("train", 10, 1000, "steps")
        bars.progress("train", 11, 1000, "steps")
    return [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()]


def test_a_line_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(0.0, monkeypatch) == ["train 10 of 1,000 steps", "train 11 of 1,000 steps"]


def test_quick_stages_say_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(60.0, monkeypatch) == []


def test_without_a_terminal_there_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out, clock = io.StringIO(), iter(range(0, 40, 4))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with ProgressBars(Console(file=out, width=80, get_time=lambda: 0.0)) as bars:
        for step in range(8):
            bars.progress("train", step, 1000, "steps")
    assert [" ".join(line.split()) for line in out.getvalue().splitlines()] == [
        "train 3 of 1,000 steps",
        "train 6 of 1,000 steps",
    ]


def test_words_are_apart_from_the_name_of_a_trial_too() -> None:
    out = io.StringIO()
    with ProgressBars(Console(file=out, width=80)) as bars:
        for stage in ("train", "no-norm 1 decontaminate", "train"):
            bars.note(stage, "why")
    assert out.getvalue().splitlines() == [
        "train          why",
        "no-norm 1 decontaminate why",
        "train                   why",
    ]


def test_a_rejected_record_has_two_lines_whatever_the_name_of_its_file() -> None:
    out = io.StringIO()
    reject = {"source": "web", "path": "a\n[b]\t.txt", "record": 1, "byte": 2, "reason": "empty", "excerpt": ""}
    print_rejected_record(cast(RejectRow, reject), Console(file=out, width=120))
    assert out.getvalue().splitlines()[0] == r"rejected  web: a\u000a[b]\u0009.txt record 1, byte 2: empty"


def test_the_tables_of_a_run_fit_80_columns() -> None:
    counts = dict.fromkeys(("read", "sample", "clean", "dedup", "decontaminate", "chunk", "held_out"), 1452)
    funnel = funnel_table([{"source": "documentation", **counts}])
    mixed = {"planned_share": 1.0, "realised_share": 1.0, "tokens": 7e8, "epochs": 3.95}
    bits = dict.fromkeys(("model", "5gram", "unigram", "xz"), 10.123)
    sources = sources_table([{"source": "documentation", **mixed}], [{"source": "documentation", **bits}])
    for table in (funnel, sources):
        assert table is not None
        out = io.StringIO()
        Console(file=out, width=80).print(table.rich())
        _, head, row, *_ = out.getvalue().splitlines()
        assert head.split() == " ".join(table.columns).split()
        assert row.split()[0] == "documentation"


def test_recall_is_beside_what_the_bands_let_expect() -> None:
    found = recall_table({"bins": [[0.5, 0.6, 4, 1, 0.3], [0.6, 0.7, 0, 0, None]]})
    assert found is not None
    assert found.rows == [("0.5 to 0.6", 4, 1, "25.0%", "30.0%"), ("0.6 to 0.7", 0, 0, None, None)]
    assert recall_table({"bins": [[0.5, 0.6, 0, 0, 0.3]]}) is None


def test_the_history_of_a_document_of_a_step_is_asked_for_under_the_same_root(tmp_path: Path) -> None:
    stream = io.StringIO()
    read: StepRead = {"step": 0, "applied": True, "loss": None, "rows": 1, "documents": []}
    print_step(read, "20261130T10", tmp_path / "my root", Console(file=stream, width=80))
    command = f"bessemer data history DOCUMENT --run 20261130T10 --root '{tmp_path}/my root'"
    assert command in stream.getvalue().replace("\n", " ")
    print_step(read, "20261130T10", Path("bessemer-data").resolve(), Console(file=stream, width=300))
    assert "--run 20261130T10;" in stream.getvalue()


def test_a_record_of_a_table_is_named_by_its_line_as_in_an_editor() -> None:
    """The header is line 1, and record 0."""
    out = io.StringIO()
    row = {"source": "web", "byte": 20, "reason": "row of 3 fields under a header of 2", "excerpt": "a,b,c"}
    for path in ("deep/a.csv", "a.tsv.gz", "a.jsonl"):
        print_rejected_record(cast(RejectRow, {**row, "path": path, "record": 11}), Console(file=out, width=200))
    places = [line.partition(": ")[2].partition(",")[0] for line in out.getvalue().splitlines() if "rejected" in line]
    assert places == ["deep/a.csv line 12", "a.tsv.gz line 12", "a.jsonl record 11"]
