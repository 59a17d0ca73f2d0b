"""The book of trials: what was recorded it knows again, whenever its writer was killed."""

from pathlib import Path

import pytest

from flows.experiments.search_report import history_figure, trials_table
from flows.experiments.trial_log import Stop, Trial, TrialLog, TrialResult

STOP = Stop(rung=0, step=10, steps=90, loss=2.5, seconds=3.0, built=("train",))
END = Stop(rung=2, step=90, steps=90, loss=None, seconds=20.0, built=("train", "evaluate"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trials.jsonl"


def written(path: Path) -> list[Trial]:
    book = TrialLog(path)
    first = book.add("recipe", {"train.schedule.peak_lr": 0.1}, "run-0")
    second = book.add("hand", {"train.schedule.peak_lr": 0.01}, "run-1", waited_as="mine.json")
    book.begin(first, 0)
    book.record(TrialResult(first.number, "paused", STOP))
    book.begin(first, 1)
    book.begin(second, 0)
    book.record(TrialResult(second.number, "complete", END, 1.75, 0.25))
    return book.trials


def test_a_book_that_is_opened_again_says_the_same(path: Path) -> None:
    trials = written(path)
    assert TrialLog(path).trials == trials
    first, second = trials
    assert (first.state, first.rung, first.stops) == ("running", 1, [STOP])
    assert (first.share, first.seconds) == (10 / 90, 3.0)
    assert (second.state, second.value, second.stderr, second.share) == ("complete", 1.75, 0.25, 1.0)
    assert TrialLog(path).knows("mine.json")
    assert not TrialLog(path).knows("yours.json")


def test_the_error_of_an_objective_is_that_of_all_reports(path: Path) -> None:
    trials = written(path)
    row = trials_table(trials, ["train.schedule.peak_lr"], 1).rows[1]
    assert row[5] == "1.7500 ± 0.4900", "1.96 times .25"
    figure = history_figure(trials, "bits", "minimize")
    assert figure is not None
    assert figure["data"][1]["error_y"]["array"] == [pytest.approx(0.49, abs=1e-4)]


def test_a_line_that_a_kill_cut_off_never_was_and_the_next_one_is_whole(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    last = len(whole) - len(lines[-1])
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        book = TrialLog(path)
        assert book.trials[1].state == "running"
        book.record(TrialResult(1, "complete", END, 1.75, 0.25))
        assert path.read_bytes() == whole


def test_the_loss_at_a_rung_is_infinite_where_training_diverged_on_the_way(path: Path) -> None:
    book = TrialLog(path)
    trial = book.add("tpe", {}, "run")
    assert trial.loss_at(0) is None
    book.begin(trial, 0)
    book.record(TrialResult(trial.number, "paused", STOP))
    assert (trial.loss_at(0), trial.loss_at(1)) == (2.5, None)
    book.begin(trial, 1)
    book.record(TrialResult(trial.number, "diverged", Stop(1, 0, 0, None, 1.0, ()), cause="Numerics: no number"))
    assert (trial.loss_at(0), trial.loss_at(1)) == (2.5, float("inf"))
