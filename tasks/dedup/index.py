"""The index of kept documents: what a later run needs to find copies of them and to name the old document.

INDEX rows stand beside the parts they come from: doc_id, text_digest, and the MinHash signature (unsigned 32-bit
values, datasketch's `affine32` with the seed and shingle length of the stage's settings, which the manifest holds).
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tasks.dedup.minhash import band_keys
from tasks.dedup.shingles import I64, U32


def index_table(doc_ids: pa.ChunkedArray, digests: pa.ChunkedArray, signatures: U32) -> pa.Table:
    """INDEX rows of one part's kept documents; `signatures` is (rows, signature length)."""
    length = signatures.shape[1]
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(signatures).reshape(-1)), length)
    schema = pa.schema(
        [
            pa.field("doc_id", pa.binary(16), nullable=False),
            pa.field("text_digest", pa.binary(16), nullable=False),
            pa.field("signature", values.type, nullable=False),
        ]
    )
    return pa.table([doc_ids, digests, values], schema=schema)


def index_signatures(table: pa.Table) -> U32:
    """The (rows, signature length) matrix of an INDEX table."""
    column = table.column("signature")
    flat = np.concatenate([np.empty(0, np.uint32), *(chunk.flatten().to_numpy() for chunk in column.chunks)])
    return flat.reshape(table.num_rows, column.type.list_size)


def find_in_index(parts: Iterable[U32], queries: U32, bands: int, rows: int) -> Iterator[tuple[int, int, I64, I64]]:
    """Look signatures up in an index, given as the signatures of its parts, one part in memory at a time.

    Yields (part, band, rows of the part, query numbers): the pairs of an indexed document and a query that agree in
    that whole band, which a verification would then look at. A pair may come once for each band.
    """
    orders = []
    for band in range(bands):
        keys = band_keys(queries, band, rows)
        order = np.argsort(keys, kind="stable")
        orders.append((keys[order], order))
    for part, signatures in enumerate(parts):
        for band, (keys, order) in enumerate(orders):
            found = band_keys(signatures, band, rows)
            begin, end = np.searchsorted(keys, found, "left"), np.searchsorted(keys, found, "right")
            counts = end - begin
            documents = np.repeat(np.arange(found.size), counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            yield part, band, documents, order[np.repeat(begin, counts) + within]
