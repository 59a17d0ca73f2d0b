"""How often ranks are restarted, and that every restart becomes exactly one event."""

import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from model.checkpoint.metrics import MetricsLog
from model.config.launch import RestartsConfig
from model.launch.failures import (
    LONGEST_PAUSE,
    RESTARTS_FILE,
    RestartBudget,
    RestartLog,
    import_restarts,
    read_restarts,
)


def test_pauses_double_up_to_a_minute_and_progress_begins_anew() -> None:
    patience = RestartBudget(RestartsConfig(most=8, pause_seconds=1))
    assert [patience.next_pause() for _ in range(9)] == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, None]
    patience.progress()
    assert patience.next_pause() == 1
    assert RestartBudget(RestartsConfig(most=0)).next_pause() is None


def events(journal: MetricsLog) -> list[tuple[str, int, float, dict]]:
    rows = journal.tables()["events"].to_pylist()
    return [(row["kind"], row["step"], row["time"], json.loads(row["detail"])) for row in rows]


def test_lines_become_events_under_their_own_times_and_none_twice(tmp_path: Path, monkeypatch) -> None:
    record, journal = RestartLog(tmp_path), MetricsLog()
    import_restarts(tmp_path, journal)
    assert events(journal) == []
    monkeypatch.setattr("time.time", lambda: 1e9)
    record.append("restart", step=7, words="Infra: killed", rank=1)
    monkeypatch.setattr("time.time", lambda: 2e9)
    journal.event(5, "resume")
    import_restarts(tmp_path, journal)
    record.append("slow_rank", step=9, rank=0)
    import_restarts(tmp_path, journal)
    assert events(journal) == [
        ("resume", 5, 2e9, {}),
        ("restart", 7, 1e9, {"words": "Infra: killed", "rank": 1}),
        ("slow_rank", 9, 2e9, {"rank": 0}),
    ]
    assert journal.tables()["events"]["seq"].to_pylist() == [0, 1, 2]


def test_a_journal_of_an_older_checkpoint_takes_them_again(tmp_path: Path) -> None:
    record, journal = RestartLog(tmp_path), MetricsLog()
    record.append("restart", step=1)
    import_restarts(tmp_path, journal)
    journal.write(tmp_path)
    record.append("restart", step=2)
    import_restarts(tmp_path, journal)
    older = MetricsLog.read(tmp_path)
    import_restarts(tmp_path, older)
    assert [step for _, step, _, _ in events(older)] == [step for _, step, _, _ in events(journal)] == [1, 2]


def test_lines_of_a_record_that_was_removed_and_begun_again_are_all_taken(tmp_path: Path) -> None:
    record, journal = RestartLog(tmp_path), MetricsLog()
    for step in (1, 2):
        record.append("restart", step=step)
    import_restarts(tmp_path, journal)
    (tmp_path / RESTARTS_FILE).unlink()
    record.append("restart", step=3)
    import_restarts(tmp_path, journal)
    assert [step for _, step, _, _ in events(journal)] == [1, 2, 3]


def test_half_a_line_that_a_kill_left_harms_no_other(tmp_path: Path) -> None:
    RestartLog(tmp_path).append("restart", step=1)
    file = tmp_path / RESTARTS_FILE
    file.write_bytes(file.read_bytes() + b'{"kind": "rest')
    assert [line["step"] for line in read_restarts(tmp_path)] == [1]
    RestartLog(tmp_path).append("restart", step=2)
    assert [line["step"] for line in read_restarts(tmp_path)] == [1, 2]


def test_on_a_full_disk_lines_wait(tmp_path: Path, capsys) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    try:
        record, ballast = RestartLog(tmp_path), tmp_path / "ballast"
        record.append("restart", step=1, words="x" * 4000)
        with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.write(bytes(4096)):
                pass
        record.append("restart", step=2, words="x" * 4000)
        assert "could not be written yet" in capsys.readouterr().err
        assert [line["step"] for line in read_restarts(tmp_path)] == [1]
        ballast.unlink()
        record.append("restart", step=3)
        assert [line["step"] for line in read_restarts(tmp_path)] == [1, 2, 3]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
