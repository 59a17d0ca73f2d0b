"""Checks of written text: overlaps beside a search of every run, bytes and repetition by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.artifacts.tables.columns import token_rows
from tasks.artifacts.tables.files import read_table
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.evaluate.memorization import Overlap, _find_documents, invalid_bytes, longest_overlaps, repeated_share
from tasks.tokenizer.model_file import read_model, write_model
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_sentencepiece

Rows = list[list[int]]


def searched(text: Sequence[int], rows: Rows) -> int:
    """The length of the longest run of `text` in a row, by looking for each."""
    most = 0
    for begin in range(len(text)):
        for end in range(begin + most + 1, len(text) + 1):
            run = list(text[begin:end])
            if any(run == row[at : at + len(run)] for row in rows for at in range(len(row) - len(run) + 1)):
                most = end - begin
    return most


def overlaps(texts: list[list[int]], rows: Rows, parts: int = 1) -> list[Overlap]:
    cut = np.array_split(np.arange(len(rows)), parts)
    table = np.array(rows)
    return longest_overlaps(texts, [(numbers + 100, table[numbers]) for numbers in cut])


def test_the_longest_run_is_found_with_its_place() -> None:
    rows = [[1, 2, 3, 4, 5, 6], [7, 3, 4, 5, 8, 9], [6, 7, 7, 7, 7, 7]]
    one, two, none = overlaps([[0, 3, 4, 5, 8, 2], [5, 6, 7], [20, 21]], rows)
    assert one == Overlap(4, begin=1, row=101, place=1)
    assert two.tokens == 2
    assert (two.begin, two.row, two.place) == (0, 100, 4)
    assert none == Overlap(0)


def test_a_run_does_not_go_on_in_the_next_row_nor_in_the_next_text() -> None:
    (found,) = overlaps([[1, 2, 3, 4]], [[9, 1, 2], [3, 4, 9]])
    assert found.tokens == 2
    first, second = overlaps([[1, 2], [3, 4]], [[1, 2, 3, 4]])
    assert (first.tokens, second.tokens) == (2, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=10), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_no_longer_run_is_in_any_row(texts: list[list[int]], rows: Rows, parts: int) -> None:
    for text, found in zip(texts, overlaps(texts, rows, parts), strict=True):
        assert found.tokens == searched(text, rows)
        if found.tokens:
            run = text[found.begin : found.begin + found.tokens]
            assert rows[found.row - 100][found.place : found.place + found.tokens] == run


def test_the_bytes_of_a_run_are_those_of_its_document(context, make_documents, tmp_path) -> None:
    """Also where the vocabulary puts a space before a text, which is no byte of it."""
    texts = [f"the cat sat on mat {number}. the dog sat on log {number}. " * 3 for number in range(20)]
    model = read_model(train_sentencepiece(texts, VocabConfig(vocab_size=300)))
    model.normalizer_spec.add_dummy_prefix = True
    (tmp_path / "base.model").write_bytes(write_model(model))
    documents = make_documents([[("prose", text) for text in texts]])
    vocab = build_vocab(context, documents, VocabConfig(base=tmp_path / "base.model"))
    sequences = build_chunk(context, documents, vocab, ChunkConfig(row_length=65, budget_tokens=2000))
    tokenizer = open_tokenizer(vocab)
    read = {row["doc_id"]: row["text"].encode() for row in documents.table("documents").to_pylist()}
    rows = np.concatenate(
        [token_rows(batch) for path in sequences.files("sequences") for batch in read_table(path).to_batches()]
    )
    runs = [Overlap(3, 0, row, place) for row in range(5) for place in range(60)]
    *documents, nothing = _find_documents(tokenizer, sequences, [*runs, Overlap(0)])
    assert nothing == {}
    for one, found in zip(runs, documents, strict=True):
        run = rows[one.row, one.place : one.place + 3].tolist()
        if tokenizer.eos not in run:
            text = tokenizer.decode_following(run).encode()
            assert read[found["doc_id"]][found["start"] : found["end"]] in (text, text.removeprefix(b" "))


@pytest.mark.parametrize(
    ("data", "broken"),
    [
        (b"plain", 0),
        ("猫坐".encode(), 0),
        ("猫坐".encode()[:-1], 0),
        (b"\xe7\x8c", 0),
        (b"a\xffb", 1),
        (b"\xe7\x8cA\xff\xfe", 4),
        (b"", 0),
    ],
)
def test_bytes_that_are_no_text(data: bytes, broken: int) -> None:
    assert invalid_bytes(data) == broken


def test_repetition_is_the_share_of_4grams_that_came_before() -> None:
    assert repeated_share([1, 2, 3, 4, 5]) == 0.0
    # Five 4-grams, of which 1212 comes twice more and 2121 once more.
    assert repeated_share([1, 2, 1, 2, 1, 2, 1, 2]) == pytest.approx(3 / 5)
    assert repeated_share([1, 2, 3]) is None
