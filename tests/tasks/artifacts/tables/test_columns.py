"""Columns as arrays: of slices, of several chunks, and of nothing."""

import itertools

import blake3
import pyarrow as pa
import pytest

from tasks.artifacts.tables.columns import binary_rows, numbered_values, text_buffers, with_texts
from tasks.artifacts.tables.schema import DOCUMENTS

TEXTS = ["one", "", "дваж", "three", "four"]


def texts_of(column: pa.Array | pa.ChunkedArray) -> list[str]:
    data, begins = text_buffers(column)
    return [data[begin:end].tobytes().decode() for begin, end in itertools.pairwise(begins)]


@pytest.mark.parametrize("chunks", [[TEXTS], [TEXTS[:2], [], TEXTS[2:]], [[]], []])
def test_the_texts_of_a_column_are_between_its_offsets(chunks: list[list[str]]) -> None:
    column = pa.chunked_array(chunks, pa.large_string())
    assert texts_of(column) == column.to_pylist()
    assert texts_of(column.slice(1, 3)) == column.to_pylist()[1:4]
    for chunk in column.chunks:
        assert texts_of(chunk.slice(2)) == chunk.to_pylist()[2:]


@pytest.mark.parametrize("chunks", [[[b"ab", b"cd", b"ef"]], [[b"ab"], [b"cd", b"ef"]], []])
def test_binary_values_are_rows_of_bytes(chunks: list[list[bytes]]) -> None:
    column = pa.chunked_array(chunks, pa.binary(2))
    assert [row.tobytes() for row in binary_rows(column)] == column.to_pylist()
    assert [row.tobytes() for row in binary_rows(column.slice(1))] == column.to_pylist()[1:]


def test_values_that_no_row_has_get_no_number() -> None:
    values = pa.array(["web", "gone", "books", "web"]).dictionary_encode()
    column = pa.chunked_array([values.filter(pa.array([True, False, True, True]))])
    numbers, names = numbered_values(column)
    assert [names[number] for number in numbers] == ["web", "books", "web"]
    assert sorted(names) == ["books", "web"]
    assert numbered_values(pa.chunked_array([], values.type))[1] == []


def test_other_texts_have_digests_of_their_own() -> None:
    fields = {name: pa.nulls(3, DOCUMENTS.field(name).type) for name in DOCUMENTS.names}
    texts = {
        "text": pa.array(["a", "b", "c"], pa.large_string()),
        "text_digest": pa.array([bytes(16)] * 3, pa.binary(16)),
    }
    documents = pa.table(fields | texts, schema=DOCUMENTS)
    changed = with_texts(documents, [0, 2], ["ä".encode(), b""])
    assert changed.schema == DOCUMENTS
    assert changed.column("text").to_pylist() == ["ä", "b", ""]
    digests = [blake3.blake3("ä".encode()).digest(length=16), bytes(16), blake3.blake3(b"").digest(length=16)]
    assert changed.column("text_digest").to_pylist() == digests
    assert with_texts(documents, [], []) is documents
