"""What devices could do at best, and the share of it that a training's steps reach."""

from collections.abc import Callable

import pyarrow.ipc
import torch

from model.config import TrainConfig, TrainerRun
from model.networks import flops_per_token
from model.peak import peak_flops
from model.training import train


def test_a_processor_is_measured() -> None:
    """Any processor of this century multiplies between a hundred million and ten million million numbers a second."""
    peak = peak_flops(TrainConfig(), torch.device("cpu"))
    assert peak is not None
    assert 1e8 < peak < 1e14


def test_steps_tell_their_share_of_it(make_run: Callable[..., TrainerRun]) -> None:
    run = make_run("out")
    perf = pyarrow.ipc.open_file(train(run) / "perf.arrow").read_all().to_pylist()
    peaks = [row["tokens_s"] * flops_per_token(run.model) / row["mfu"] for row in perf]
    assert max(peaks) / min(peaks) < 1.0001, "one measurement for all steps of a start"
    assert all(0 < row["mfu"] < 1 for row in perf)
