"""Pseudo-likelihoods and masked tokens against one forward pass each."""

import numpy as np
import pytest
import torch

from model.config.network import BERTConfig
from model.data.loader import MaskedBatch
from model.data.row_format import NO_LOSS
from model.inference.scoring import Frame, hidden_nats, masked_row_sums, pseudo_log_probabilities
from model.nn.bert import BERT
from model.objectives.masked import MaskedObjective

FRAME = Frame(cls=1, sep=2, mask=3)


@pytest.fixture(scope="module")
def network() -> BERT:
    return BERT(BERTConfig(vocab_size=30, context=16, layers=2, heads=2, width=16, init_std=0.4)).initialise(3).eval()


def nats_alone(network: BERT, text: list[int], place: int) -> float:
    """-ln p(text[place] | all others), computed alone."""
    tokens = torch.tensor([[1, *text[:place], 3, *text[place + 1 :], 2]])
    with torch.no_grad():
        hidden = network.hidden(tokens, torch.zeros_like(tokens), torch.ones_like(tokens, dtype=torch.bool))
        logits = network.masked_logits(hidden, torch.tensor([[place + 1]]))[0, 0]
    return -float(logits.double().log_softmax(0)[text[place]])


@pytest.mark.parametrize("batch_tokens", [1, 20, 8192])
def test_each_token_is_hidden_alone(network: BERT, batch_tokens: int):
    text = [7, 8, 9, 9, 10]
    expected = [nats_alone(network, text, place) for place in (0, 3, 4)]
    assert hidden_nats(network, FRAME, text, (0, 3, 4), batch_tokens) == pytest.approx(expected, abs=1e-5)


def test_a_choice_costs_its_own_tokens_and_not_those_of_the_context(network: BERT):
    context, choices = [7, 8, 9], [[10, 11], [12]]
    expected = [
        -nats_alone(network, [7, 8, 9, 10, 11], 3) - nats_alone(network, [7, 8, 9, 10, 11], 4),
        -nats_alone(network, [7, 8, 9, 12], 3),
    ]
    assert pseudo_log_probabilities(network, FRAME, context, choices) == pytest.approx(expected, abs=1e-5)


def test_what_does_not_fit_is_refused(network: BERT):
    assert len(hidden_nats(network, FRAME, [5] * 14, [13])) == 1
    with pytest.raises(ValueError, match="15 tokens and 2 special ones do not fit into a context of 16"):
        hidden_nats(network, FRAME, [5] * 15, [0])


def test_rows_add_up_to_what_training_counts(network: BERT):
    generator = np.random.default_rng(1)
    inputs = torch.from_numpy(generator.integers(4, 30, (5, 16)))
    types = torch.zeros_like(inputs)
    types[:, 9:] = 1
    batch = MaskedBatch(
        inputs,
        types,
        torch.ones_like(inputs, dtype=torch.bool),
        torch.tensor([[1, 4, 7]] * 4 + [[2, 0, 0]]),
        torch.tensor([[5, 6, 7]] * 4 + [[8, NO_LOSS, NO_LOSS]]),
        torch.tensor([1, 0, 1, 0, NO_LOSS]),
    )
    rows = masked_row_sums(network, batch)
    sums = MaskedObjective(seed=1, share=0.15, context=network.config.context).sums(network, batch)
    assert float(rows.nats_BM.sum()) == pytest.approx(float(sums.nats[0].detach()), rel=1e-5)
    assert rows.nats_BM[4, 1:].tolist() == [0.0, 0.0]
    assert (int(rows.right_BM.sum()), int(rows.next_right_B.sum())) == tuple(map(int, sums.correct))
    assert not rows.next_right_B[4]
