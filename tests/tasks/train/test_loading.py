"""Rows that chunk laid out, as the loader reads them: for each objective all text comes back."""

import argparse
from pathlib import Path

import pytest

from model.data.dataset import SequenceReader
from model.data.loader import CausalLoader, MaskedLoader, SpanLoader
from model.data.row_format import NO_LOSS
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

TEXT = Path(argparse.__file__).read_text(encoding="utf-8")[:20_000]
CONFIGS = {
    "causal_lm": ChunkConfig(packing="best_fit", row_length=65, budget_tokens=6_000),
    "masked_lm": ChunkConfig(objective="masked_lm", row_length=64, budget_tokens=6_000),
    "span_corruption": ChunkConfig(
        objective="span_corruption", input_length=64, noise_density=0.3, budget_tokens=6_000
    ),
}


@pytest.fixture
def documents(make_documents) -> Artifact:
    return make_documents([[("code", TEXT[begin : begin + 1500]) for begin in range(0, len(TEXT), 1500)]])


@pytest.fixture
def vocab(context: RunContext, documents: Artifact) -> Artifact:
    special = ("[CLS]", "[SEP]", "[MASK]")
    return build_vocab(context, documents, VocabConfig(vocab_size=400, special_tokens=special, sentinels=20))


@pytest.fixture
def read(context: RunContext, documents: Artifact, vocab: Artifact):
    def reader(objective: str) -> SequenceReader:
        chunk = build_chunk(context, documents, vocab, CONFIGS[objective])
        return SequenceReader(chunk.files("sequences"), chunk.files("order")[0])

    return reader


def test_rows_of_gpt_are_read_as_they_are(read, vocab: Artifact) -> None:
    reader = read("causal_lm")
    batch = CausalLoader(reader).batch(0, reader.positions)
    assert reader.row_format.tokenizer_digest == open_tokenizer(vocab).digest
    assert (batch.tokens_BL.numpy() == reader.rows(0, reader.positions).tokens_BL).all()


def test_pairs_of_bert_come_back_from_what_was_hidden(read, vocab: Artifact) -> None:
    reader, tokenizer = read("masked_lm"), open_tokenizer(vocab)
    batch = MaskedLoader(reader, seed=1, max_predictions=10).batch(0, reader.positions)
    rows = reader.rows(0, reader.positions).tokens_BL
    labels = {0: 0, 1: 0, NO_LOSS: 0}
    for row in range(len(rows)):
        counted = batch.targets_BM[row] != NO_LOSS
        restored = batch.inputs_BT[row].clone()
        restored[batch.positions_BM[row][counted]] = batch.targets_BM[row][counted]
        assert restored.tolist() == rows[row].tolist()
        real = batch.is_token_BT[row]
        assert not set(restored[~real].tolist()) - {tokenizer.pad}
        assert restored[real][0] == tokenizer.cls
        assert restored[real][-1] == tokenizer.sep
        first = restored[real & (batch.token_types_BT[row] == 0)].tolist()
        assert first[-1] == tokenizer.sep
        assert first.count(tokenizer.sep) == 1
        label = int(batch.is_next_B[row])
        assert (label == NO_LOSS) == (int(batch.token_types_BT[row].sum()) == 0)
        labels[label] += 1
    assert labels[0] > 0 < labels[1]


def test_spans_of_t5_fill_the_inputs_and_come_back(read, vocab: Artifact) -> None:
    reader, tokenizer = read("span_corruption"), open_tokenizer(vocab)
    batch = SpanLoader(reader, seed=1).batch(0, reader.positions)
    rows = reader.rows(0, reader.positions).tokens_BL
    assert batch.inputs_BT.shape[1] <= 64
    for row in range(len(rows)):
        targets = batch.targets_BU[row][batch.targets_BU[row] != NO_LOSS].tolist()[:-1]
        spans = {token: place for place, token in enumerate(targets) if token in tokenizer.sentinels}
        text: list[int] = []
        for token in batch.inputs_BT[row][batch.is_token_BT[row]].tolist()[:-1]:
            if token in spans:
                begin = spans[token] + 1
                end = next((place for place in spans.values() if place >= begin), len(targets))
                text += targets[begin:end]
            else:
                text.append(token)
        assert text == rows[row].tolist()[: len(text)]
        assert set(rows[row].tolist()[len(text) :]) <= {tokenizer.pad}
