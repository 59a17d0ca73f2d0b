"""Engines with portable numerics, in this process, whose kernels need not be those of AVX2."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.config.network import NetworkConfig
from model.config.train import TrainConfig, TrainerRun
from model.distributed.process_group import SINGLE_PROCESS
from model.engines import make_engine
from model.engines.base import Engine
from model.nn.factory import make_network


@pytest.fixture
def portable_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Return an engine around a network with first weights; keywords are TrainConfig's."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")

    def make(config: NetworkConfig, **settings: object) -> Engine:
        train = TrainConfig.model_validate({"numerics": "portable", **settings})
        paths = {"sequences": (), "order": Path("order"), "out": Path("out")}
        run = TrainerRun(**paths, pad=3, eos=0, tokenizer_digest="tokenizer", model=config, train=train)
        return make_engine(run, make_network(config).initialise(1), SINGLE_PROCESS)

    return make
