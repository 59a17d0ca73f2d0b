"""Columns of tables as NumPy arrays, and documents with other texts."""

from collections.abc import Sequence

import blake3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.schema import DOCUMENTS


def text_buffers(texts: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return (UTF-8 bytes u8, where each text begins in them and the last one ends i64[texts + 1]) of large strings.

    An array is not copied, and a slice keeps the bytes of its parent.
    """
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    _, offsets, data = whole.buffers()
    begins = np.frombuffer(offsets or bytes(8), np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return np.frombuffer(data or bytes(1), np.uint8), begins


def binary_rows(column: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """Return a column of binary values of one size, without nulls, as bytes u8[rows, size]."""
    whole = column.combine_chunks()
    values = np.frombuffer(whole.buffers()[1] or b"", np.uint8).reshape(-1, whole.type.byte_width)
    return values[whole.offset : whole.offset + len(whole)]


def numbered_values(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return a dictionary-encoded column as numbers i64[rows], and the value of each number; only of those that
    occur, while a dictionary keeps the values of rows that were taken out."""
    whole = column.combine_chunks()
    used, numbers = np.unique(whole.indices.to_numpy(), return_inverse=True)
    return numbers.astype(np.int64), whole.dictionary.take(pa.array(used)).to_pylist()


def token_rows(batch: pa.RecordBatch) -> npt.NDArray[np.unsignedinteger]:
    """Return the tokens of rows of SEQUENCES, [rows, row_length], as a view of the batch."""
    tokens = batch.column("tokens")
    return tokens.flatten().to_numpy().reshape(-1, tokens.type.list_size)


def count_documents(sources: pa.ChunkedArray, doc_ids: pa.ChunkedArray, sizes: pa.ChunkedArray) -> StageReport:
    """Return the counts by source of a part's rows, all of which go out: documents (segments of one have its id),
    segments, and bytes of text (`sizes`)."""
    rows = pa.table({"source": sources.cast(pa.string()), "id": doc_ids, "bytes": sizes})
    grouped = rows.group_by("source", use_threads=False)
    report = StageReport()
    for row in grouped.aggregate([("id", "count_distinct"), ("id", "count"), ("bytes", "sum")]).to_pylist():
        counts = report.source(row["source"])
        counts.documents_in = counts.documents_out = row["id_count_distinct"]
        counts.pieces_out = row["id_count"]
        counts.bytes_in = counts.bytes_out = row["bytes_sum"]
    return report


def with_texts(documents: pa.Table, rows: Sequence[int], texts: Sequence[bytes]) -> pa.Table:
    """Return DOCUMENTS with other texts, and their digests, in these ascending rows."""
    if not rows:
        return documents
    mask = np.zeros(documents.num_rows, np.bool_)
    mask[list(rows)] = True
    columns = {
        "text": [text.decode() for text in texts],
        "text_digest": [blake3.blake3(text).digest(length=16) for text in texts],
    }
    for name, values in columns.items():
        field = DOCUMENTS.field(name)
        column = documents.column(name).combine_chunks()
        replaced = pc.replace_with_mask(column, pa.array(mask), pa.array(values, field.type))
        documents = documents.set_column(documents.column_names.index(name), field, replaced)
    return documents
