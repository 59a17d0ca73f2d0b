"""What the 5-gram is counted on: the rows that ORDER reads, each once, without padding and within their borders."""

import numpy as np
import pyarrow as pa
import pytest

from model.data.row_format import RowFormat
from model.data.schema import ORDER, sequences_schema
from tasks.evaluate.ngram_baseline import document_stream, read_rows
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

LENGTH = 4
TEXTS = ["the cat sat on the mat. the dog sat on the log. " * 40, "日本語の文章です。" * 20]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return SentencePieceTokenizer(train_sentencepiece(TEXTS, VocabConfig(vocab_size=300)))


def sequences(tokenizer: Tokenizer, rows: list[list[int]], first: int = 0) -> pa.Table:
    layout = RowFormat(objective="causal_lm", tokenizer_digest="", vocab_size=300, eos=tokenizer.eos, pad=tokenizer.pad)
    columns = {
        "row": list(range(first, first + len(rows))),
        "source": pa.array(["text"] * len(rows)).dictionary_encode(),
        "tokens": rows,
        "loss_start": [0] * len(rows),
    }
    return pa.table(columns, schema=sequences_schema(LENGTH, 300, layout))


def order(*reads: tuple[int, int]) -> pa.Table:
    return pa.table({"row": [row for row, _ in reads], "epoch": [epoch for _, epoch in reads]}, schema=ORDER)


def test_rows_count_once_and_only_where_they_are_read(tokenizer: Tokenizer):
    tables = [
        sequences(tokenizer, [[10, 11, 12, 13], [20, 21, 22, 23]]),
        sequences(tokenizer, [[30, 31, 32, 33], [40, 41, 42, 43]], first=2),
    ]
    tables.append(tables[0].slice(0, 0))
    read, left_out = read_rows(tables, order((3, 0), (0, 0), (3, 1), (2, 0), (0, 1)), tokenizer, 10**6)
    assert read.tokens.tolist() == [10, 11, 12, 13, 30, 31, 32, 33, 40, 41, 42, 43]
    assert np.flatnonzero(read.begins).tolist() == [0, 4, 8]
    assert read.is_predicted.all()
    assert left_out == 0


def test_of_more_tokens_the_rows_that_are_read_first_count(tokenizer: Tokenizer):
    tables = [sequences(tokenizer, [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])]
    reads = order((2, 0), (2, 1), (0, 0), (1, 0))
    for tokens, expected in ((3, {30}), (8, {10, 30}), (11, {10, 30}), (12, {10, 20, 30})):
        read, left_out = read_rows(tables, reads, tokenizer, tokens)
        assert set(read.tokens[read.begins].tolist()) == expected
        assert left_out == 3 - len(expected)


def test_padding_at_the_end_of_rows_is_no_text(tokenizer: Tokenizer):
    pad = tokenizer.pad
    tables = [sequences(tokenizer, [[10, pad, 11, pad], [pad, pad, pad, pad]])]
    read, _ = read_rows(tables, order((0, 0), (1, 0)), tokenizer, 10**6)
    assert read.is_predicted.tolist() == [True, True, True, False, *[False] * 4]


def test_where_padding_ends_documents_the_first_one_is_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizer, "pad", tokenizer.eos)
    tables = [sequences(tokenizer, [[10, tokenizer.eos, tokenizer.eos, tokenizer.eos]])]
    read, _ = read_rows(tables, order((0, 0)), tokenizer, 10**6)
    assert read.is_predicted.tolist() == [True, True, False, False]


def test_held_out_documents_are_alone_behind_the_end_of_text():
    alone = document_stream([np.array([5, 6]), np.array([], dtype=np.int32), np.array([7])], opening=2)
    assert alone.tokens.tolist() == [2, 5, 6, 2, 2, 7]
    assert alone.begins.tolist() == [True, False, False, True, True, False]
    assert alone.is_predicted.tolist() == [False, True, True, False, False, True]
    assert len(document_stream([], opening=2).tokens) == 0
