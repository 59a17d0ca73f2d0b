"""Kernels of later stages are compiled in a process of its own, once for each state of the code."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from flows.runs import compile_ahead


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started, with a cache that is empty, on two cores."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_ahead.os, "cpu_count", lambda: 2)
    processes: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*words: Any, **settings: Any) -> subprocess.Popen[bytes]:
        processes.append(real(*words, **settings))
        return processes[-1]

    monkeypatch.setattr(compile_ahead.subprocess, "Popen", start)
    return processes


def test_the_process_ends_with_the_run(started: list[subprocess.Popen[bytes]]) -> None:
    with compile_ahead.compiling_ahead():
        (process,) = started
        assert process.poll() is None
    assert process.poll() is not None


def test_nothing_is_started_where_kernels_are_compiled_or_one_core_has_the_run_itself(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with compile_ahead.compiling_ahead():
        pass
    assert len(started) == 1
    compile_ahead._mark().parent.mkdir(parents=True)
    compile_ahead._mark().touch()
    with compile_ahead.compiling_ahead():
        assert len(started) == 1
    compile_ahead._mark().unlink()
    monkeypatch.setattr(compile_ahead.os, "cpu_count", lambda: 1)
    with compile_ahead.compiling_ahead():
        assert len(started) == 1


def test_the_text_goes_through_the_kernels_of_each_data_stage(tmp_path: Path) -> None:
    made = compile_ahead.compile_kernels(tmp_path)
    assert set(made) == {"sample", "clean", "decontaminate", "vocab", "chunk", "dedup"}
    assert made["decontaminate"].rows("leaks") == 4, "the items are the beginnings of chapters"
    assert made["chunk"].rows("order") > 0
