"""The order of a step on a CUDA device, rehearsed by processors: the host launches ahead of what it reads."""

import functools
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from model.config.network import GPTConfig
from model.config.train import TrainerRun
from model.distributed.process_group import SINGLE_PROCESS, join_process_group
from model.engines import make_engine
from model.engines.base import Limits, Reading, StepResult
from model.engines.native import NativeEngine
from model.errors import Infra
from model.guard.decisions import read_decisions
from model.nn.factory import make_network
from model.objectives.synthetic import random_batch
from model.optim.schedules import StepSchedule
from model.train.loop import Callback, Step, runs_ahead
from model.train.trainer import train
from tests.model.forked_ranks import run_ranks
from tests.model.guard.test_rollback import GUARD, Faulty
from tests.model.train.test_networks_in_training import NETWORKS
from tests.model.train.test_validation import heldout

EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")

READING_METHODS = (
    *(Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.numpy, Tensor.nonzero),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
)
READING_OPERATIONS = {
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "bincount"),
        *("_unique2", "unique_dim", "unique_consecutive"),
    )
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""By a mask they ask for its number of ones."""


class HostReadsError(Exception):
    """Where a device would be waited for."""


class NoReads:
    """Refuses what has the host read numbers of a device, of which a processor takes the place."""

    def __init__(self) -> None:
        self._refuses = True

    @contextmanager
    def entered(self) -> Iterator[None]:
        with _Methods(self), _Operations(self):
            yield

    def reading_rows(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that may read: what it is given is on the host."""

        def read(*arguments: Any) -> Any:
            self._refuses = False
            try:
                return function(*arguments)
            finally:
                self._refuses = True

        return read

    def check(self, reads: bool, what: object) -> None:
        if reads and self._refuses:
            raise HostReadsError(str(what))


class _Methods(TorchFunctionMode):
    """Methods that read at once where a processor has the numbers, without an operation."""

    def __init__(self, refusal: NoReads) -> None:
        super().__init__()
        self._refusal = refusal

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        waits = func is Tensor.to and "cpu" in args[1:] and not kwargs.get("non_blocking")
        self._refusal.check(waits or func in READING_METHODS, func)
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Operations whose results the host needs, within others and in backward passes too."""

    def __init__(self, refusal: NoReads) -> None:
        super().__init__()
        self._refusal = refusal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        name = func.name().partition(".")[0]
        by_mask = name in INDEXING and any(one is not None and one.dtype == torch.bool for one in args[1])
        # A number is filled in where the mask is.
        by_mask = by_mask and not (len(args) > 2 and args[2].numel() == 1)
        self._refusal.check(by_mask or name in READING_OPERATIONS, name)
        return func(*args, **(kwargs or {}))


@contextmanager
def taken_for_a_device(engine: NativeEngine) -> Iterator[None]:
    """Has the engine's processor taken for a device, of which nothing may be read."""
    refusal, counts = NoReads(), engine._objective.counts
    engine._waits, engine._objective.counts = True, refusal.reading_rows(counts)
    try:
        with refusal.entered():
            yield
    finally:
        engine._objective.counts = counts


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has trainings run as on a device; returns the order of what they do, by step of a process."""
    order: list[str] = []
    begin, finish, begun, finished = NativeEngine.begin, NativeEngine.finish, itertools.count(), itertools.count()

    def watched_begin(engine: NativeEngine, *arguments: Any) -> None:
        number = next(begun)
        order.append(f"begin {number}")
        # In their first step pipeline stages of torch greet each other, and read the answer.
        with taken_for_a_device(engine) if number else nullcontext():
            begin(engine, *arguments)

    def watched_finish(engine: NativeEngine, limits: Limits) -> Reading:
        number = next(finished)
        order.append(f"finish {number}")
        with taken_for_a_device(engine):
            reading = finish(engine, limits)

        def read() -> StepResult:
            order.append(f"read {number}")
            return reading()

        return read

    monkeypatch.setattr(NativeEngine, "begin", watched_begin)
    monkeypatch.setattr(NativeEngine, "finish", watched_finish)
    device = {"device": "cuda"}
    monkeypatch.setattr("model.train.loop.runs_ahead", lambda config: runs_ahead(config.model_copy(update=device)))
    return order


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def test_a_step_begins_before_the_one_before_is_read_but_not_beside_a_checkpoint(make_run, as_on_a_device) -> None:
    train(make_run(positions=10, checkpoint_steps=3))
    assert as_on_a_device == [
        *("begin 0", "finish 0"),
        *("begin 1", "read 0", "finish 1"),
        *("begin 2", "read 1", "finish 2", "read 2"),
        *("begin 3", "finish 3"),
        *("begin 4", "read 3", "finish 4", "read 4"),
    ]


RUNS = {
    "clipped": {"clip": {"max_norm": 0.1}, "optimizer": {"l1": 1e-4, "l2": 1e-3}},
    "lengths": {"length_warmup": {"start_length": 4, "share": 0.6}, "positions": 19},
    "recomputed": {"recompute": True, "dtype": "bfloat16"},
    "validated": {"validation_steps": 2, "checkpoint_steps": 3},
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_ahead_ends_with_the_bits_of_one_that_waits(
    make_run, tmp_path: Path, request: pytest.FixtureRequest, case: str
) -> None:
    settings = {"batch_rows": 4, "positions": 20, "guard": GUARD, **RUNS[case]}
    plain, ahead = (
        with_dropout(make_run(name, **settings), heldout(tmp_path, ["a"] * 3)) for name in ("plain", "ahead")
    )
    train(plain)
    order: list[str] = request.getfixturevalue("as_on_a_device")
    train(ahead)
    assert result(ahead) == result(plain)
    for table in ("validation.arrow", "events.arrow"):
        assert rows_of(ahead, table) == rows_of(plain, table)
    assert len(order) > 3 * 4


def test_a_run_ahead_goes_back_where_one_that_waits_does(
    make_run, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def make(run: TrainerRun, *given: Any) -> Any:
        engine = make_engine(run, *given)
        return engine if read_decisions(run.out) else Faulty(engine, range(20, 23), 0)

    monkeypatch.setattr("model.train.trainer.make_engine", make)
    settings = {"positions": 60, "checkpoint_steps": 3, "guard": {**GUARD, "most_skipped": 0.3}}
    plain, ahead = (make_run(name, **settings) for name in ("plain", "ahead"))
    train(plain)
    order: list[str] = request.getfixturevalue("as_on_a_device")
    train(ahead)
    assert order[order.index("read 22") - 1] == "begin 23", "which is given up"
    assert read_decisions(ahead.out) == read_decisions(plain.out)
    assert len(read_decisions(ahead.out)) == 1
    assert result(ahead) == result(plain)
    assert rows_of(ahead, "events.arrow") == rows_of(plain, "events.arrow")


class Stopping(Callback):
    """Asks the trainer to stop while the numbers of a step are read."""

    def __init__(self, number: int) -> None:
        self._number = number

    def after_step(self, step: Step) -> None:
        if step.number == self._number:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_ahead_stops_behind_the_step_that_has_begun(make_run, request: pytest.FixtureRequest) -> None:
    plain, ahead = (make_run(name, positions=20, checkpoint_steps=50) for name in ("plain", "ahead"))
    train(plain)
    order: list[str] = request.getfixturevalue("as_on_a_device")
    with pytest.raises(Infra, match="asked to stop after step 6;"):
        train(ahead, callbacks=[Stopping(4)])
    assert order[-4:] == ["begin 5", "read 4", "finish 5", "read 5"], "and writes the checkpoint beside no gradient"
    train(ahead)
    assert result(ahead) == result(plain)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"engine": "fsdp"},
        {"tensor_parallel": 2},
        {"pipeline_parallel": 2},
    ],
    ids=str,
)
def test_ranks_ahead_end_with_the_bits_of_ranks_that_wait(
    make_run, request: pytest.FixtureRequest, settings: dict[str, Any]
) -> None:
    named = {"batch_rows": 4, "micro_batch_rows": 2, "positions": 20, "ranks": 2, "clip": {"max_norm": 0.1}}
    named |= {"guard": GUARD, **settings}
    plain, ahead = (make_run(name, **named) for name in ("plain", "ahead"))

    def work(run: TrainerRun, rank: int) -> None:
        with join_process_group(rank, 2, run.out.with_suffix(".meeting")) as ranks:
            train(run, ranks)

    run_ranks(2, functools.partial(work, plain))
    request.getfixturevalue("as_on_a_device")
    run_ranks(2, functools.partial(work, ahead))
    assert result(ahead) == result(plain)


SIZE: dict[str, Any] = {"vocab_size": 48, "context": 16, "layers": 2, "heads": 2, "width": 16}
GPTS: list[dict[str, Any]] = [
    {"z_loss": 1e-3, "qk_norm": "all"},
    {"experts": 4, "balance": 0.1},
    {"attention": "prefix", "attend_within_documents": True},
    {"dropout": 0.1, "positions": "relative"},
]


@pytest.mark.parametrize("network", [*(GPTConfig(**SIZE, **more) for more in GPTS), *NETWORKS.values()], ids=str)
def test_no_network_has_the_host_read(make_run, network: Any) -> None:
    """And one step of three, whose loss or norm is beyond the limits, changes nothing."""
    run: TrainerRun = make_run(batch_rows=4).model_copy(update={"model": network, "eos": 0})
    waiting, ahead = (NativeEngine(run, make_network(network).initialise(1), SINGLE_PROCESS) for _ in range(2))
    for step, limits in enumerate([Limits(), Limits(loss=1.0), Limits(grad_norm=1e-3), Limits()]):
        batch = random_batch(network, 4, step).rows
        results = []
        for engine, entered in ((waiting, nullcontext()), (ahead, taken_for_a_device(ahead))):
            torch.manual_seed(step)
            with entered:
                engine.begin(batch, StepSchedule(0.01, max_norm=0.5))
                reading = engine.finish(limits)
            results.append(reading())
        assert results[0] == results[1]
        assert results[0].applied == (limits == Limits())
        for name, weight in waiting.weights().items():
            assert torch.equal(weight, ahead.weights()[name])


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: float(x.sum()),
        lambda x: [1 for _ in range(3) if x[0] > 0],
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: torch.where(x > 0),
        lambda x: x.repeat(2).unique(),
    ],
)
def test_what_would_wait_for_a_device_is_refused(read: Callable[[Tensor], object]) -> None:
    with NoReads().entered(), pytest.raises(HostReadsError):
        read(torch.ones(3))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and `-m cuda`")
@pytest.mark.parametrize("network", NETWORKS.values(), ids=str)
def test_a_step_on_a_device_waits_for_nothing(make_run, network: Any) -> None:
    train_config = {"batch_rows": 4, "device": "cuda", "compile": False}
    run: TrainerRun = make_run(**train_config).model_copy(update={"model": network})
    engine = NativeEngine(run, make_network(network).initialise(1).cuda(), SINGLE_PROCESS)
    rows = random_batch(network, 4).rows
    batch = type(rows)(**{name: tensor.pin_memory() for name, tensor in vars(rows).items()})
    readings = []
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            engine.begin(batch, StepSchedule(0.01))
            readings.append(engine.finish())
        finally:
            torch.cuda.set_sync_debug_mode("default")
    losses = [reading().loss for reading in readings]
    assert losses[2] < losses[0]


def with_dropout(run: TrainerRun, heldout: Path) -> TrainerRun:
    return run.model_copy(update={"model": run.model.model_copy(update={"dropout": 0.1}), "heldout": heldout})


def rows_of(run: TrainerRun, table: str) -> list[dict[str, Any]]:
    """The rows of a table without clock times and process ids."""
    rows = pyarrow.ipc.open_file(run.out / "result" / table).read_all().to_pylist()
    for row in rows:
        row.pop("time", None)
        if "detail" in row:
            row["detail"] = {name: fact for name, fact in json.loads(row["detail"]).items() if name != "pid"}
    return rows
