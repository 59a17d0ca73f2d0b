"""Stages of a pipeline know where their values are among those of the whole network."""

import pytest

from model.config.network import BERTConfig, GPTConfig, NetworkConfig, T5Config
from model.nn.factory import activation_range_names
from model.nn.stages import ranges_before

SIZES = {"vocab_size": 40, "layers": 3, "heads": 1, "width": 16}
"""Of a T5, blocks 0 to 2 are the encoder's and 3 to 5 the decoder's."""


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (
            GPTConfig.model_validate(SIZES),
            {0: "embedding", 1: "block 1 attention logits", 2: "block 2 attention logits"},
        ),
        (BERTConfig.model_validate(SIZES), {0: "embedding", 2: "block 2 attention logits"}),
        (
            T5Config.model_validate(SIZES),
            {
                0: "encoder embedding",
                2: "encoder block 2 attention logits",
                3: "decoder embedding",
                4: "decoder block 1 attention logits",
            },
        ),
    ],
)
def test_the_first_value_of_a_stage_follows_those_of_the_blocks_before(
    config: NetworkConfig, first: dict[int, str]
) -> None:
    names = activation_range_names(config)
    assert {block: names[ranges_before(config, block)] for block in first} == first
