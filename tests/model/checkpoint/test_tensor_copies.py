"""Copies of tensors, and files equal to those of the safetensors library."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save

from model.checkpoint.writer import TensorCopies, safetensors_blocks
from model.digests import digest_file
from model.files import write_synced

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda name: "_" not in name),
    st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3)),
    max_size=6,
)


def filled(kind: torch.dtype, shape: list[int], offset: int = 0) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) + offset).reshape(shape).to(kind)


@given(TENSORS)
def test_a_file_is_the_librarys_byte_for_byte(kinds: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = {name: filled(kind, shape) for name, (kind, shape) in kinds.items()}
    written = b"".join(bytes(memoryview(block)) for block in safetensors_blocks(tensors))
    assert written == save(tensors)
    assert {name: tensor.tolist() for name, tensor in load(written).items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }


def test_it_is_read_from_disk_and_its_digest_is_that_of_the_file(tmp_path: Path) -> None:
    # Beyond one block, and an empty tensor, which has no bytes to look at.
    tensors = {"large": filled(torch.float32, [1_500_000]), "none": torch.zeros(0, 3), "step": torch.tensor(7.0)}
    digest = write_synced(tmp_path / "file", safetensors_blocks(tensors))
    assert digest == digest_file(tmp_path / "file")
    back = load_file(tmp_path / "file")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_copies_keep_what_was_and_their_memory() -> None:
    copies, tensors = TensorCopies(), {"weight": torch.arange(4.0).reshape(2, 2).T, "step": torch.tensor(3.0)}
    taken = copies.copy(tensors)
    places = {name: copy.data_ptr() for name, copy in taken.items()}
    tensors["weight"].add_(1)
    assert taken["weight"].tolist() == [[0, 2], [1, 3]]
    assert taken["weight"].is_contiguous()
    again = copies.copy(tensors)
    assert again["weight"].tolist() == [[1, 3], [2, 4]]
    assert {name: copy.data_ptr() for name, copy in again.items()} == places
    larger = copies.copy({"weight": torch.zeros(5)})
    assert {name: copy.tolist() for name, copy in larger.items()} == {"weight": [0.0] * 5}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and `-m cuda`")
def test_copies_of_a_device_are_pinned_and_there_when_it_goes_on() -> None:
    weight = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    taken = TensorCopies().copy({"weight": weight})["weight"]
    weight.zero_()
    assert taken.is_pinned()
    assert torch.equal(taken, torch.arange(1 << 20, dtype=torch.float32))
