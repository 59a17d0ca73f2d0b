"""What dedup must know of every document at once: identity, source, size and digest, and signatures on disk.

Signatures are computed part by part into scratch files; a killed build goes on from the parts that are there. In memory
stay 12 bytes a document; ids, digests (16 bytes each) and signatures (448 bytes by default) are memory-mapped. Kept
documents of earlier runs stand before the run's own: the same search finds copies of both.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from model.durable import write_atomically
from model.errors import Bug
from tasks.artifact import Artifact, read_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.earlier import EarlierPart, earlier_parts
from tasks.dedup.index import index_signatures
from tasks.dedup.minhash import signatures_of, text_buffers
from tasks.dedup.shingles import I32, I64, U8, U32, U64, shingle_sets
from tasks.parts import unit_name
from tasks.workspace import Workspace


@dataclass(frozen=True)
class Corpus:
    """All documents, those of earlier runs first, then this run's in input order."""

    parts: Sequence[EarlierPart | Path]
    """Where the texts of each part are; earlier parts first."""
    first_row: I64
    """Rows before each part; parts + 1 values."""
    earlier: int
    """Rows that are kept documents of earlier runs; they can only be named, never removed."""
    doc_ids: U8
    """(documents, 16) raw doc_id."""
    digests: U8
    """(documents, 16) BLAKE3-128 of the text."""
    sizes: I64
    """UTF-8 bytes of each text; 0 for documents of earlier runs, where nothing depends on it."""
    sources: I32
    """Index into `source_names`; -1 for documents of earlier runs."""
    source_names: list[str]
    signatures: Sequence[U32]
    """Memory-mapped signatures of each part, (rows, signature length)."""

    def __len__(self) -> int:
        return self.sizes.size

    @property
    def earlier_parts(self) -> int:
        """How many of `parts` belong to earlier runs."""
        return int(np.searchsorted(self.first_row, self.earlier)) if self.earlier else 0

    def texts_of_part(self, part: int) -> pa.LargeStringArray:
        """The whole texts of a part, as they were before any cut."""
        place = self.parts[part]
        return text_column(read_table(place)) if isinstance(place, Path) else place.texts()

    def signature_rows(self, rows: I64) -> U32:
        """Signatures of the given documents (ascending global rows), for few of them."""
        cuts = np.searchsorted(rows, self.first_row)
        pieces = [
            part[rows[cuts[index] : cuts[index + 1]] - self.first_row[index]]
            for index, part in enumerate(self.signatures)
        ]
        return np.concatenate(pieces)

    def earlier_identity(self, row: int) -> str | None:
        """The identity of the earlier artifact that a row comes from; None for this run's own documents."""
        place = self.parts[int(np.searchsorted(self.first_row, row, side="right")) - 1]
        return None if isinstance(place, Path) else place.identity


def text_column(table: pa.Table) -> pa.LargeStringArray:
    """The texts of a DOCUMENTS part as one Arrow array."""
    column = table.column("text").combine_chunks()
    return column if isinstance(column, pa.Array) else column.chunk(0)


def binary_rows(column: pa.ChunkedArray) -> U8:
    """A column of fixed-size binary values as a (rows, size) byte matrix."""
    values = column.combine_chunks()
    size = values.type.byte_width
    return np.frombuffer(b"".join(values.to_pylist()), np.uint8).reshape(-1, size)


def read_corpus(documents: Artifact, earlier: Sequence[Artifact], config: DedupConfig, workspace: Workspace) -> Corpus:
    """Compute what is missing of the signatures (in `threads`), then open all of them."""
    parts = [*earlier_parts(earlier, config), *documents.files("documents")]
    scratch = workspace.scratch("signatures")
    missing = [index for index in range(len(parts)) if not _facts_file(scratch, index).exists()]
    with ThreadPoolExecutor(config.threads) as pool:
        waiting = pool.map(lambda index: _sign_part(parts[index], index, config, scratch), missing)
        for done, _ in enumerate(waiting, start=len(parts) - len(missing) + 1):
            workspace.advance(done, len(parts), "parts signed")
    facts = [np.load(_facts_file(scratch, index)) for index in range(len(parts))]
    names = sorted({str(name) for part in facts for name in part["source_names"]})
    numbers = {name: number for number, name in enumerate(names)}
    first_row = np.cumsum([0, *(part["rows"] for part in facts)], dtype=np.int64)
    rows = int(first_row[-1])
    sizes, sources = np.zeros(rows, np.int64), np.full(rows, -1, np.int32)
    earlier_count = 0
    for index, part in enumerate(facts):
        begin, end = first_row[index], first_row[index + 1]
        if not isinstance(parts[index], Path):
            earlier_count = int(end)
            continue
        sizes[begin:end] = part["sizes"]
        own = np.array([numbers[str(name)] for name in part["source_names"]], np.int32)
        sources[begin:end] = own[part["sources"]]
    return Corpus(
        parts=parts,
        first_row=first_row,
        earlier=earlier_count,
        doc_ids=_joined(scratch / "doc_ids.u8", (part["doc_ids"] for part in facts), rows),
        digests=_joined(scratch / "digests.u8", (part["digests"] for part in facts), rows),
        sizes=sizes,
        sources=sources,
        source_names=names,
        signatures=[np.load(scratch / f"{unit_name(index)}.npy", mmap_mode="r") for index in range(len(parts))],
    )


def _joined(path: Path, pieces, rows: int) -> U8:  # a generator of (rows, 16) bytes
    with path.open("wb") as stream:
        for piece in pieces:
            stream.write(np.ascontiguousarray(piece).data)
    return np.memmap(path, np.uint8, mode="r", shape=(rows, 16)) if rows else np.empty((0, 16), np.uint8)


def _facts_file(scratch: Path, index: int) -> Path:
    return scratch / f"{unit_name(index)}.npz"


def _sign_part(place: EarlierPart | Path, index: int, config: DedupConfig, scratch: Path) -> None:
    if isinstance(place, Path):
        signatures, facts = _own_part(place, config)
    else:
        table = place.index()
        signatures = index_signatures(table)
        facts = {
            "rows": np.int64(table.num_rows),
            "doc_ids": binary_rows(table.column("doc_id")),
            "digests": binary_rows(table.column("text_digest")),
            "source_names": np.array([], dtype=np.str_),
        }
    blob = io.BytesIO()
    # By columns: a band reads its own seven of them, not all 112 of every document sixteen times.
    np.save(blob, np.asfortranarray(signatures))
    write_atomically(scratch / f"{unit_name(index)}.npy", blob.getvalue())
    blob = io.BytesIO()
    np.savez(blob, allow_pickle=False, **facts)
    write_atomically(_facts_file(scratch, index), blob.getvalue())


def _own_part(path: Path, config: DedupConfig) -> tuple[U32, dict[str, np.ndarray]]:
    table = read_table(path)
    if any(table.column("piece").to_pylist()):
        raise Bug(f"dedup: {path} holds cut pieces; only whole documents can be compared")
    data, offsets = text_buffers(text_column(table))
    signatures = signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)
    source = table.column("source").combine_chunks()
    source = source.chunk(0) if isinstance(source, pa.ChunkedArray) else source
    facts = {
        "rows": np.int64(table.num_rows),
        "doc_ids": binary_rows(table.column("doc_id")),
        "digests": binary_rows(table.column("text_digest")),
        "sizes": np.diff(offsets),
        "sources": source.indices.to_numpy().astype(np.int64),
        "source_names": np.array(source.dictionary.to_pylist(), dtype=np.str_),
    }
    return signatures, facts


def write_shingle_sets(corpus: Corpus, rows: I64, config: DedupConfig, target: Path) -> tuple[U64, I64]:
    """Shingle sets of the given documents (ascending global rows), through a file so that memory stays bounded.

    Returns (all sets in a line, memory-mapped; where each set begins, rows + 1 values).
    """
    cuts = np.searchsorted(rows, corpus.first_row)

    def of_part(index: int) -> tuple[U64, I64]:
        wanted = rows[cuts[index] : cuts[index + 1]] - corpus.first_row[index]
        if not wanted.size:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        data, offsets = text_buffers(corpus.texts_of_part(index))
        return shingle_sets(data, offsets, wanted, config.shingle_words)

    lengths = [np.empty(0, np.int64)]
    parts = len(corpus.parts)
    with ThreadPoolExecutor(config.threads) as pool, target.open("wb") as stream:
        for begin in range(0, parts, config.threads):
            for flat, part_lengths in pool.map(of_part, range(begin, min(begin + config.threads, parts))):
                stream.write(flat.data)
                lengths.append(part_lengths)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    flat = np.asarray(np.memmap(target, np.uint64, mode="r")) if starts[-1] else np.empty(0, np.uint64)
    return flat, starts


def write_signatures(corpus: Corpus, rows: I64, target: Path) -> U32:
    """Signatures of the given documents (ascending global rows) as one memory-mapped (rows, length) matrix."""
    cuts = np.searchsorted(rows, corpus.first_row)
    with target.open("wb") as stream:
        for index, part in enumerate(corpus.signatures):
            wanted = rows[cuts[index] : cuts[index + 1]] - corpus.first_row[index]
            for begin in range(0, wanted.size, ROWS_COPIED):
                stream.write(np.ascontiguousarray(part[wanted[begin : begin + ROWS_COPIED]]).data)
    length = corpus.signatures[0].shape[1]
    return np.asarray(np.memmap(target, np.uint32, mode="r", shape=(rows.size, length)))


ROWS_COPIED = 1 << 17
"""Signatures copied at a time (59 MB by default), so that memory does not grow with the size of a part."""
