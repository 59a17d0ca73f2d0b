"""Peak FLOP/s of devices from data sheets, and none for CPUs, so that no utilization exceeds 1."""

from collections.abc import Callable

import pyarrow.ipc
import pytest
import torch

from model.config.train import TrainConfig, TrainerRun
from model.engines.runtime import peak_flops
from model.train.trainer import train


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_a_processor_no_peak_is_known(dtype: str) -> None:
    assert peak_flops(TrainConfig.model_validate({"dtype": dtype}), torch.device("cpu")) is None


def test_of_a_device_its_data_sheet_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    device = torch.device("cuda", 0)
    assert peak_flops(TrainConfig(device="cuda", dtype="bfloat16"), device) == 989e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another")
    assert peak_flops(TrainConfig(device="cuda"), device) is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
    ],
)
def test_a_board_slower_than_the_data_sheet_has_no_share_of_its_peak(
    monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(TrainConfig(device="cuda", dtype="bfloat16"), torch.device("cuda", 0)) == peak


def test_steps_on_a_processor_say_their_speed_and_no_share(make_run: Callable[..., TrainerRun]) -> None:
    perf = pyarrow.ipc.open_file(train(make_run("out")) / "perf.arrow").read_all().to_pylist()
    assert perf
    assert all(row["tokens_s"] > 0 and row["mfu"] is None for row in perf)
