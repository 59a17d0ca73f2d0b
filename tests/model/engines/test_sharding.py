"""Which part of the model a rank holds."""

import pytest
import torch

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.config.train import TrainConfig
from model.engines.layout import Place
from model.nn.factory import make_network
from model.nn.stages import block_count, stage_blocks, stages_holding

NETWORKS: list[NetworkConfig] = [
    GPTConfig(layers=3),
    GPTConfig(layers=3, tied_head=False, positions="relative", activation="swiglu"),
    GPTConfig(layers=3, kv_heads=2, qk_norm="head", activation="swiglu", biases=False),
    BERTConfig(layers=3),
    T5Config(layers=2, activation="geglu_tanh"),
]


PAIR = TrainConfig(ranks=2, tensor_parallel=2)


@pytest.mark.parametrize("projection", ["query", "key", "value"])
def test_the_second_of_two_ranks_has_the_second_heads(projection: str) -> None:
    name = f"blocks.0.attention_{projection}.weight"
    assert Place(PAIR, 1).part(name, (4, 3)) == (slice(2, 4), slice(0, 3))
    assert Place(PAIR, 1).part("blocks.0.attention_out.weight", (3, 4)) == (slice(0, 3), slice(2, 4))


def test_seven_rows_are_divided_among_two() -> None:
    assert [Place(PAIR, rank).part("embedding.weight", (7, 1))[0] for rank in (0, 1)] == [slice(0, 4), slice(4, 7)]


def test_rows_of_a_tensor_rank_s_part_are_divided_among_data_ranks() -> None:
    train = TrainConfig(engine="fsdp", ranks=4, tensor_parallel=2)
    parts = [Place(train, rank).part("head.weight", (10, 1))[0] for rank in range(4)]
    assert parts == [slice(0, 3), slice(5, 8), slice(3, 5), slice(8, 10)]


def test_a_bias_behind_a_sum_is_written_once() -> None:
    name, config = "blocks.0.mlp_out.bias", GPTConfig()
    assert [Place(PAIR, rank).part(name, (3,)) for rank in (0, 1)] == [(slice(0, 3),)] * 2
    assert [Place(PAIR, rank).is_writer(name, config) for rank in (0, 1)] == [True, False]


def test_of_two_copies_the_first_writes() -> None:
    train = TrainConfig(ranks=4, tensor_parallel=2)
    assert [Place(train, rank).is_writer("head.weight", GPTConfig()) for rank in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: config.architecture)
def test_two_ranks_hold_half_of_every_matrix_of_the_blocks(config: NetworkConfig) -> None:
    with torch.device("meta"):
        network = make_network(config)
    for name, weight in network.named_parameters():
        box = Place(PAIR, 0).part(name, weight.shape)
        if "blocks" in name and weight.dim() == 2:
            assert 2 * weight[box].numel() == weight.numel(), name


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
