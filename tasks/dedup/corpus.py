"""What dedup must know of every document at once: identity, source, size and digest, and signatures on disk.

Signatures are computed part by part into scratch files; a killed build goes on from the parts that are there. In memory
stay about 50 bytes a document; signatures (448 bytes a document by default) are memory-mapped.
"""

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from model.durable import write_atomically
from model.errors import Bug
from tasks.artifact import Artifact, read_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.minhash import signatures_of, text_buffers
from tasks.dedup.shingles import I64, U8, U32, U64, shingle_sets
from tasks.parts import unit_name
from tasks.workspace import Workspace


@dataclass(frozen=True)
class Corpus:
    """All documents in input order; row r of part p stands at `first_row[p]` + r."""

    paths: list[Path]
    first_row: I64
    """Rows before each part; parts + 1 values."""
    doc_ids: U8
    """(documents, 16) raw doc_id."""
    digests: U8
    """(documents, 16) BLAKE3-128 of the text."""
    sizes: I64
    """UTF-8 bytes of each text."""
    sources: I64
    """Index into `source_names`."""
    source_names: list[str]
    signatures: list[U32]
    """Memory-mapped signatures of each part, (rows, signature length)."""

    def __len__(self) -> int:
        return self.sizes.size

    def signature_rows(self, rows: I64) -> U32:
        """Signatures of the given documents (ascending global rows)."""
        cuts = np.searchsorted(rows, self.first_row)
        pieces = [
            part[rows[cuts[index] : cuts[index + 1]] - self.first_row[index]]
            for index, part in enumerate(self.signatures)
        ]
        return np.concatenate([*pieces, np.empty((0, self.signatures[0].shape[1]), np.uint32)])


def text_column(table: pa.Table) -> pa.LargeStringArray:
    """The texts of a DOCUMENTS part as one Arrow array."""
    column = table.column("text").combine_chunks()
    return column if isinstance(column, pa.Array) else column.chunk(0)


def binary_rows(column: pa.ChunkedArray) -> U8:
    """A column of fixed-size binary values as a (rows, size) byte matrix."""
    values = column.combine_chunks()
    size = values.type.byte_width
    return np.frombuffer(b"".join(values.to_pylist()), np.uint8).reshape(-1, size)


def read_corpus(documents: Artifact, config: DedupConfig, workspace: Workspace) -> Corpus:
    """Compute what is missing of the signatures (in `threads`), then open all of them."""
    paths = documents.files("documents")
    scratch = workspace.scratch("signatures")
    missing = [index for index in range(len(paths)) if not _facts_file(scratch, index).exists()]
    with ThreadPoolExecutor(config.threads) as pool:
        waiting = pool.map(lambda index: _sign_part(paths[index], index, config, scratch), missing)
        for done, _ in enumerate(waiting, start=len(paths) - len(missing) + 1):
            workspace.advance(done, len(paths), "parts signed")
    facts = [np.load(_facts_file(scratch, index)) for index in range(len(paths))]
    names = sorted({str(name) for part in facts for name in part["source_names"]})
    numbers = {name: number for number, name in enumerate(names)}
    sources = [
        np.array([numbers[str(name)] for name in part["source_names"]], np.int64)[part["sources"]] for part in facts
    ]
    return Corpus(
        paths=paths,
        first_row=np.cumsum([0, *(part["sizes"].size for part in facts)]),
        doc_ids=np.concatenate([np.empty((0, 16), np.uint8), *(part["doc_ids"] for part in facts)]),
        digests=np.concatenate([np.empty((0, 16), np.uint8), *(part["digests"] for part in facts)]),
        sizes=np.concatenate([np.empty(0, np.int64), *(part["sizes"] for part in facts)]),
        sources=np.concatenate([np.empty(0, np.int64), *sources]),
        source_names=names,
        signatures=[np.load(scratch / f"{unit_name(index)}.npy", mmap_mode="r") for index in range(len(paths))],
    )


def _facts_file(scratch: Path, index: int) -> Path:
    return scratch / f"{unit_name(index)}.npz"


def _sign_part(path: Path, index: int, config: DedupConfig, scratch: Path) -> None:
    table = read_table(path)
    if any(table.column("piece").to_pylist()):
        raise Bug(f"dedup: {path} holds cut pieces; only whole documents can be compared")
    data, offsets = text_buffers(text_column(table))
    signatures = signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)
    source = table.column("source").combine_chunks()
    source = source.chunk(0) if isinstance(source, pa.ChunkedArray) else source
    names = source.dictionary.to_pylist()
    blob = io.BytesIO()
    np.save(blob, signatures)
    write_atomically(scratch / f"{unit_name(index)}.npy", blob.getvalue())
    facts = io.BytesIO()
    np.savez(
        facts,
        doc_ids=binary_rows(table.column("doc_id")),
        digests=binary_rows(table.column("text_digest")),
        sizes=np.diff(offsets),
        sources=source.indices.to_numpy().astype(np.int64),
        source_names=np.array(names, dtype=np.str_),
    )
    write_atomically(_facts_file(scratch, index), facts.getvalue())


def write_shingle_sets(corpus: Corpus, rows: I64, width: int, threads: int, target: Path) -> tuple[U64, I64]:
    """Shingle sets of the given documents (ascending global rows), through a file so that memory stays bounded.

    Returns (all sets in a line, memory-mapped; where each set begins, rows + 1 values).
    """
    cuts = np.searchsorted(rows, corpus.first_row)

    def of_part(index: int) -> tuple[U64, I64]:
        wanted = rows[cuts[index] : cuts[index + 1]] - corpus.first_row[index]
        if not wanted.size:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        data, offsets = text_buffers(text_column(read_table(corpus.paths[index])))
        return shingle_sets(data, offsets, wanted, width)

    lengths = [np.empty(0, np.int64)]
    with ThreadPoolExecutor(threads) as pool, target.open("wb") as stream:
        for begin in range(0, len(corpus.paths), threads):
            for flat, part_lengths in pool.map(of_part, range(begin, min(begin + threads, len(corpus.paths)))):
                stream.write(flat.data)
                lengths.append(part_lengths)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    flat = np.asarray(np.memmap(target, np.uint64, mode="r")) if starts[-1] else np.empty(0, np.uint64)
    return flat, starts
