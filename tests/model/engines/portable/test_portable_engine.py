"""The portable engine: its tree, the units of ranks, and what it shares with the native one."""

import functools
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config.network import BERTConfig, GPTConfig, T5Config
from model.data.row_format import NO_LOSS
from model.distributed.process_group import Ranks, join_process_group
from model.engines.portable.engine import TreeSum, units_of_rank
from model.errors import RecipeError
from model.objectives.base import slice_batch
from model.objectives.synthetic import random_batch
from model.optim.schedules import StepSchedule
from tests.model.forked_ranks import run_ranks

SIZE: dict[str, Any] = {"vocab_size": 64, "context": 32, "layers": 2, "heads": 2, "width": 32}
NETWORKS = [GPTConfig(**SIZE), BERTConfig(**SIZE), T5Config(**SIZE)]
SCHEDULE = StepSchedule(lr=1e-3)
PAD = 3


def tree(leaves: list[float]) -> torch.Tensor:
    """The sum in float32, by the definition: the left half is the largest power of two below the number of leaves."""
    if len(leaves) == 1:
        return torch.tensor(leaves)
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return tree(leaves[:half]) + tree(leaves[half:])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 8, 13])
def test_leaves_are_added_as_a_tree(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    leaves = (torch.randn(count, generator=draw) * 1e3 ** torch.randn(count, generator=draw)).tolist()
    found = TreeSum()
    for leaf in leaves:
        found.add([torch.tensor([leaf])])
    assert torch.equal(found.total()[0], tree(leaves))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 16, 22])
def test_ranks_have_aligned_subtrees_of_all_rows(rows: int, size: int) -> None:
    found = [units_of_rank(rows, 2, Ranks(rank, size)) for rank in range(size)]
    units = [unit for of_rank, _ in found for unit in of_rank]
    assert units[0][0] == 0
    assert units[-1][1] == rows
    assert all(one[1] == other[0] for one, other in pairwise(units))
    counts = [len(of_rank) for of_rank, _ in found]
    holders = found[0][1]
    assert all(counts[:holders])
    assert not any(counts[holders:])
    assert len(set(counts[: holders - 1])) <= 1
    assert counts[0] & (counts[0] - 1) == 0 or holders == 1


def add_over_ranks(folder: Path, rank: int) -> None:
    with join_process_group(rank, 3, folder / "meet") as ranks:
        vector = torch.tensor([[1.0, 1e8, 1.0, 3.0], [1e8, 1.0, 2.0, 4.0], [-1e8, -1e8, 4.0, 5.0]][rank])
        found = [ranks.tree_sum(vector, holders).tolist() for holders in (3, 2, 1)]
        (folder / f"{rank}.json").write_text(json.dumps(found))


def test_vectors_of_ranks_are_added_as_a_tree(tmp_path: Path) -> None:
    run_ranks(3, functools.partial(add_over_ranks, tmp_path))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    # Float32 has no 1e8 + 1, so that (1 + 1e8) - 1e8 is 0.
    assert found == [[[0.0, 0.0, 7.0, 12.0], [1e8, 1e8, 3.0, 7.0], [1.0, 1e8, 1.0, 3.0]]] * 3


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: config.architecture)
def test_a_step_is_the_native_engines_but_for_rounding(portable_engine: Any, config: Any) -> None:
    batch = random_batch(config, 6).rows
    engines = [portable_engine(config, batch_rows=6, numerics=kind) for kind in ("portable", "native")]
    for _ in range(2):
        portable, native = (engine.step(batch, SCHEDULE) for engine in engines)
        assert portable.loss == pytest.approx(native.loss, rel=1e-5)
        assert portable.grad_norm == pytest.approx(native.grad_norm, rel=1e-4)
        assert portable.accuracies == native.accuracies
        assert portable.largest_activations == pytest.approx(native.largest_activations, rel=1e-4)
    for name, weight in engines[0].weights().items():
        torch.testing.assert_close(weight, engines[1].weights()[name], rtol=0, atol=3e-4)
    held_out = [engine.held_out(batch) for engine in engines]
    assert held_out[0] == (pytest.approx(held_out[1][0], rel=1e-5), held_out[1][1])


@pytest.mark.parametrize("settings", [{"micro_batch_rows": 2}, {"threads": 4}, {"micro_batch_rows": 1, "threads": 2}])
def test_layout_changes_no_bit(portable_engine: Any, settings: dict[str, int]) -> None:
    batch = random_batch(NETWORKS[0], 8).rows
    one, other = (portable_engine(NETWORKS[0], **{"batch_rows": 8, **more}) for more in ({}, settings))
    assert one.step(batch, SCHEDULE) == other.step(batch, SCHEDULE)
    assert all(torch.equal(weight, other.weights()[name]) for name, weight in one.weights().items())


def test_units_are_rows_in_order(portable_engine: Any) -> None:
    """The gradient of two units is the sum of the gradients of each, as a tree of two leaves adds them."""
    batch = random_batch(NETWORKS[0], 4).rows
    batch.tokens_BL[batch.tokens_BL == PAD] += 1
    engine = portable_engine(NETWORKS[0], batch_rows=4)
    gradients = []
    for rows in (batch, slice_batch(batch, 0, 2), slice_batch(batch, 2, 4)):
        engine._pass_batch(rows, SCHEDULE, 1.0)
        gradients.append([parameter.grad.clone() for parameter in engine.network.parameters()])
        engine.optimizer.zero_grad()
    # Each half has half of the targets, a power of two, so that its gradient is exactly twice its part of the mean.
    for whole, first, second in zip(*gradients, strict=True):
        assert torch.equal(whole, first / 2 + second / 2)


def test_other_kernels_than_those_of_avx2_are_refused(portable_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    with pytest.raises(RecipeError, match="kernels for AVX2, and this process has those for AVX512"):
        portable_engine(NETWORKS[0])


def test_rows_without_targets_change_no_gradient(portable_engine: Any) -> None:
    config = NETWORKS[1]
    engine = portable_engine(config, batch_rows=4)
    batch = random_batch(config, 4).rows
    batch.targets_BM[2:], batch.is_next_B[2:] = NO_LOSS, NO_LOSS
    first = engine.step(slice_batch(batch, 0, 2), StepSchedule(lr=0.0))
    assert engine.step(batch, StepSchedule(lr=0.0)).loss == first.loss
