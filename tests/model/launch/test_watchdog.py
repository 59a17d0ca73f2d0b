"""Which rank hangs and which is slow, from heartbeats."""

from pathlib import Path

from model.distributed.heartbeat import BETWEEN_STEPS, STEPPING, Beat, Heartbeat, is_held, read_beat
from model.launch.watchdog import SLOW_STEPS, RankMonitor

TWO = frozenset((0, 1))


def stepping(number: int, step: int, busy: float = 0.0, *, waiting: bool = False) -> Beat:
    return Beat(number, STEPPING, step, busy, waiting)


def test_a_heartbeat_counts_own_work_and_leaves_out_waiting_and_what_is_no_step(tmp_path: Path, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    file = tmp_path / "rank-0.beat"
    heart = Heartbeat(file)
    assert read_beat(file) == Beat(1, BETWEEN_STEPS, 0, 0.0, waiting=False)
    clock[0] += 50
    heart.step(7)
    clock[0] += 2
    with heart.waiting():
        assert read_beat(file) == Beat(3, STEPPING, 7, 0.0, waiting=True)
        clock[0] += 30
    clock[0] += 1
    heart.step(8)
    assert read_beat(file) == Beat(5, STEPPING, 8, 3.0, waiting=False)
    heart.between_steps()
    clock[0] += 20
    heart.step(8)
    assert read_beat(file) == Beat(7, STEPPING, 8, 3.0, waiting=False)
    assert is_held(file)


def test_without_a_whole_line_there_is_no_beat(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.beat"
    assert read_beat(file) is None
    file.write_text("3 stepping 1")
    assert read_beat(file) is None
    assert not is_held(file)
    assert not is_held(tmp_path / "none")


def test_the_silent_rank_that_does_not_wait_is_the_one_that_hangs() -> None:
    watch = RankMonitor(2, hang_seconds=10, start_seconds=60, now=0)
    watch.update({0: stepping(4, 5, waiting=True), 1: stepping(3, 5)}, now=1)
    assert watch.hang(11, TWO) is None
    hang = watch.hang(11.5, TWO)
    assert hang is not None
    assert (hang.rank, hang.waits, hang.step, hang.limit) == (1, False, 5, "hang_seconds")
    watch.update({1: stepping(4, 6)}, now=11.6)
    still = watch.hang(11.7, TWO)
    assert still is not None
    assert (still.rank, still.silent_seconds) == (1, 11.7 - 11.6), "the first still waits, and for the second"


def test_where_no_steps_are_made_another_limit_holds() -> None:
    watch = RankMonitor(2, hang_seconds=10, start_seconds=60, now=0)
    assert watch.hang(59, TWO) is None
    reported = watch.hang(61, TWO)
    assert reported is not None
    assert reported.limit == "start_seconds"
    assert watch.hang(61, frozenset()) is None, "none of them runs any more"
    watch.update({rank: stepping(1, 0) for rank in TWO}, now=61)
    watch.update({rank: Beat(2, BETWEEN_STEPS, 1, 0.0, waiting=False) for rank in TWO}, now=62)
    assert watch.hang(121, TWO) is None
    assert watch.hang(123, TWO) is not None


def test_a_rank_whose_own_work_takes_over_three_times_as_long_is_reported_once() -> None:
    watch = RankMonitor(3, hang_seconds=10, start_seconds=60, now=0)
    reported = []
    for step in range(4 * SLOW_STEPS):
        # From step 40 on the last rank needs 0.5 s of work a step where the others need 0.1 s.
        busy = [0.1 * step, 0.1 * step, 0.1 * step + max(0, step - 40) * 0.4]
        watch.update({rank: stepping(step + 1, step, busy[rank]) for rank in range(3)}, now=step)
        reported += watch.slow()
    assert [slow.rank for slow in reported] == [2]
    assert 40 < reported[0].step <= 40 + SLOW_STEPS
    assert reported[0].others_seconds_per_step == 0.1 or abs(reported[0].others_seconds_per_step - 0.1) < 1e-9
    assert reported[0].seconds_per_step > 0.3


def test_nobody_is_slow_alone_or_by_a_few_milliseconds() -> None:
    alone, close = RankMonitor(1, 10, 60, now=0), RankMonitor(2, 10, 60, now=0)
    for step in range(3 * SLOW_STEPS):
        alone.update({0: stepping(step + 1, step, 9.0 * step)}, now=step)
        close.update({0: stepping(step + 1, step, 0.010 * step), 1: stepping(step + 1, step, 0.001 * step)}, now=step)
    assert alone.slow() == close.slow() == []


def test_steps_that_are_faster_than_looks_are_compared_too() -> None:
    watch = RankMonitor(2, 10, 60, now=0)
    for look in range(4):
        step = 100 * look
        watch.update({0: stepping(look + 1, step, 0.01 * step), 1: stepping(look + 1, step, 0.1 * step)}, now=look)
    assert [slow.rank for slow in watch.slow()] == [1]
