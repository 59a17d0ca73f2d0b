"""The index of kept documents, for later runs and other programs, and the parts of earlier artifacts.

INDEX rows are in the order of the parts they come from: doc_id, text_digest, and the MinHash signature (unsigned 32-bit
values, datasketch's `affine32` with the seed and shingle length of the stage's settings, which the manifest records).
`datasketch_index` returns it as a `datasketch.MinHashLSH`.

Of an earlier artifact, INDEX is searched and the texts verify what is found. It is part of the identity by its content,
so that it may be named by any path. Its signatures must have been made by the same hashes as this run's, which is
checked on documents of the artifact itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.errors import InputError, IntegrityError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables import read_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.minhash import I64, U32, band_keys, empty_minhash, sign_with_datasketch, signatures_of, text_buffers

if TYPE_CHECKING:
    from datasketch import MinHash, MinHashLSH

UNCUT = "uncut"
SIGNATURES_CHECKED = 16


@dataclass(frozen=True)
class EarlierPart:
    """One part of an earlier artifact: its INDEX rows and the texts that belong to them, row by row."""

    identity: str
    documents: Path
    index_file: Path
    uncut: Path | None
    """Whole texts of documents that were cut after they had been compared."""

    def index(self) -> pa.Table:
        """Return INDEX rows."""
        return read_table(self.index_file)

    def texts(self) -> pa.LargeStringArray:
        """Return the texts that the signatures of `index` belong to."""
        table = read_table(self.documents).select(["doc_id", "text"])
        if not table.column("doc_id").equals(self.index().column("doc_id")):
            raise IntegrityError(
                f"{self.documents} and {self.index_file.name} do not contain the same documents in the same order"
            )
        texts = table.column("text")
        if self.uncut is not None:
            whole = read_table(self.uncut)
            found = pc.index_in(table.column("doc_id"), value_set=whole.column("doc_id").combine_chunks())
            texts = pc.coalesce(pc.take(whole.column("text"), found), texts)
        texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        return texts if isinstance(texts, pa.Array) else texts.chunk(0)


def earlier_parts(artifacts: Sequence[Artifact], config: DedupConfig) -> list[EarlierPart]:
    """Return the parts of earlier artifacts in order, after checking that settings and signatures fit `config`.

    Raises RecipeError where the settings of the signatures differ, InputError where the hashes do.
    """
    parts: list[EarlierPart] = []
    for artifact in artifacts:
        _check_settings(artifact, config)
        uncut = {path.stem.rpartition("-")[2]: path for path in artifact.files(UNCUT)}
        pairs = zip(artifact.files("documents"), artifact.files("index"), strict=True)
        parts += [
            EarlierPart(artifact.identity, documents, index, uncut.get(documents.stem.rpartition("-")[2]))
            for documents, index in pairs
        ]
    checked = set()
    for part in parts:
        if part.identity not in checked and part.index().num_rows:
            _check_signatures(part, config)
            checked.add(part.identity)
    return parts


def _check_settings(artifact: Artifact, config: DedupConfig) -> None:
    theirs = artifact.manifest["identity_parts"]["params"]
    length = theirs["bands"] * theirs["rows_per_band"]
    wanted = {
        "shingle_words": (config.shingle_words, theirs["shingle_words"]),
        "permutation_seed": (config.permutation_seed, theirs["permutation_seed"]),
        "bands x rows_per_band": (config.signature_length, length),
    }
    for name, (ours, found) in wanted.items():
        if ours != found:
            raise RecipeError(
                f"dedup.against: {artifact.path} was made with {name} = {found}, and this recipe has {ours}."
                f" Signatures of other settings cannot be compared: use theirs, or build the earlier run again."
            )


def _check_signatures(part: EarlierPart, config: DedupConfig) -> None:
    """Sign some documents again: the code or the Unicode database may have changed since they were signed."""
    texts = part.texts().slice(0, SIGNATURES_CHECKED)
    data, offsets = text_buffers(texts)
    recomputed = signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)
    if not np.array_equal(recomputed, index_signatures(part.index().slice(0, SIGNATURES_CHECKED))):
        raise InputError(
            f"dedup.against: {part.index_file} contains signatures that this version does not make of the same"
            f" texts, so they cannot be compared. Build the earlier run again with this version, then name the new one."
        )


def index_table(doc_ids: pa.ChunkedArray, digests: pa.ChunkedArray, signatures: U32) -> pa.Table:
    """Return INDEX rows of one part's kept documents; `signatures` is (rows, signature length)."""
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
    """Return the (rows, signature length) matrix of an INDEX table."""
    column = table.column("signature")
    flat = np.concatenate([np.empty(0, np.uint32), *(chunk.flatten().to_numpy() for chunk in column.chunks)])
    return flat.reshape(table.num_rows, column.type.list_size)


def find_in_index(parts: Iterable[U32], queries: U32, bands: int, rows: int) -> Iterator[tuple[int, int, I64, I64]]:
    """Look signatures up in an index, given as the signatures of its parts, one part in memory at a time.

    Yields (part, band, rows of the part, query numbers): the pairs of an indexed document and a query that agree in
    that whole band and are therefore candidates. A pair may be yielded once for each band.
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

    It has the stage's own bands and is held in memory. `datasketch_query(dedup, text)` signs a text to query it with.
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
