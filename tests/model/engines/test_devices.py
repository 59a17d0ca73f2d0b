"""Devices: what a machine lacks is reported before the first step."""

import subprocess
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from model.config.train import TrainConfig
from model.data.loader import CausalBatch
from model.engines.runtime import move_batch, training_device
from model.errors import RecipeError

WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


@WITHOUT_CUDA
def test_a_device_that_is_not_there_is_refused_before_the_first_step(make_run, launch) -> None:
    run = make_run(device="cuda")
    trainer: subprocess.Popen[str] = launch(run)
    _, err = trainer.communicate(timeout=60)
    assert trainer.returncode == RecipeError.exit_code
    assert "train.device is cuda, and PyTorch" in err
    assert "Set train.device = cpu" in err
    assert not (run.out / "checkpoints").exists()


def test_the_processor_is_always_there() -> None:
    assert training_device(TrainConfig(), rank=0) == torch.device("cpu")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"micro_batch_rows": "auto"}, "memory of processes, not of devices"),
    ],
)
def test_what_cuda_cannot_do_is_refused_in_the_recipe(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig(device="cuda", **settings)


def test_all_tensors_of_a_batch_move_and_on_a_processor_none_is_touched() -> None:
    batch = CausalBatch(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    assert move_batch(batch, torch.device("cpu")) is batch
    elsewhere = move_batch(batch, torch.device("meta"))
    assert {elsewhere.tokens_BL.device.type, elsewhere.loss_start_B.device.type} == {"meta"}
