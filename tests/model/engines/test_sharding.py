"""Which part of the model a rank holds, and the order of turns of pipeline stages."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.engines.pipeline_parallel import block_count, one_forward_one_backward, stage_blocks, stages_holding
from model.engines.tensor_parallel import WeightSharding, shard_bounds, sharding_of
from model.nn.factory import make_network

NETWORKS: list[NetworkConfig] = [
    GPTConfig(layers=3),
    GPTConfig(layers=3, tied_head=False, positions="relative", activation="swiglu"),
    GPTConfig(layers=3, kv_heads=2, qk_norm="head", activation="swiglu", biases=False),
    BERTConfig(layers=3),
    T5Config(layers=2, activation="geglu_tanh"),
]


@given(
    length=st.integers(1, 20),
    width=st.integers(1, 20),
    size=st.integers(1, 5),
    d=st.sampled_from([0, 1]),
)
def test_parts_joined_are_the_whole_and_each_number_has_one_home(length: int, width: int, size: int, d: int) -> None:
    whole = torch.arange(length * width).reshape(length, width)
    cut = WeightSharding(d)
    parts = [cut.part(whole, rank, size) for rank in range(size)]
    assert sum(part.numel() for part in parts if part is not None) == whole.numel()
    assert torch.equal(cut.join([part for part in parts if part is not None]), whole)


@pytest.mark.parametrize("projection", ["query", "key", "value"])
def test_the_second_of_two_ranks_has_the_second_heads(projection: str) -> None:
    part = sharding_of(f"blocks.0.attention_{projection}.weight", GPTConfig()).part(torch.arange(4)[:, None], 1, 2)
    assert part is not None
    assert part.flatten().tolist() == [2, 3]


def test_seven_columns_are_shared_by_two() -> None:
    assert [shard_bounds(7, rank, 2) for rank in range(2)] == [(0, 3), (3, 7)]


def test_a_bias_behind_a_sum_is_held_once() -> None:
    cut = sharding_of("blocks.0.mlp_out.bias", GPTConfig())
    assert cut.part(torch.ones(3), 0, 2) is not None
    assert cut.part(torch.ones(3), 1, 2) is None


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: config.architecture)
def test_two_ranks_hold_half_of_every_matrix_of_the_blocks(config: NetworkConfig) -> None:
    with torch.device("meta"):
        network = make_network(config)
    for name, weight in network.named_parameters():
        part = sharding_of(name, config).part(weight, 0, 2)
        assert part is not None
        if "blocks" in name and weight.dim() == 2:
            assert 2 * part.numel() == weight.numel(), name


def test_blocks_left_over_are_the_first_stages() -> None:
    assert [list(stage_blocks(stage, 3, 8)) for stage in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: config.architecture)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_weight_has_a_stage_and_every_stage_a_block(config: NetworkConfig, stages: int) -> None:
    with torch.device("meta"):
        network = make_network(config)
    homes = {name: stages_holding(name, config, stages) for name, _ in network.named_parameters()}
    assert all(home and home == sorted(set(home)) and home[-1] < stages for home in homes.values())
    assert {home[0] for name, home in homes.items() if "blocks" in name} == set(range(stages))
    assert block_count(config) >= stages


def test_a_head_that_is_the_embedding_is_held_where_it_is_read() -> None:
    assert stages_holding("embedding.weight", GPTConfig(layers=3), 3) == [0, 2]
    assert stages_holding("embedding.weight", GPTConfig(layers=3, tied_head=False), 3) == [0]
    assert stages_holding("embedding.weight", T5Config(layers=3), 3) == [0, 1, 2]


def test_the_turns_of_three_micro_batches_in_two_stages() -> None:
    turns = [[f"{turn[0]}{number}" for turn, number in one_forward_one_backward(3, stage, 2)] for stage in range(2)]
    assert turns == [["f0", "f1", "b0", "f2", "b1", "b2"], ["f0", "b0", "f1", "b1", "f2", "b2"]]


@given(micro_batches=st.integers(1, 12), stages=st.integers(1, 6))
def test_no_stage_waits_for_ever_and_holds_more_than_the_stages_behind_it(micro_batches: int, stages: int) -> None:
    """Played with messages: a turn is taken when its input has come."""
    turns = [list(one_forward_one_backward(micro_batches, stage, stages)) for stage in range(stages)]
    done: set[tuple[int, str, int]] = set()
    held = [0] * stages
    while any(turns):
        able = [
            stage
            for stage in range(stages)
            if turns[stage]
            for turn, number in turns[stage][:1]
            if (turn == "forward" and (stage == 0 or (stage - 1, turn, number) in done))
            or (turn == "backward" and (stage == stages - 1 or (stage + 1, turn, number) in done))
        ]
        assert able, "locked"
        for stage in able:
            turn, number = turns[stage].pop(0)
            done.add((stage, turn, number))
            held[stage] += 1 if turn == "forward" else -1
            assert held[stage] <= stages - stage
    assert len(done) == 2 * micro_batches * stages
