"""The index of kept documents, for later runs and other programs, and the parts of earlier artifacts.

INDEX rows are in the order of the parts they come from: doc_id, text_digest, and the MinHash signature (unsigned 32-bit
values, datasketch's `affine32` with the seed and shingle length of the stage's settings, which the manifest records).
The signature of a short text is null: it would be more than a quarter of the text, cannot be compressed, and is made
again from the text when it is needed. `datasketch_index` returns all of them as a `datasketch.MinHashLSH`.

Of an earlier artifact, INDEX is searched and the texts verify what is found. It is part of the identity by its content,
so that it may be named by any path. Its signatures must have been made by the same hashes as this run's, which is
checked on documents of the artifact itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model.errors import InputError, IntegrityError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.columns import text_buffers
from tasks.artifacts.tables.files import read_table
from tasks.common.groups import places_within
from tasks.dedup.config import DedupConfig
from tasks.dedup.minhash import I64, U32, band_keys, empty_minhash, sign_with_datasketch, signatures_of

if TYPE_CHECKING:
    from datasketch import MinHash, MinHashLSH

UNCUT = "uncut"
SIGNATURES_CHECKED = 16
SIGNATURE_SHARE = 4
"""Bytes of text for each byte of its signature, from which on INDEX stores it."""


@dataclass(frozen=True)
class EarlierPart:
    """One part of an earlier artifact: its INDEX rows and the texts that belong to them, row by row."""

    identity: str
    documents: Path
    index_file: Path
    uncut: Path | None
    """Whole texts of documents that were cut after they had been compared."""

    @property
    def name(self) -> str:
        """The name of the file of its documents."""
        return self.documents.name

    def index(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the INDEX rows."""
        return read_table(self.index_file, columns)

    def signatures(self, config: DedupConfig) -> U32:
        """Return the (rows, signature length) matrix of all documents; those that INDEX lacks are made from texts."""
        signatures, is_stored = index_signatures(self.index(["signature"]))
        missing = np.flatnonzero(~is_stored)
        if missing.size:
            signatures[missing] = _signed(self.texts().take(pa.array(missing)), config)
        return signatures

    def texts(self) -> pa.LargeStringArray:
        """Return the texts that the signatures of `index` belong to."""
        table = read_table(self.documents, ["doc_id", "text"])
        if not table.column("doc_id").equals(self.index(["doc_id"]).column("doc_id")):
            raise IntegrityError(
                f"{self.documents} and {self.index_file.name} do not contain the same documents in the same order"
            )
        texts = table.column("text")
        if self.uncut is not None:
            whole = read_table(self.uncut)
            found = pc.index_in(table.column("doc_id"), value_set=whole.column("doc_id").combine_chunks())
            texts = pc.coalesce(pc.take(whole.column("text"), found), texts)
        return texts.combine_chunks()


def earlier_parts(artifacts: Sequence[Artifact], config: DedupConfig) -> list[EarlierPart]:
    """Return the parts of earlier artifacts in order, after checking that settings and signatures fit `config`.

    Raises RecipeError where the settings of the signatures differ, InputError where the hashes do.
    """
    parts: list[EarlierPart] = []
    for artifact in artifacts:
        _check_settings(artifact, config)
        parts += _parts_of(artifact)
    checked = set()
    for part in parts:
        if part.identity not in checked and _check_signatures(part, config):
            checked.add(part.identity)
    return parts


def _parts_of(artifact: Artifact) -> list[EarlierPart]:
    uncut = {path.stem.rpartition("-")[2]: path for path in artifact.files(UNCUT)}
    return [
        EarlierPart(artifact.identity, documents, index, uncut.get(documents.stem.rpartition("-")[2]))
        for documents, index in zip(artifact.files("documents"), artifact.files("index"), strict=True)
    ]


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


def _check_signatures(part: EarlierPart, config: DedupConfig) -> bool:
    """Sign some documents again: the code or the Unicode database may have changed since they were signed.

    Returns whether there were any signatures to compare."""
    signatures, is_stored = index_signatures(part.index(["signature"]))
    rows = np.flatnonzero(is_stored)[:SIGNATURES_CHECKED]
    if rows.size and not np.array_equal(_signed(part.texts().take(pa.array(rows)), config), signatures[rows]):
        raise InputError(
            f"dedup.against: {part.index_file} contains signatures that this version does not make of the same"
            f" texts, so they cannot be compared. Build the earlier run again with this version, then name the new one."
        )
    return rows.size > 0


def _signed(texts: pa.LargeStringArray, config: DedupConfig) -> U32:
    data, offsets = text_buffers(texts)
    return signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)


def index_table(doc_ids: pa.ChunkedArray, digests: pa.ChunkedArray, signatures: U32, sizes: I64) -> pa.Table:
    """Return INDEX rows of one part's kept documents; `signatures` is (rows, signature length), `sizes` the bytes of
    their texts."""
    length = signatures.shape[1]
    is_missing = sizes < SIGNATURE_SHARE * length * signatures.itemsize
    flat = np.where(is_missing[:, None], np.uint32(0), signatures).reshape(-1)
    values = pa.FixedSizeListArray.from_arrays(pa.array(flat), length, mask=pa.array(is_missing))
    schema = pa.schema(
        [
            pa.field("doc_id", pa.binary(16), nullable=False),
            pa.field("text_digest", pa.binary(16), nullable=False),
            pa.field("signature", values.type),
        ]
    )
    return pa.table([doc_ids, digests, values], schema=schema)


def index_signatures(table: pa.Table) -> tuple[U32, npt.NDArray[np.bool_]]:
    """Return the (rows, signature length) matrix of an INDEX table, and which of its rows are stored; others are 0."""
    column = table.column("signature")
    is_stored = column.is_valid().to_numpy()
    signatures = np.zeros((table.num_rows, column.type.list_size), np.uint32)
    # `flatten` leaves out the values of nulls.
    flat = [np.empty(0, np.uint32), *(chunk.flatten().to_numpy() for chunk in column.chunks)]
    signatures[is_stored] = np.concatenate(flat).reshape(-1, column.type.list_size)
    return signatures, is_stored


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
            yield part, band, documents, order[np.repeat(begin, counts) + places_within(counts)]


def datasketch_index(dedup: Artifact) -> "MinHashLSH":
    """Return the kept documents of a dedup artifact as a `datasketch.MinHashLSH` with their doc_id (hex) as keys.

    It has the stage's own bands and is held in memory. `datasketch_query(dedup, text)` signs a text to query it with.
    """
    from datasketch import MinHashLSH

    config = _settings(dedup)
    lsh = MinHashLSH(num_perm=config.signature_length, params=(config.bands, config.rows_per_band))
    empty = empty_minhash(config.signature_length, config.permutation_seed)
    with lsh.insertion_session() as session:
        for part in _parts_of(dedup):
            for doc_id, signature in zip(part.index(["doc_id"]).column("doc_id"), part.signatures(config), strict=True):
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
