"""Where no bar can be drawn, a line now and then says how far a stage is."""

import io

import pytest
from rich.console import Console

from flows.reports import progress as terminal
from flows.reports.progress import ProgressBars


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
