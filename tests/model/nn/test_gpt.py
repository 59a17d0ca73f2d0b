"""GPT: causality, cache, size, initialisation."""

import math

import pytest
import torch

from model.config.network import GPTConfig
from model.data.row_format import NO_LOSS
from model.inference.scoring import text_nats
from model.nn.block import KeyValueCache
from model.nn.factory import activation_range_names, flops_per_token, parameter_count
from model.nn.gpt import GPT
from model.nn.rotary import apply_rotary, rotary_table
from model.objectives.causal import loss_targets, next_token_nats

CONFIG = GPTConfig(vocab_size=40, context=16, layers=2, heads=2, width=16)


@pytest.fixture
def network() -> GPT:
    # A large deviation, so that attention is far from uniform and a mistake in it shows.
    return GPT(CONFIG.model_copy(update={"init_std": 0.3})).initialise(1).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 40, (3, 16), generator=torch.Generator().manual_seed(2))


def test_future_tokens_do_not_change_earlier_logits(network: GPT, tokens: torch.Tensor) -> None:
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 40
    before, after = network(tokens), network(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_cached_passes_give_the_logits_of_one_whole_pass(network: GPT, tokens: torch.Tensor) -> None:
    whole = network(tokens)
    cache = KeyValueCache()
    pieces = [network(tokens[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 13), (13, 16))]
    assert cache.length == 16
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_rotation_makes_scores_depend_on_distance_alone() -> None:
    cos_TE, sin_TE = rotary_table(12, 8)
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(3))
    turned_query = apply_rotary(query.expand(1, 1, 12, 8), cos_TE, sin_TE)[0, 0]
    turned_key = apply_rotary(key.expand(1, 1, 12, 8), cos_TE, sin_TE)[0, 0]
    scores = turned_query @ turned_key.T
    for distance in range(-11, 12):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-4)
    assert not torch.isclose(scores[0, 0], scores[0, 5])


def test_an_untrained_network_is_as_surprised_as_a_uniform_one(tokens: torch.Tensor) -> None:
    network = GPT(CONFIG).initialise(1)
    nats, _ = next_token_nats(network, tokens[:, :-1], tokens[:, 1:])
    assert float(nats.detach()) / 45 == pytest.approx(math.log(40), abs=0.02)


def test_weights_are_a_function_of_the_seed() -> None:
    torch.manual_seed(99)
    first = GPT(CONFIG).initialise(7).state_dict()
    torch.manual_seed(100)
    second = GPT(CONFIG).initialise(7).state_dict()
    other = GPT(CONFIG).initialise(8).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_residual_branches_start_smaller_by_the_root_of_their_number() -> None:
    config = GPTConfig(vocab_size=8, context=8, layers=8, heads=2, width=128)
    block = GPT(config).initialise(1).blocks[0]
    assert float(block.mlp_in.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.02)
    assert float(block.mlp_out.weight.detach().std()) == pytest.approx(128**-0.5 / 4, rel=0.02)
    block = GPT(config.model_copy(update={"init_std": 0.02})).initialise(1).blocks[0]
    assert float(block.mlp_in.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(block.mlp_out.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.02)


@pytest.mark.parametrize("width", [64, 128, 256, 512])
def test_initial_matrices_are_those_of_the_maximal_update_parametrisation(width: int) -> None:
    def deviation(**choices: int) -> float:
        config = GPTConfig(vocab_size=8, context=8, layers=1, heads=2, width=width, **choices)
        return float(GPT(config).initialise(1).blocks[0].mlp_in.weight.detach().std())

    assert deviation() == pytest.approx(width**-0.5, rel=0.03)
    assert deviation() == pytest.approx(deviation(mup_base_width=128), rel=1e-5)


def test_parameters_are_counted_as_on_paper() -> None:
    width, vocabulary = 16, 40
    # Four projections of attention, three of an MLP of hidden size 48; norms of the stream twice, of queries, of keys.
    block = 4 * width**2 + 3 * 48 * width + 2 * width + 2 * 8
    expected = vocabulary * width + 2 * block + width
    assert parameter_count(CONFIG) == expected
    assert flops_per_token(CONFIG) == 6 * expected + 12 * 2 * 16 * 16


def test_nats_and_ranges_agree_with_the_plain_computation(network: GPT, tokens: torch.Tensor) -> None:
    rows = tokens.repeat(20, 1)
    inputs, targets = rows[:, :-1], rows[:, 1:].clone()
    targets[:, :4] = NO_LOSS
    nats, ranges = next_token_nats(network, inputs, targets)
    logits = network(inputs)
    log_p = logits.log_softmax(-1).gather(2, rows[:, 1:, None])[:, 4:]
    torch.testing.assert_close(nats, -log_p.sum(), rtol=1e-5, atol=0)
    assert len(ranges) == len(activation_range_names(CONFIG)) == 6
    embedded = network.enter(inputs)
    for read, values in ((ranges[0], embedded), (ranges[-1], logits)):
        assert read.tolist() == pytest.approx([-float(values.detach().min()), float(values.detach().max())], rel=1e-5)


def test_padding_and_tokens_before_loss_start_are_not_predicted() -> None:
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0], [5, 6, 7, 8]])
    targets = loss_targets(tokens, torch.tensor([0, 0, 2]), pad=0)
    none = NO_LOSS
    assert targets.tolist() == [[6, 7, 8], [6, none, none], [none, 7, 8]]


EOS = 1
TWO_DOCUMENTS = [7, 8, 9, EOS, 30, 31, 32, 33, 34, EOS, 20, 21]
"""The end of a document, a whole one, and the beginning of a third."""


@pytest.mark.parametrize(("begin", "end"), [(0, 3), (3, 9), (9, 11)])
def test_within_documents_a_document_is_predicted_in_a_row_as_it_is_alone(begin: int, end: int) -> None:
    config = CONFIG.model_copy(update={"init_std": 0.3, "attend_within_documents": True})
    network = GPT(config).initialise(1)
    row = torch.tensor([TWO_DOCUMENTS])
    in_row = torch.full((1, 11), NO_LOSS)
    in_row[:, begin:end] = row[:, begin + 1 : end + 1]
    packed, _ = next_token_nats(network, row[:, :-1], in_row, EOS)
    # Alone it follows one end-of-text token, as `scoring.text_nats` reads a text.
    alone, _ = next_token_nats(network, row[:, begin:end], row[:, begin + 1 : end + 1], EOS)
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)
    without = GPT(CONFIG.model_copy(update={"init_std": 0.3})).initialise(1)
    mixed, _ = next_token_nats(without, row[:, :-1], in_row, EOS)
    assert torch.isclose(mixed, packed, rtol=1e-5) == (begin == 0)


def test_text_is_scored_alone_as_it_was_learnt_within_its_document() -> None:
    network = GPT(CONFIG.model_copy(update={"init_std": 0.3, "attend_within_documents": True})).initialise(1)
    row = torch.tensor([TWO_DOCUMENTS])
    targets = torch.full((1, 11), NO_LOSS)
    targets[:, 3:8] = row[:, 4:9]
    packed, _ = next_token_nats(network, row[:, :-1], targets, EOS)
    assert text_nats(network, [[30, 31, 32, 33, 34]], begin=EOS)[0] == pytest.approx(float(packed.detach()), rel=1e-5)


def test_a_mask_that_shows_all_before_gives_the_logits_of_the_causal_pass(network: GPT, tokens: torch.Tensor) -> None:
    visible = torch.ones(16, 16, dtype=torch.bool).tril().expand(3, 1, 16, 16)
    torch.testing.assert_close(
        network.hidden(tokens, visible_B1TT=visible), network.hidden(tokens), rtol=1e-4, atol=1e-4
    )
