"""The index of kept documents: what a later run needs to find copies of them and to name the old document.

INDEX rows stand beside the parts they come from: doc_id, text_digest, and the MinHash signature (unsigned 32-bit
values, datasketch's `affine32` with the seed and shingle length of the stage's settings, which the manifest holds).
`datasketch_index` gives it to other programs as a `datasketch.MinHashLSH`.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.artifact import Artifact
from tasks.dedup.config import DedupConfig
from tasks.dedup.minhash import band_keys, empty_minhash, sign_with_datasketch, text_buffers
from tasks.dedup.shingles import I64, U32

if TYPE_CHECKING:
    from datasketch import MinHash, MinHashLSH


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


def datasketch_index(dedup: Artifact) -> "MinHashLSH":
    """Return the kept documents of a dedup artifact as a `datasketch.MinHashLSH` with their doc_id (hex) as keys.

    It has the stage's own bands. `datasketch_query(dedup, text)` signs a text to ask it with. All of it is in memory.
    """
    from datasketch import MinHashLSH

    config = _settings(dedup)
    lsh = MinHashLSH(num_perm=config.signature_length, params=(config.bands, config.rows_per_band))
    empty = empty_minhash(config.signature_length, config.permutation_seed)
    with lsh.insertion_session() as session:
        for batch in dedup.batches("index"):
            table = pa.Table.from_batches([batch])
            for doc_id, signature in zip(table.column("doc_id"), index_signatures(table), strict=True):
                minhash = empty.copy()
                minhash.hashvalues = signature
                session.insert(doc_id.as_py().hex(), minhash)
    return lsh


def datasketch_query(dedup: Artifact, text: str) -> "MinHash":
    """Return the `datasketch.MinHash` of a text with the shingles and permutations of a dedup artifact."""
    config = _settings(dedup)
    data, offsets = text_buffers(pa.array([text], pa.large_string()))
    return sign_with_datasketch(
        data, offsets, 0, config.shingle_words, config.signature_length, config.permutation_seed
    )


def _settings(dedup: Artifact) -> DedupConfig:
    return DedupConfig.model_validate(dedup.manifest["identity_parts"]["params"])
