"""Batches of each objective are slices of one sequence of rows, with correct masks and padding."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.data.dataset import SequenceReader
from model.data.loader import CausalBatch, CausalLoader, MaskedLoader, SpanLoader
from model.data.row_format import NO_LOSS, RowFormat
from model.data.span_lengths import corrupted_lengths
from model.errors import InputError
from model.nn.gpt import document_numbers, same_document_mask
from model.objectives.causal import loss_targets
from model.objectives.masked import MaskedObjective

EOS, PAD, CLS, SEP, MASK = 1, 0, 2, 3, 4
SENTINELS = (47, 46, 45, 44)
SPECIAL = (0, 1, 2, 3, 4, 44, 45, 46, 47)
ORDER = [5, 0, 3, 4, 0, 1, 2, 5]
EPOCHS = [0, 0, 0, 0, 1, 0, 0, 1]


def row_format(objective: str) -> RowFormat:
    return RowFormat.model_validate(
        {
            "objective": objective,
            "tokenizer_digest": "t",
            "vocab_size": 48,
            "eos": EOS,
            "pad": PAD,
            "cls": CLS,
            "sep": SEP,
            "mask": MASK,
            "sentinels": SENTINELS,
            "special": SPECIAL,
        }
    )


@pytest.fixture
def text() -> np.ndarray:
    return np.random.default_rng(2).integers(5, 44, size=(6, 24))


@pytest.fixture
def pairs(text: np.ndarray) -> np.ndarray:
    """[CLS] A [SEP] B [SEP] in full rows; row 2 has no B and ends in padding, row 4 has a B and ends in padding."""
    text[:, 0], text[:, [9, 23]] = CLS, SEP
    text[2, 9], text[2, 10:] = SEP, PAD
    text[4, 15], text[4, 16:] = SEP, PAD
    return text


@pytest.fixture
def read(tmp_path: Path, write_sequences, write_order):
    def reader(objective: str, tokens: np.ndarray, **columns: object) -> SequenceReader:
        file = write_sequences(tmp_path / "rows.arrow", tokens, row_format=row_format(objective), **columns)
        return SequenceReader([file], write_order(tmp_path / "order.arrow", ORDER, EPOCHS))

    return reader


@pytest.fixture
def masked(read, pairs: np.ndarray) -> MaskedLoader:
    second, is_next = [10, 10, 24, 10, 10, 10], [True, False, None, True, False, True]
    return MaskedLoader(read("masked_lm", pairs, pairs=(second, is_next)), seed=3, max_predictions=5)


def fields(batch: object) -> dict[str, torch.Tensor]:
    return vars(batch)


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm", "span_corruption"])
def test_batches_of_any_size_are_slices_of_one_whole(read, masked, text: np.ndarray, objective: str) -> None:
    loader = {
        "causal_lm": lambda: CausalLoader(read("causal_lm", text)),
        "masked_lm": lambda: masked,
        "span_corruption": lambda: SpanLoader(read("span_corruption", text), seed=3),
    }[objective]()
    whole = fields(loader.batch(0, 8))
    for size in (1, 3, 8):
        for begin in range(0, 8, size):
            part = fields(loader.batch(begin, min(begin + size, 8)))
            for name, tensor in part.items():
                assert torch.equal(tensor, whole[name][begin : begin + size]), name


def test_a_row_read_again_is_drawn_anew(read, masked, text: np.ndarray) -> None:
    hidden = masked.batch(0, 8)
    # 72 tokens lose four spans; 24 lose one, which is always at the end.
    spans = SpanLoader(read("span_corruption", np.tile(text, 3)), seed=3).batch(0, 8)
    # Rows 5 and 0 come twice, in epochs 0 and 1.
    for first, again in ((0, 7), (1, 4)):
        assert not torch.equal(hidden.positions_BM[first], hidden.positions_BM[again])
        assert not torch.equal(spans.inputs_BT[first], spans.inputs_BT[again])


def test_the_objective_hides_its_share_of_each_row(read, pairs: np.ndarray) -> None:
    """Without [CLS] and [SEP] full rows have 21 tokens, row 2 has 8 and row 4 has 13; it hides a quarter, rounded."""
    reader = read("masked_lm", pairs, pairs=([10, 10, 24, 10, 10, 10], [True] * 6))
    batch = MaskedObjective(seed=3, share=0.25, context=24).loader(reader).batch(0, 8)
    hidden = (batch.targets_BM != NO_LOSS).sum(1)
    assert dict(zip(ORDER, hidden.tolist(), strict=True)) == {0: 5, 1: 5, 2: 2, 3: 5, 4: 3, 5: 5}


def test_pairs_come_with_their_types_padding_and_labels(masked: MaskedLoader, pairs: np.ndarray) -> None:
    batch = masked.batch(0, 8)
    ends = {2: 10, 4: 16}
    for place, row in enumerate(ORDER):
        end = ends.get(row, 24)
        second = 24 if row == 2 else 10
        assert batch.is_token_BT[place].tolist() == [t < end for t in range(24)]
        assert batch.token_types_BT[place].tolist() == [int(second <= t < end) for t in range(24)]
        counted = batch.targets_BM[place] != NO_LOSS
        restored = batch.inputs_BT[place].clone()
        restored[batch.positions_BM[place][counted]] = batch.targets_BM[place][counted]
        assert restored.tolist() == pairs[row].tolist()
    assert batch.is_next_B.tolist() == [{0: 1, 1: 0, 2: NO_LOSS, 3: 1, 4: 0, 5: 1}[row] for row in ORDER]


def test_spans_of_a_padded_row_leave_padding_in_all_that_is_read(read, text: np.ndarray) -> None:
    text[3, 10:] = PAD
    batch = SpanLoader(read("span_corruption", text), seed=3).batch(0, 8)
    whole, short = corrupted_lengths(24), corrupted_lengths(10)
    real = [short.inputs if row == 3 else whole.inputs for row in ORDER]
    assert batch.is_token_BT.sum(dim=1).tolist() == real
    assert (batch.inputs_BT[~batch.is_token_BT] == PAD).all()
    assert (batch.targets_BU != NO_LOSS).sum(dim=1).tolist() == [
        short.targets if row == 3 else whole.targets for row in ORDER
    ]


def test_rows_of_another_objective_or_of_none_are_refused(
    read, text: np.ndarray, tmp_path: Path, write_sequences, write_order
) -> None:
    with pytest.raises(InputError, match=r"packed for causal_lm, and this training needs masked_lm"):
        MaskedLoader(read("causal_lm", text), 3, 5)
    nameless = write_sequences(tmp_path / "nameless.arrow", text)
    with pytest.raises(InputError, match="have no row format"):
        SpanLoader(SequenceReader([nameless], write_order(tmp_path / "o.arrow", [0])), 3)


@given(rows=st.integers(1, 4), pieces=st.integers(1, 5), length=st.integers(1, 6), data=st.data())
def test_shorter_rows_keep_every_prediction(rows: int, pieces: int, length: int, data) -> None:
    inputs = pieces * length
    tokens = torch.arange(10, 10 + rows * (inputs + 1)).view(rows, -1)
    starts = torch.tensor(data.draw(st.lists(st.integers(0, inputs + 1), min_size=rows, max_size=rows)))
    tokens[0, data.draw(st.integers(0, inputs)) :] = PAD
    batch = CausalBatch(tokens, starts)
    short = batch.shortened(length)
    assert short.tokens_BL.shape == (rows * pieces, length + 1)

    def predictions(one: CausalBatch) -> Counter[tuple[int, int]]:
        targets = loss_targets(one.tokens_BL, one.loss_start_B, PAD)
        return Counter(zip(one.tokens_BL[:, :-1].flatten().tolist(), targets.flatten().tolist(), strict=True))

    assert predictions(short) == predictions(batch)


def test_a_length_that_does_not_divide_the_row_is_refused() -> None:
    with pytest.raises(InputError, match="rows of 16 predictions cannot be cut into rows of 5"):
        CausalBatch(torch.zeros(2, 17, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)).shortened(5)


def test_the_end_of_text_opens_the_document_behind_it() -> None:
    inputs = torch.tensor([[7, 8, EOS, 9, EOS, EOS, 9], [EOS, 7, 7, 7, 7, 7, 7]])
    documents = document_numbers(inputs, EOS)
    assert documents.tolist() == [[0, 0, 1, 1, 2, 3, 3], [1] * 7]
    assert documents.dtype == torch.int32
    assert same_document_mask(documents).tril()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
