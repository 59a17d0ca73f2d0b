"""Vocabulary, network and budget of a new recipe, from the amount of text."""

import pytest

from flows.inspection.sizes import NETWORKS, bytes_per_token, sizes, vocabulary_of
from model.config.network import GPTConfig


@pytest.mark.parametrize(
    ("text_bytes", "vocab_size", "layers", "width", "tokens", "budget_tokens"),
    [
        # 9 bits / 3.5 are 2.571 bytes a token; four readings of 38,889 tokens
        (1e5, 512, 2, 64, 38_889, 155_556),
        # 20 tokens for each of 3 (4 x 96^2 + 3 x 96 x 256) + 512 x 96 parameters
        (1e7, 512, 3, 96, 3_888_889, 20 * 380_928),
        (1e8, 2048, 6, 256, 31_818_182, 20 * 5_267_456),
        (1e10, 16_384, 24, 1024, 2_500_000_000, 20 * 319_160_320),
    ],
)
def test_sizes_by_bytes(
    text_bytes: float, vocab_size: int, layers: int, width: int, tokens: int, budget_tokens: int
) -> None:
    chosen = sizes(text_bytes)
    assert (chosen.vocab_size, chosen.network.layers, chosen.network.width) == (vocab_size, layers, width)
    assert (chosen.tokens, chosen.budget_tokens) == (tokens, budget_tokens)


def test_the_embedding_is_never_more_than_a_quarter_of_the_parameters() -> None:
    for network in NETWORKS:
        vocabulary = vocabulary_of(network)
        assert vocabulary * network.width <= 0.25 * network.parameters(vocabulary)


def test_more_text_never_gives_a_smaller_network_and_enough_text_feeds_it() -> None:
    all_sizes = [sizes(10 ** (exponent / 4)) for exponent in range(16, 44)]
    parameters = [chosen.parameters for chosen in all_sizes]
    assert parameters == sorted(parameters)
    for chosen in all_sizes:
        assert chosen.budget_tokens <= max(4 * chosen.tokens, 2 * chosen.network.context)
        assert chosen.budget_tokens >= 20 * chosen.parameters or chosen.network == NETWORKS[0]


def test_the_vocabulary_has_space_for_all_characters() -> None:
    assert sizes(1e5, characters=80).vocab_size == 512
    assert sizes(1e5, characters=4000).vocab_size == 8192


def test_bytes_per_token() -> None:
    assert bytes_per_token(2**14) == 4.0  # measured on English and Italian: 4.0 to 4.2


def test_the_networks_are_valid_and_their_parameters_those_of_their_matrices() -> None:
    from model.nn.factory import make_network

    for network in NETWORKS[:4]:
        config = GPTConfig(
            vocab_size=512, context=network.context, layers=network.layers, heads=network.heads, width=network.width
        )
        matrices = sum(weight.numel() for weight in make_network(config).parameters() if weight.dim() == 2)
        assert network.parameters(512) == matrices
