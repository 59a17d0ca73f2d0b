"""Training on a CUDA device: losses are the processor's, and a run that was paused ends with the same bytes."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pytest
import torch

from model.config.network import GPTConfig
from model.config.train import TrainerRun
from model.data.loader import MaskedBatch, SpanBatch
from model.distributed.process_group import SINGLE_PROCESS
from model.engines.native import NativeEngine
from model.errors import Paused
from model.nn.factory import make_network
from model.objectives.synthetic import random_batch
from model.optim.schedules import StepSchedule
from model.train.trainer import train
from tests.model.train.test_ahead import EXACT_FILES
from tests.model.train.test_networks_in_training import NETWORKS
from tests.model.train.test_validation import heldout

pytestmark = pytest.mark.usefixtures("cuda")

MORE = {
    "relative": GPTConfig(vocab_size=48, context=16, layers=2, heads=2, width=16, positions="relative"),
    "prefix within documents": GPTConfig(
        vocab_size=48, context=16, layers=2, heads=2, width=16, attention="prefix", attend_within_documents=True
    ),
    "window": GPTConfig(vocab_size=48, context=16, layers=2, heads=2, width=16, window=5),
    "z-loss": GPTConfig(vocab_size=48, context=16, layers=2, heads=2, width=16, z_loss=1e-3),
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in (*NETWORKS, *MORE)),
        *((name, {"recompute": True, "optimizer": {"kind": "lamb"}}) for name in NETWORKS),
    ],
)
def test_every_network_computes_the_processors_losses(make_run, name: str, settings: dict[str, Any]) -> None:
    network = {**NETWORKS, **MORE}[name]
    found = []
    for device in ("cpu", "cuda"):
        run = make_run(batch_rows=4, device=device, compile=False, dtype="float32", **settings)
        run = run.model_copy(update={"model": network, "eos": 0})
        engine = NativeEngine(run, make_network(network).initialise(1).to(device), SINGLE_PROCESS)
        batches = [random_batch(network, 4, step).rows for step in range(4)]
        for batch in batches[2:]:
            if isinstance(batch, MaskedBatch | SpanBatch):
                batch.is_token_BT[1, 5:] = False
        found.append([engine.step(batch, StepSchedule(0.01, max_norm=0.5)).loss for batch in batches])
        found[-1].append(engine.held_out(random_batch(network, 4, 9).rows)[0])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_whole_training_has_the_processors_losses_and_a_paused_one_its_own_bytes(
    make_run: Callable[..., TrainerRun], tmp_path: Path
) -> None:
    settings = {"batch_rows": 4, "positions": 40, "validation_steps": 4, "checkpoint_steps": 3, "compile": False}
    held = heldout(tmp_path, ["a"] * 3)

    def run(name: str, **more: object) -> TrainerRun:
        return make_run(name, **{**settings, **more}).model_copy(update={"heldout": held})

    device = {"device": "cuda", "dtype": "float32"}
    runs = [run("processor"), run("whole", **device), run("paused", **device)]
    for one in runs[:2]:
        train(one)
    with suppress(Paused):
        train(run("paused", **device, pause_share=0.5))
    assert not (runs[2].out / "result").exists()
    train(runs[2])
    bytes_of = [{file: (one.out / "result" / file).read_bytes() for file in EXACT_FILES} for one in runs[1:]]
    assert bytes_of[0] == bytes_of[1]
    for table, column in (("metrics.arrow", "loss"), ("validation.arrow", "nats_per_token")):
        losses = [pyarrow.ipc.open_file(one.out / "result" / table).read_all()[column].to_pylist() for one in runs[:2]]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
        assert len(losses[0]) > 1


def test_bfloat16_trains_float32_weights(make_run: Callable[..., TrainerRun]) -> None:
    run = make_run(batch_rows=4, positions=40, device="cuda", compile=False)
    assert run.train.dtype == "bfloat16"
    result = train(run)
    losses = pyarrow.ipc.open_file(result / "metrics.arrow").read_all()["loss"].to_pylist()
    assert losses[-1] < losses[0]
    assert torch.isfinite(torch.tensor(losses)).all()
