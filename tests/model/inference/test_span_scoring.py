"""Scores of a T5's targets against one forward pass each."""

import pytest
import torch

from model.config.network import T5Config
from model.data.loader import SpanBatch
from model.data.row_format import NO_LOSS
from model.inference.scoring import answers_log_probabilities, target_nats
from model.nn.t5 import T5
from model.objectives.spans import SpanObjective

PAD, SENTINEL = 0, 29


@pytest.fixture(scope="module")
def network() -> T5:
    return T5(T5Config(vocab_size=30, layers=2, heads=2, width=16, tied_head=False)).initialise(3).eval()


def log_probabilities(network: T5, inputs: list[int], written: list[int]) -> torch.Tensor:
    """ln p of the token after `written`, f64[V], computed alone."""
    inputs_1T = torch.tensor([inputs])
    everywhere = torch.ones_like(inputs_1T, dtype=torch.bool)
    with torch.no_grad():
        hidden = network.decode(torch.tensor([[PAD, *written]]), network.encode(inputs_1T, everywhere), everywhere)
        return network.logits(hidden[0, -1]).double().log_softmax(0)


def test_an_answer_costs_its_tokens_behind_what_is_given(network: T5):
    inputs, answers = [5, 6, SENTINEL, 1], [[7, 8], [9], [7, 9, 9, 4]]
    expected = [
        sum(
            float(log_probabilities(network, inputs, [SENTINEL, *answer[:place]])[answer[place]])
            for place in range(len(answer))
        )
        for answer in answers
    ]
    found = answers_log_probabilities(network, inputs, PAD, [SENTINEL], answers)
    assert [value for value, _ in found] == pytest.approx(expected, abs=1e-5)


def test_without_an_opening_the_first_token_counts(network: T5):
    ((value, _),) = answers_log_probabilities(network, [5, 6, 1], PAD, [], [[7]])
    assert value == pytest.approx(float(log_probabilities(network, [5, 6, 1], [])[7]), abs=1e-5)


def test_an_answer_is_spelled_when_each_of_its_tokens_is_the_likeliest(network: T5):
    inputs = [5, 6, SENTINEL, 1]
    likeliest: list[int] = []
    for _ in range(3):
        likeliest.append(int(log_probabilities(network, inputs, [SENTINEL, *likeliest]).argmax()))
    wrong = [*likeliest[:2], (likeliest[2] + 1) % 30]
    found = answers_log_probabilities(network, inputs, PAD, [SENTINEL], [likeliest, wrong, likeliest[:1]])
    assert [spelled for _, spelled in found] == [True, False, True]


def test_targets_add_up_to_what_training_counts(network: T5):
    inputs = torch.tensor([[5, 6, SENTINEL, 1], [7, SENTINEL, 1, PAD]])
    targets = torch.tensor([[SENTINEL, 8, 9, 1], [SENTINEL, 8, 1, NO_LOSS]])
    batch = SpanBatch(inputs, inputs != PAD, torch.tensor([[PAD, SENTINEL, 8, 9], [PAD, SENTINEL, 8, 1]]), targets)
    nats = target_nats(network, batch)
    in_training = SpanObjective(seed=1).sums(network, batch).nats[0]
    assert float(nats.sum()) == pytest.approx(float(in_training.detach()), rel=1e-5)
    assert nats[1, 3] == 0.0
    assert float(nats[1, 1]) == pytest.approx(
        -float(log_probabilities(network, [7, SENTINEL, 1], [SENTINEL])[8]), abs=1e-5
    )
