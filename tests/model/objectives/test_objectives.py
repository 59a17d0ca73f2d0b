"""The objectives of BERT and T5: sums equal to a plain computation, and networks that learn."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from model.config.network import BERTConfig, T5Config
from model.data.loader import MaskedBatch, SpanBatch
from model.data.row_format import NO_LOSS
from model.nn.bert import BERT
from model.nn.factory import activation_range_names
from model.nn.t5 import T5
from model.objectives.masked import MaskedObjective
from model.objectives.spans import SpanObjective

SIZES: dict[str, Any] = {"vocab_size": 40, "layers": 2, "heads": 2, "width": 16}
OBJECTIVE = MaskedObjective(seed=1, share=0.15, context=12)
GENERATOR = torch.Generator().manual_seed(2)
TOKENS = torch.randint(3, 40, (70, 12), generator=GENERATOR)
IS_TOKEN = torch.arange(12) < torch.randint(5, 13, (70, 1), generator=GENERATOR)


@pytest.fixture
def masked_batch() -> MaskedBatch:
    """Rows of five to twelve tokens, of which one to eight are hidden; every third row has no second stretch."""
    hidden = torch.arange(8) < torch.arange(70)[:, None] % 8 + 1
    return MaskedBatch(
        inputs_BT=TOKENS,
        token_types_BT=(torch.arange(12) >= 4).long() * IS_TOKEN,
        is_token_BT=IS_TOKEN,
        positions_BM=torch.arange(8) % 5 * hidden,
        targets_BM=torch.where(hidden, TOKENS[:, :8].flip(0), NO_LOSS),
        is_next_B=torch.arange(70) % 3 - 1 + (torch.arange(70) % 3 == 0) * (NO_LOSS + 1),
    )


@pytest.fixture
def span_batch() -> SpanBatch:
    targets = torch.where(torch.arange(10) < torch.arange(70)[:, None] % 9 + 1, TOKENS[:, :10].flip(0), NO_LOSS)
    decoder_inputs = torch.cat((torch.zeros(70, 1, dtype=torch.int64), targets[:, :-1].clamp(min=0)), dim=1)
    return SpanBatch(TOKENS, IS_TOKEN, decoder_inputs, targets)


def test_hidden_tokens_and_pairs_are_counted_where_they_are(masked_batch: MaskedBatch) -> None:
    # 70 rows: eight rounds of 1 to 8 hidden tokens and one of 1 to 6; rows 0, 3, ..., 69 have no second stretch.
    assert OBJECTIVE.counts(masked_batch) == (8 * 36 + 21, 46)


def test_masked_sums_are_those_of_the_plain_computation(masked_batch: MaskedBatch) -> None:
    network = BERT(BERTConfig(context=16, init_std=0.3, **SIZES)).initialise(1)
    sums = OBJECTIVE.sums(network, masked_batch)
    hidden = network.hidden(masked_batch.inputs_BT, masked_batch.token_types_BT, masked_batch.is_token_BT)
    masked_nats = next_nats = torch.zeros(())
    masked_right = next_right = 0
    for row in range(70):
        for position, target in zip(masked_batch.positions_BM[row], masked_batch.targets_BM[row], strict=True):
            if target != NO_LOSS:
                logits = network.masked_logits(hidden[row : row + 1], position.view(1, 1))[0, 0]
                masked_nats = masked_nats - logits.log_softmax(-1)[target]
                masked_right += int(logits.argmax() == target)
        if masked_batch.is_next_B[row] != NO_LOSS:
            answer = network.next_logits(hidden)[row]
            next_nats = next_nats - answer.log_softmax(-1)[masked_batch.is_next_B[row]]
            next_right += int(answer.argmax() == masked_batch.is_next_B[row])
    torch.testing.assert_close(sums.nats[0], masked_nats, rtol=1e-4, atol=0)
    torch.testing.assert_close(sums.nats[1], next_nats, rtol=1e-4, atol=0)
    assert tuple(map(int, sums.correct)) == (masked_right, next_right)
    assert len(sums.activation_ranges) == len(activation_range_names(network.config)) == 7
    answers = network.next_logits(hidden).detach()
    assert sums.activation_ranges[-1].tolist() == pytest.approx([-float(answers.min()), float(answers.max())], rel=1e-5)


def test_rows_without_anything_hidden_or_a_second_stretch_weigh_nothing(masked_batch: MaskedBatch) -> None:
    network = BERT(BERTConfig(context=16, **SIZES)).initialise(1)
    empty = replace(
        masked_batch,
        targets_BM=torch.full_like(masked_batch.targets_BM, NO_LOSS),
        is_next_B=torch.full_like(masked_batch.is_next_B, NO_LOSS),
    )
    sums = OBJECTIVE.sums(network, empty)
    assert [float(value.detach()) for value in sums.nats] == [0, 0]
    assert tuple(map(int, sums.correct)) == (0, 0)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_span_nats_are_those_of_the_plain_computation(span_batch: SpanBatch, z_loss: float) -> None:
    network, plain = (T5(T5Config(**SIZES, z_loss=weight)).initialise(1) for weight in (z_loss, 0.0))
    sums = SpanObjective(seed=1).sums(network, span_batch)
    (nats,), ranges = sums.nats, sums.activation_ranges
    encoded = plain.encode(span_batch.inputs_BT, span_batch.is_token_BT)
    logits = plain.logits(plain.decode(span_batch.decoder_inputs_BU, encoded, span_batch.is_token_BT))
    counted = span_batch.targets_BU != NO_LOSS
    of_targets = logits.log_softmax(-1).gather(2, span_batch.targets_BU.clamp(min=0)[..., None])[..., 0]
    expected = -(of_targets * counted).sum()
    torch.testing.assert_close(nats, expected, rtol=1e-5, atol=0)
    assert len(ranges) == len(activation_range_names(network.config)) == 13
    values = logits.detach()
    assert ranges[-1].tolist() == pytest.approx([-float(values.min()), float(values.max())], rel=1e-5)
    nats.backward()
    (expected + z_loss * logits.logsumexp(-1)[counted].square().sum()).backward()
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-2)


def learnt(network: nn.Module, loss_of: Any, steps: int = 60) -> float:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_bert_overfits_a_batch(masked_batch: MaskedBatch) -> None:
    few = MaskedBatch(**{name: value[:8] for name, value in vars(masked_batch).items()})
    network = BERT(BERTConfig(context=16, **SIZES)).initialise(1)
    # One answer for each position: what is asked for twice at one place is no question that has one.
    few = replace(few, targets_BM=few.targets_BM.where(torch.arange(8) < 5, NO_LOSS))
    hidden, pairs = OBJECTIVE.counts(few)

    def loss() -> torch.Tensor:
        sums = OBJECTIVE.sums(network, few)
        return sums.nats[0] / hidden + sums.nats[1] / pairs

    assert learnt(network, loss) < 0.1 * (math.log(40) + math.log(2))
    sums = OBJECTIVE.sums(network, few)
    assert tuple(map(int, sums.correct)) == (hidden, pairs)


def test_t5_overfits_a_batch(span_batch: SpanBatch) -> None:
    few = SpanBatch(**{name: value[:8] for name, value in vars(span_batch).items()})
    network = T5(T5Config(**SIZES)).initialise(1)
    counted = int((few.targets_BU != NO_LOSS).sum())
    assert learnt(network, lambda: SpanObjective(seed=1).sums(network, few).nats[0] / counted) < 0.1 * math.log(40)
