"""A machine that computes wrongly or lacks resources is found, and a healthy one is not suspected."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.launch.diagnostics import LARGEST, SIZE, find_shortage, find_wrong_product, private_memory

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_right_products_are_believed(dtype: torch.dtype) -> None:
    assert SIZE * LARGEST**2 < 2**24, "or float32 would round"
    assert find_wrong_product(CPU, dtype) is None


@pytest.mark.parametrize("change", [1.0, 0.5, -3e6, float("nan"), float("inf")])
def test_one_wrong_element_of_one_product_is_found_and_named(change: float) -> None:
    calls = [0]

    def wrong_once(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = left @ right
        calls[0] += 1
        if calls[0] == 3:
            product[5, 700] += change
        return product

    words = find_wrong_product(CPU, torch.float32, wrong_once)
    assert words is not None
    assert "wrong product of matrices in torch.float32" in words
    if change in (1.0, -3e6):
        assert "row 5, column 700" in words


def test_bits_that_cancel_in_a_row_are_found_by_columns() -> None:
    def wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = left @ right
        product[3, 1] += 2
        product[3, 2] -= 2
        return product

    assert find_wrong_product(CPU, torch.float32, wrong) is not None


def test_sums_in_another_order_are_no_fault() -> None:
    in_double = find_wrong_product(CPU, torch.float32, lambda left, right: (left.double() @ right.double()).float())
    assert in_double is None


def test_no_space_for_a_checkpoint_or_for_ranks_is_reported(tmp_path: Path) -> None:
    assert find_shortage(tmp_path, memory_needed=1) is None
    checkpoint = tmp_path / "checkpoints" / "step-000000003"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "weights.safetensors").open("wb") as sparse:
        sparse.truncate(1 << 42)
    assert "the disk has" in (find_shortage(tmp_path, memory_needed=1) or "")
    left_over = tmp_path / "checkpoints" / "tmp-000000006"
    left_over.mkdir()
    with (left_over / "weights.safetensors").open("wb") as sparse:
        sparse.truncate(1 << 42)
    assert find_shortage(tmp_path, memory_needed=1) is None, "what a failed write left is removed before the next one"


def test_memory_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert "MiB of memory are free, and the ranks used" in (find_shortage(tmp_path, memory_needed=1 << 50) or "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system has memory in /proc")
def test_memory_of_a_process_is_what_it_shares_with_no_other() -> None:
    code = "import sys; held = bytearray(b'x') * (64 << 20); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert 64 << 20 <= private_memory(process.pid) < 96 << 20
    process.communicate(b"")
    assert private_memory(process.pid) == 0
