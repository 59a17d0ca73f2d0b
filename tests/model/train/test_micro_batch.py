"""Automatic micro-batch sizes: the largest that fits, and no trial of one that does not."""

import io
import json
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.checkpoint.run_folder import MICRO_BATCH
from model.checksummed_json import write_sealed
from model.config.machine import peak_bytes, reset_peak, resident_bytes
from model.config.options import OptimizerConfig
from model.config.train import TrainConfig, TrainerRun
from model.digests import digest_bytes
from model.errors import RecipeError
from model.train.micro_batch import Trial, bytes_of_step, divisors, largest_that_fits
from model.train.resume import deciding_settings
from model.train.trainer import train
from tests.model.pretended_cuda import pretended_cuda


def linear(idle: int, row: int, tried: list[int]) -> Callable[[int], Trial]:
    def trial(rows: int) -> Trial:
        tried.append(rows)
        return Trial(rows, 100 * rows, idle + row * rows, idle)

    return trial


@pytest.mark.parametrize(
    ("limit", "rows"),
    [(110, [1]), (129, [1, 2]), (130, [1, 2, 3]), (219, [1, 2, 3, 4, 6]), (10**6, [1, 2, 3, 4, 6, 12])],
)
def test_sizes_are_tried_up_to_the_largest_that_fits(limit: int, rows: list[int]) -> None:
    assert [trial.rows for trial in largest_that_fits(divisors(12), limit, linear(100, 10, []))] == rows


def test_where_not_one_row_fits_it_is_reported_with_the_cure() -> None:
    with pytest.raises(RecipeError, match="one row needs 3 MiB, and each rank may use 2 MiB"):
        largest_that_fits([1, 2], 2 << 20, linear(1 << 20, 2 << 20, []))


@given(st.integers(1, 60), st.integers(0, 1000), st.integers(1, 50), st.integers(100, 3000))
def test_nothing_that_would_not_fit_is_tried(share: int, idle: int, row: int, limit: int) -> None:
    tried: list[int] = []
    try:
        found = largest_that_fits(divisors(share), limit, linear(idle, row, tried))[-1].rows
    except RecipeError:
        assert tried == [1]
        assert idle + row > limit
        return
    assert max(tried) == found == max(rows for rows in divisors(share) if idle + row * rows <= limit)


def test_peaks_are_seen_and_forgotten() -> None:
    block = bytearray(200 << 20)
    block[::4096] = b"x" * len(block[::4096])
    # In this order: between two readings the process may take a page.
    resident = resident_bytes()
    high = peak_bytes()
    assert high >= resident >= 200 << 20
    del block
    reset_peak()
    assert peak_bytes() < high - (100 << 20)


def test_the_size_that_was_found_is_reported_kept_and_used(make_run) -> None:
    run = make_run(batch_rows=6, positions=24, micro_batch_rows="auto")
    messages = io.StringIO()
    train(run, messages=messages)
    reported = [json.loads(line) for line in messages.getvalue().splitlines()]
    (event,) = [message for message in reported if message.get("event") == "micro_batch_rows"]
    assert event["rows"] == 6
    assert [part.partition(":")[0] for part in event["tried"].split("; ")] == ["1", "2", "3", "6"]
    chosen = json.loads((run.out / "result" / "model.json").read_text())["train"]["micro_batch_rows"]
    assert chosen == 6
    same = make_run("same", batch_rows=6, positions=24, micro_batch_rows=6)
    train(same)
    weights = [(one.out / "result" / "model.safetensors").read_bytes() for one in (run, same)]
    assert weights[0] == weights[1]


def test_more_rows_than_order_has_can_be_tried(make_run) -> None:
    run = make_run(batch_rows=8, positions=3, micro_batch_rows="auto")
    train(run)
    assert json.loads((run.out / MICRO_BATCH).read_text())["rows"] == 8


def test_a_run_goes_on_with_the_size_that_it_found(make_run) -> None:
    run: TrainerRun = make_run(batch_rows=6, positions=24, micro_batch_rows="auto")
    run.out.mkdir(parents=True)
    # Found where less memory was free.
    decided_for = digest_bytes(deciding_settings(run).encode())
    write_sealed(run.out / MICRO_BATCH, {"rows": 2, "decided_for": decided_for})
    train(run)
    assert json.loads((run.out / "result" / "model.json").read_text())["train"]["micro_batch_rows"] == 2


@pytest.mark.parametrize("before", [{"rows": 2}, {"rows": 5, "decided_for": "0" * 32}])
def test_a_size_that_was_found_for_other_settings_is_not_believed(make_run, before: dict[str, object]) -> None:
    run: TrainerRun = make_run(batch_rows=6, positions=24, micro_batch_rows="auto")
    run.out.mkdir(parents=True)
    write_sealed(run.out / MICRO_BATCH, {name: value for name, value in before.items() if name != "digest"})
    messages = io.StringIO()
    train(run, messages=messages)
    reported = [json.loads(line) for line in messages.getvalue().splitlines()]
    (remark,) = [message for message in reported if message.get("event") == "micro_batch_rows_anew"]
    assert (remark["rows"], remark["because"]) == (before["rows"], "it was found for other settings")
    assert json.loads((run.out / "result" / "model.json").read_text())["train"]["micro_batch_rows"] == 6


def test_each_setting_that_takes_other_memory_asks_for_another_decision(make_run) -> None:
    run: TrainerRun = make_run(micro_batch_rows="auto")
    changes = ({"recompute": True}, {"optimizer": OptimizerConfig(kind="sgd")}, {"dtype": "bfloat16"}, {"ranks": 2})
    others = [run.model_copy(update={"train": run.train.model_copy(update=change)}) for change in changes]
    others.append(run.model_copy(update={"model": run.model.model_copy(update={"layers": 3})}))
    assert len({deciding_settings(one) for one in (run, *others)}) == 1 + len(others)
    elsewhere = run.model_copy(update={"train": run.train.model_copy(update={"checkpoint_steps": 9})})
    assert deciding_settings(elsewhere) == deciding_settings(run)


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        # Moments, and copies of them and the weights.
        ({}, 2 + 3),
        ({"optimizer": {"kind": "sgd"}}, 1 + 2),
        # And the vector in which gradients travel; one rank of two has the copies, so half of them counts for each.
        ({"ranks": 2}, 2 + 1 + 1.5),
        ({"ranks": 2, "optimizer": {"kind": "sgd"}}, 1 + 1 + 1),
        # Copies of a device's tensors are in the machine's memory.
        ({"device": "cuda"}, 2),
    ],
)
def test_moments_copies_and_the_vector_that_ranks_exchange_count(make_run, settings: dict, vectors: float) -> None:
    assert bytes_of_step(make_run(micro_batch_rows="auto", **settings), 1000) == 4000 * vectors


def test_a_size_is_found_by_the_memory_of_a_device(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 MiB it may use 8, although the limit is 20. Six rows should need 7 after two need 3, and need 9."""
    settings = {"batch_rows": 6, "positions": 24, "micro_batch_rows": "auto", "memory_limit": 20 << 20}
    run: TrainerRun = make_run(**settings, device="cuda", compile=False)
    peaks = [mib << 20 for mib in (2, 3, 9)]
    messages = io.StringIO()
    with pretended_cuda():
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: mock.Mock(total_memory=10 << 20))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1 << 20)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: peaks.pop(0))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
        train(run, messages=messages)
    assert not peaks
    assert json.loads((run.out / "result" / "model.json").read_text())["train"]["micro_batch_rows"] == 2
    assert '"limit_mib": 8' in messages.getvalue()


def test_a_device_that_runs_out_of_memory_had_too_many_rows(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    run: TrainerRun = make_run(batch_rows=6, positions=24, micro_batch_rows="auto", device="cuda", compile=False)

    def full(*_: object) -> float:
        raise torch.OutOfMemoryError

    with pretended_cuda():
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: mock.Mock(total_memory=10 << 20))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1 << 20)
        monkeypatch.setattr("model.train.micro_batch._tokens_per_second", full)
        with pytest.raises(RecipeError, match="each rank may use 8 MiB"):
            train(run)


def test_a_limit_below_one_row_ends_the_run_before_its_first_step(make_run) -> None:
    run = make_run(micro_batch_rows="auto", memory_limit=1 << 20)
    with pytest.raises(RecipeError, match=r"Set train\.recompute = true"):
        train(run)
    assert not (run.out / "checkpoints").exists()


def test_a_pipeline_names_its_size() -> None:
    with pytest.raises(ValidationError, match="Set a number"):
        TrainConfig(micro_batch_rows="auto", pipeline_parallel=2, ranks=2)
    assert TrainConfig(micro_batch_rows="auto", ranks=2, batch_rows=32).rows_at_once == 16
    assert TrainConfig(micro_batch_rows=8, ranks=4, batch_rows=16).rows_at_once == 4
