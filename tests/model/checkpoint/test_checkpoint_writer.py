"""Writing checkpoints during training: a consistent state, one at a time, and every failure reported."""

import functools
import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.checkpoint.checkpoint import checkpoint_at, intact_steps
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.writer import CheckpointWriter
from model.digests import digest_file
from model.distributed.process_group import SINGLE_PROCESS, join_process_group
from model.errors import Infra, IntegrityError
from tests.model.forked_ranks import run_ranks

LARGE = 200_000
"""Elements of the network's one weight: 800 KB."""


@dataclass
class Ingot:
    """An engine whose network is one vector."""

    weight: Tensor = field(default_factory=lambda: torch.zeros(LARGE))
    optimizer_shards: int = 1
    weight_shards: int = 1

    def weights(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def begins(self) -> dict[str, tuple[int, ...]]:
        return {}

    def optimizer_state(self) -> dict[str, Tensor]:
        return {"weight|exp_avg": self.weight / 2, "weight|step": torch.tensor(1.0)}


def journal_of(steps: int) -> MetricsLog:
    journal = MetricsLog()
    for step in range(steps):
        journal.event(step, "spike")
    return journal


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing further into any file of this process is an error of the system, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_exists_is_what_was_when_it_was_asked_for(tmp_path: Path) -> None:
    engine, journal, state = Ingot(), journal_of(2), {"tokens": 7}
    with CheckpointWriter(tmp_path, SINGLE_PROCESS) as writer:
        writer.save(2, engine, journal, state, keep=2)
        engine.weight.add_(1)
        journal.event(2, "spike")
        state["tokens"] = 8
        writer.save(3, engine, journal, state, keep=2)
        engine.weight.add_(1)
    for step, value, tokens in ((2, 0.0, 7), (3, 1.0, 8)):
        checkpoint = checkpoint_at(tmp_path, step, {"tokens": tokens})
        assert checkpoint.weights()["weight"].unique().tolist() == [value]
        assert checkpoint.optimizer_state(0, 1)["weight|exp_avg"].unique().tolist() == [value / 2]
        assert checkpoint.metrics_log().count("events") == step


def test_the_next_waits_for_the_one_before_and_each_is_reported_once_when_it_exists(tmp_path: Path) -> None:
    reported: list[tuple[int, list[int]]] = []
    with CheckpointWriter(
        tmp_path, SINGLE_PROCESS, lambda step: reported.append((step, intact_steps(tmp_path)))
    ) as writer:
        for step in (1, 2, 3):
            writer.save(step, Ingot(), journal_of(1), {}, keep=2, healthy=[1])
            assert [step for step, _ in reported] == list(range(1, step))
    # The third is the newest, the second within the two that are kept, the first healthy.
    assert reported == [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])]
    assert intact_steps(tmp_path) == [1, 2, 3]


def test_ends_of_steps_stop_it_without_waiting(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, SINGLE_PROCESS)
    writer.save(1, Ingot(), journal_of(1), {}, keep=1)
    steps = 0
    while not intact_steps(tmp_path):
        writer.advance()
        steps += 1
        assert steps < 10_000_000
    writer.finish()


def loop_that_fails_after(step: int, folder: Path) -> None:
    with CheckpointWriter(folder, SINGLE_PROCESS) as writer:
        writer.save(step, Ingot(), journal_of(1), {}, keep=1)
        raise ZeroDivisionError


def test_an_error_of_the_loop_waits_for_it_and_stays_the_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        loop_that_fails_after(1, tmp_path)
    assert intact_steps(tmp_path) == [1]
    with files_of_at_most(4 * LARGE), pytest.raises(ZeroDivisionError) as raised:
        loop_that_fails_after(2, tmp_path)
    assert "the checkpoint after step 2 could not be written" in raised.value.__notes__[0]
    assert names(tmp_path) == ["step-000000001"]


@pytest.mark.parametrize("limit", [1000, 4 * LARGE, 50])
def test_a_disk_that_takes_no_more_is_infrastructure_names_the_file_and_leaves_the_one_before(
    tmp_path: Path, limit: int
) -> None:
    with CheckpointWriter(tmp_path, SINGLE_PROCESS) as writer:
        writer.save(1, Ingot(), journal_of(1), {}, keep=1)
    engine = Ingot(weight=torch.zeros(0 if limit == 50 else LARGE))
    writer = CheckpointWriter(tmp_path, SINGLE_PROCESS)
    with files_of_at_most(limit):
        writer.save(2, engine, journal_of(1), {}, keep=1)
        with pytest.raises(Infra) as raised:
            writer.finish()
    words = str(raised.value)
    assert f"{tmp_path / 'tmp-000000002'}/" in words
    assert "File too large" in words
    assert "MiB are free" in words
    assert names(tmp_path) == ["step-000000001"]
    assert intact_steps(tmp_path) == [1]
    # The writer can be used again.
    writer.save(3, Ingot(), journal_of(1), {}, keep=1)
    writer.finish()
    assert names(tmp_path) == ["step-000000003"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of five megabytes."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system to fill up")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_without_space_is_reported_in_numbers_before_anything_is_written(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    with CheckpointWriter(folder, SINGLE_PROCESS) as writer:
        writer.save(1, Ingot(), journal_of(1), {}, keep=1)
        (small_disk / "ballast").write_bytes(bytes(2 * 1024**2))
        # 800 KB of weights, 800 KB of one moment and the megabyte of all else: 2.5 MiB, of which 1.5 are left.
        with pytest.raises(Infra, match=r"after step 2 was not begun: it needs 2\.5 MiB, and 1\.[45] MiB are free"):
            writer.save(2, Ingot(), journal_of(1), {}, keep=1)
        assert names(folder) == ["step-000000001"]
        # What a killed process left half written counts as free too.
        (small_disk / "ballast").rename(folder / "tmp-000000002")
        (folder / "tmp-000000002").rename(small_disk / "ballast")
        (folder / "tmp-000000002").mkdir()
        (small_disk / "ballast").rename(folder / "tmp-000000002" / "ballast")
        writer.save(2, Ingot(), journal_of(1), {}, keep=1)
    assert names(folder) == ["step-000000002"]


@dataclass
class Halves:
    """An engine of two ranks, each with a part of the optimizer's state."""

    rank: int
    optimizer_shards: int = 2
    weight_shards: int = 1

    def weights(self) -> dict[str, Tensor]:
        return {"weight": torch.ones(4)}

    def begins(self) -> dict[str, tuple[int, ...]]:
        return {}

    def optimizer_state(self) -> dict[str, Tensor]:
        return {"0|exp_avg": torch.full((1000,), float(self.rank))}


def write_in_step(home: Path, rank: int) -> None:
    """Write four checkpoints as one of two ranks, the third of which the second cannot write."""
    with join_process_group(rank, 2, home / "rendezvous") as ranks:
        written: list[int] = []
        with CheckpointWriter(home / "checkpoints", ranks, written.append) as writer:
            for step in (1, 2):
                writer.save(step, Halves(rank), MetricsLog(), {}, 2)
                for _ in range(step % 2 * 3):
                    writer.advance()
        with files_of_at_most(2000) if rank == 1 else nullcontext():
            writer.save(3, Halves(rank), MetricsLog(), {}, 2)
            with pytest.raises(Infra) as raised:
                writer.finish()
        # Both are in step again, whichever failed.
        writer.save(4, Halves(rank), MetricsLog(), {}, 2)
        writer.finish()
    (home / f"rank-{rank}.json").write_text(json.dumps([written, str(raised.value)]))


def test_all_ranks_have_written_before_it_exists_and_all_stop_where_one_could_not(tmp_path: Path) -> None:
    run_ranks(2, functools.partial(write_in_step, tmp_path))
    (reported, words), (reported_too, own_words) = (
        json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)
    )
    assert reported == reported_too == [1, 2, 4]
    assert words.startswith("rank 1 could not write its share of the checkpoint after step 3")
    assert f"{tmp_path / 'checkpoints/tmp-000000003/optimizer-00001-of-00002.safetensors'}: File too large" in own_words
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["step-000000002", "step-000000004"]
    assert intact_steps(folder) == [2, 4]
    checkpoint = checkpoint_at(folder, 4, {})
    assert [checkpoint.optimizer_state(rank, 2)["0|exp_avg"].unique().tolist() for rank in range(2)] == [[0.0], [1.0]]
    digests = json.loads((checkpoint.path / "COMPLETE").read_bytes())["files"]
    assert digests == {path.name: digest_file(path) for path in checkpoint.path.iterdir() if path.name != "COMPLETE"}


def test_a_step_that_does_not_exist_or_is_damaged_is_named_with_those_that_are_whole(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, SINGLE_PROCESS) as writer:
        for step in (1, 2, 3):
            writer.save(step, Ingot(), journal_of(1), {}, keep=9)
    with (tmp_path / "step-000000002" / "weights.safetensors").open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"\x01")
    assert intact_steps(tmp_path) == [1, 3]
    with pytest.raises(IntegrityError, match=r"weights\.safetensors does not agree .* after steps \[1, 3\]"):
        checkpoint_at(tmp_path, 2, {})
    with pytest.raises(IntegrityError, match="it does not exist"):
        checkpoint_at(tmp_path, 4, {})
