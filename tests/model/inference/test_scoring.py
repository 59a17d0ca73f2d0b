"""Scores against the plain computation, token by token."""

import pytest
import torch

from model.config.network import GPTConfig
from model.config.rotary import RotaryScaling
from model.inference.scoring import choice_log_probabilities, text_nats, token_nats
from model.nn.gpt import GPT
from tests.model.inference.reference import continuation_log_probabilities


@pytest.fixture(scope="module")
def network() -> GPT:
    return GPT(GPTConfig(vocab_size=30, context=16, layers=2, heads=2, width=16, init_std=0.4)).initialise(3).eval()


def log_probability(network: GPT, seen: list[int], token: int) -> float:
    """ln p(token | seen), computed alone."""
    with torch.no_grad():
        return float(network(torch.tensor([seen]))[0, -1].double().log_softmax(0)[token])


def test_a_continuation_scores_the_sum_of_its_tokens(network: GPT) -> None:
    pairs = [([1, 2, 3], [4, 5]), ([9], [8]), ([1, 2, 3, 4, 5, 6], [7, 8, 9])]
    expected = [
        sum(log_probability(network, [*context, *rest[:i]], rest[i]) for i in range(len(rest)))
        for context, rest in pairs
    ]
    assert continuation_log_probabilities(network, pairs) == pytest.approx(expected, abs=1e-4)
    alone = [choice_log_probabilities(network, context, [rest])[0] for context, rest in pairs]
    assert alone == pytest.approx(expected, abs=1e-4)


def test_choices_of_one_context_score_as_they_do_alone(network: GPT) -> None:
    context, choices = [1, 2, 3], [[4, 5], [6], [7, 8, 9, 10], [4]]
    expected = continuation_log_probabilities(network, [(context, choice) for choice in choices])
    assert choice_log_probabilities(network, context, choices) == pytest.approx(expected, abs=1e-4)
    assert choice_log_probabilities(network, context, [[6], [4]]) == pytest.approx([expected[1], expected[3]], abs=1e-4)


def test_rotations_by_length_are_those_of_each_text_whatever_is_beside_it() -> None:
    scaling = RotaryScaling(kind="dynamic", factor=4.0, original_context=8)
    config = GPTConfig(vocab_size=30, context=32, layers=2, heads=2, width=16, init_std=0.4, rotary_scaling=scaling)
    network = GPT(config).initialise(3).eval()
    texts = [[*range(1, 10)], [*range(1, 28)], [*range(2, 11)]]
    alone = [text_nats(network, [text], 0)[0] for text in texts]
    assert text_nats(network, texts, 0) == pytest.approx(alone, abs=1e-4)
    choices = [[4, 6], [*range(20)], [5, 6]]
    by_itself = [choice_log_probabilities(network, [1] * 9, [one])[0] for one in choices]
    assert choice_log_probabilities(network, [1] * 9, choices) == pytest.approx(by_itself, abs=1e-4)


def test_a_context_that_leaves_no_space_for_its_choices_is_refused(network: GPT) -> None:
    assert len(choice_log_probabilities(network, [1] * 15, [[2, 3]])) == 1
    for context, choices in (([1] * 16, [[2, 3]]), ([], [[1]]), ([1], [[]])):
        with pytest.raises(ValueError, match="do not fit"):
            choice_log_probabilities(network, context, choices)


def test_probabilities_of_all_continuations_sum_to_one(network: GPT) -> None:
    scores = choice_log_probabilities(network, [3, 4], [[token] for token in range(30)])
    assert torch.tensor(scores).exp().sum() == pytest.approx(1.0, abs=1e-4)


def test_a_text_that_fits_costs_the_same_with_and_without_stride(network: GPT) -> None:
    text = [(7 * n) % 30 for n in range(16)]
    expected = -sum(log_probability(network, [0, *text[:i]], text[i]) for i in range(16))
    for stride in (None, 1, 16):
        assert text_nats(network, [text], 0, stride) == pytest.approx([expected], abs=1e-3)


def test_windows_predict_every_token_once_from_at_least_the_context_promised(network: GPT) -> None:
    text = [(11 * n + n // 7) % 30 for n in range(50)]
    tokens = [0, *text]
    # With a stride of one every token sees a full context, which can be written down directly.
    expected = -sum(log_probability(network, tokens[max(0, i - 16) : i], tokens[i]) for i in range(1, len(tokens)))
    for batch_tokens in (1, 8192):
        nats = text_nats(network, [text, text[:3]], 0, stride=1, batch_tokens=batch_tokens)
        assert nats[0] == pytest.approx(expected, abs=1e-3)


def test_a_uniform_model_pays_ln_v_for_each_token_whatever_the_stride() -> None:
    uniform = GPT(GPTConfig(vocab_size=30, context=16, layers=1, heads=1, width=8)).eval()
    with torch.no_grad():
        uniform.embedding.weight.zero_()
    ln_v = float(torch.tensor(30.0, dtype=torch.float64).log())
    texts = [[1] * length for length in (0, 1, 15, 16, 17, 33, 100)]
    for stride in (None, 3, 16):
        assert text_nats(uniform, texts, 0, stride) == pytest.approx([len(text) * ln_v for text in texts], rel=1e-5)


def test_the_nats_of_tokens_are_those_of_each_token_in_order(network: GPT) -> None:
    text = [(11 * n + n // 7) % 30 for n in range(40)]
    tokens = [0, *text]
    expected = [-log_probability(network, tokens[max(0, i - 16) : i], tokens[i]) for i in range(1, len(tokens))]
    long, empty, short = token_nats(network, [text, [], text[:3]], 0, stride=1)
    assert long.tolist() == pytest.approx(expected, abs=1e-4)
    assert short.tolist() == pytest.approx(expected[:3], abs=1e-4)
    assert empty.tolist() == []
