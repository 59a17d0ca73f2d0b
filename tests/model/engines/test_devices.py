"""Devices: what a machine lacks is reported before the first step."""

import pytest
import torch

from model.config.train import TrainConfig
from model.data.loader import CausalBatch
from model.engines.runtime import move_batch, training_device
from model.errors import Infra, RecipeError
from model.train.trainer import train

WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


@WITHOUT_CUDA
def test_a_device_that_is_not_there_is_refused_before_the_first_step(make_run) -> None:
    run = make_run(device="cuda")
    with pytest.raises(RecipeError, match=r"(?s)train\.device is cuda, and PyTorch.*Set train\.device = cpu"):
        train(run)
    assert not (run.out / "checkpoints").exists()


def test_the_processor_is_always_there() -> None:
    assert training_device(TrainConfig()) == torch.device("cpu")


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine that says it has four CUDA devices; returns those that were chosen."""
    chosen: list[int] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda number: (9, 0))
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return chosen


def test_a_rank_has_the_device_of_its_number_on_the_machine(four_devices: list[int], monkeypatch) -> None:
    hosts = {"count": 2, "address": "10.0.0.1:29400"}
    train = TrainConfig.model_validate({"device": "cuda", "ranks": 8, "hosts": hosts})
    assert training_device(train) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert training_device(train) == torch.device("cuda", 3)
    assert four_devices == [0, 3]


def test_more_ranks_than_devices_are_refused_and_where_some_may_be_missing_only_theirs_fail(
    four_devices: list[int], monkeypatch
) -> None:
    with pytest.raises(RecipeError, match=r"puts 8 ranks on a machine, .* has 4\. Set train\.ranks = 4"):
        training_device(TrainConfig(device="cuda", ranks=8))
    fewer = TrainConfig.model_validate({"device": "cuda", "ranks": 8, "restarts": {"fewer_ranks": True}})
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert training_device(fewer) == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(Infra, match="CUDA device 4 is lost: PyTorch finds 4"):
        training_device(fewer)
    assert four_devices == [3]


def test_all_tensors_of_a_batch_move_and_on_a_processor_none_is_touched() -> None:
    batch = CausalBatch(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    assert move_batch(batch, torch.device("cpu")) is batch
    elsewhere = move_batch(batch, torch.device("meta"))
    assert {elsewhere.tokens_BL.device.type, elsewhere.loss_start_B.device.type} == {"meta"}
