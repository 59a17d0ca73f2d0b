"""What dedup needs of every document at once: identity, source, size and digest, and signatures on disk.

Signatures are computed part by part into scratch files; a killed build resumes from the parts that exist. In memory are
12 bytes a document; ids, digests (16 bytes each) and signatures (448 bytes by default) are memory-mapped. Kept
documents of earlier runs come before the run's own: the same search finds copies of both.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from model.errors import Bug, InputError
from tasks.artifacts.artifact import Artifact, artifact_at
from tasks.artifacts.tables.columns import binary_rows, numbered_values, text_buffers
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.map_parts import unit_name, work_on_missing
from tasks.artifacts.workspace import Workspace
from tasks.common.numeric import seed64
from tasks.common.work import Executor, Work
from tasks.dedup.config import DedupConfig
from tasks.dedup.index import EarlierPart, earlier_parts
from tasks.dedup.minhash import I32, I64, U8, U32, U64, check_with_datasketch, shingle_sets, signatures_of

CHECKED_DOCUMENTS = 1000
"""Documents of each build that datasketch signs, too; all where there are fewer."""

MOST_DOCUMENTS = (1 << 32) - 1
"""Ranks have 32 bits, and one value is none."""

ROWS_COPIED = 1 << 17
"""Signatures copied at a time (59 MB by default), so that memory does not grow with the size of a part."""


@dataclass(frozen=True)
class CurrentPart:
    """One part of this run's documents; reading checks its bytes."""

    artifact: Path
    name: str
    checked_rows: tuple[int, ...]
    """Rows whose signatures are compared with datasketch's."""

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return DOCUMENTS rows."""
        return read_table(artifact_at(self.artifact).file(self.name), columns)

    def texts(self) -> pa.LargeStringArray:
        """Return the texts, row by row."""
        return self.table(["text"]).column("text").combine_chunks()


@dataclass(frozen=True)
class Corpus:
    """All documents, those of earlier runs first, then this run's in input order."""

    parts: Sequence[EarlierPart | CurrentPart]
    """Where the texts of each part are; earlier parts first."""
    first_row: I64
    """Rows before each part; parts + 1 values."""
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
    signature_files: Sequence[Path] = ()
    """Their files."""

    def __len__(self) -> int:
        return self.sizes.size

    @functools.cached_property
    def earlier_parts(self) -> int:
        """Return how many of `parts` belong to earlier runs."""
        return sum(isinstance(part, EarlierPart) for part in self.parts)

    @property
    def own_parts(self) -> range:
        """Return which of `parts` are of this run."""
        return range(self.earlier_parts, len(self.parts))

    @property
    def earlier(self) -> int:
        """Return how many rows are kept documents of earlier runs; they can be named as representatives, never
        removed."""
        return int(self.first_row[self.earlier_parts])

    def texts_of_part(self, part: int) -> pa.LargeStringArray:
        """Return the whole texts of a part, as they were before any cut."""
        return self.parts[part].texts()

    def signature_rows(self, rows: I64) -> U32:
        """Return signatures of the given documents (ascending global rows), for few of them."""
        return np.concatenate([part[own] for part, own in zip(self.signatures, self.rows_by_part(rows), strict=True)])

    def rows_by_part(self, rows: I64) -> list[I64]:
        """Return ascending global rows part by part, counted from the part's first."""
        own = np.split(rows, np.searchsorted(rows, self.first_row[1:-1]))
        return [mine - first for mine, first in zip(own, self.first_row[:-1], strict=True)]

    def earlier_identity(self, row: int) -> str | None:
        """Return the identity of the earlier artifact that a row comes from; None for this run's own documents."""
        source_part = self.parts[int(np.searchsorted(self.first_row, row, side="right")) - 1]
        return source_part.identity if isinstance(source_part, EarlierPart) else None


def read_corpus(
    documents: Artifact, earlier: Sequence[Artifact], config: DedupConfig, workspace: Workspace, executor: Executor
) -> Corpus:
    """Compute the signatures that are missing, then open all of them. Raises InputError for more documents than there
    are ranks."""
    own, others = documents.rows("documents"), sum(artifact.rows("index") for artifact in earlier)
    if own + others > MOST_DOCUMENTS:
        raise InputError(
            f"dedup: the run has {own:,} documents and the runs of dedup.against {others:,}, and at most"
            f" {MOST_DOCUMENTS:,} can be compared. Sample fewer documents, or name fewer runs in dedup.against."
        )
    parts = [*earlier_parts(earlier, config), *_current_parts(documents, config)]
    scratch = workspace.within("signatures")
    _sign_parts(parts, config, scratch, workspace, executor)

    def facts(index: int) -> Any:
        """Open a part's arrays, which are read lazily; close it, since there may be more parts than open files."""
        return np.load(scratch.file(_facts_name(index)))

    rows_of_parts, names = [], set[str]()
    for index in range(len(parts)):
        with facts(index) as part:
            rows_of_parts.append(int(part["rows"]))
            names.update(part["source_names"].tolist())
    source_names = sorted(names)
    numbers = {name: number for number, name in enumerate(source_names)}
    first_row = np.cumsum([0, *rows_of_parts], dtype=np.int64)
    rows = int(first_row[-1])
    sizes, sources = np.zeros(rows, np.int64), np.full(rows, -1, np.int32)
    for index, source_part in enumerate(parts):
        if isinstance(source_part, CurrentPart):
            with facts(index) as part:
                mine = slice(first_row[index], first_row[index + 1])
                sizes[mine] = part["sizes"]
                own = np.array([numbers[name] for name in part["source_names"].tolist()], np.int32)
                sources[mine] = own[part["sources"]]
    signature_files = [scratch.file(f"{unit_name(index)}.npy") for index in range(len(parts))]
    return Corpus(
        parts=parts,
        first_row=first_row,
        doc_ids=_concatenate(scratch.folder / "doc_ids.u8", facts, "doc_ids", first_row),
        digests=_concatenate(scratch.folder / "digests.u8", facts, "digests", first_row),
        sizes=sizes,
        sources=sources,
        source_names=source_names,
        signatures=[np.load(file, mmap_mode="r") for file in signature_files],
        signature_files=signature_files,
    )


def _current_parts(documents: Artifact, config: DedupConfig) -> list[CurrentPart]:
    records = [record for record in documents.records if record.table == "documents"]
    first_row = np.cumsum([0, *(record.rows for record in records)])
    total = int(first_row[-1])
    generator = np.random.Generator(np.random.Philox(key=seed64(config.seed, "dedup", "signed by datasketch")))
    checked = np.sort(generator.choice(total, min(total, CHECKED_DOCUMENTS), replace=False))
    bounds = np.searchsorted(checked, first_row)
    return [
        CurrentPart(documents.path, record.name, tuple((checked[bounds[index] : bounds[index + 1]] - begin).tolist()))
        for index, (record, begin) in enumerate(zip(records, first_row[:-1], strict=True))
    ]


def _sign_parts(
    parts: Sequence[EarlierPart | CurrentPart],
    config: DedupConfig,
    scratch: Workspace,
    workspace: Workspace,
    executor: Executor,
) -> None:
    work = Work(
        functools.partial(_sign_part, config, scratch.for_worker()),
        name=lambda index: parts[index].name,
        arguments=lambda index: (parts[index],),
    )
    count = len(parts)
    work_on_missing(work, count, scratch, executor, lambda done: workspace.advance(done, count, "parts signed"))


def _sign_part(config: DedupConfig, scratch: Workspace, index: int, source_part: EarlierPart | CurrentPart) -> None:
    if isinstance(source_part, CurrentPart):
        signatures, facts = _sign_current_part(source_part, config)
    else:
        table = source_part.index(["doc_id", "text_digest"])
        signatures = source_part.signatures(config)
        facts = {
            "rows": np.int64(table.num_rows),
            "doc_ids": binary_rows(table.column("doc_id")),
            "digests": binary_rows(table.column("text_digest")),
            "source_names": np.array([], dtype=np.str_),
        }
    name = f"{unit_name(index)}.npy"
    with scratch.unit(unit_name(index)) as unit:
        # Column order: a band reads its own seven columns, not all 112 of every document sixteen times.
        np.save(unit.path(name), np.asfortranarray(signatures))
        np.savez(unit.path(_facts_name(index)), allow_pickle=False, **facts)
        unit.add_file(name)
        unit.add_file(_facts_name(index))


def _sign_current_part(source_part: CurrentPart, config: DedupConfig) -> tuple[U32, dict[str, np.ndarray]]:
    table = source_part.table()
    if any(table.column("piece").to_pylist()):
        raise Bug(
            f"dedup: {source_part.artifact / source_part.name} has cut pieces; only whole documents can be compared"
        )
    data, offsets = text_buffers(table.column("text"))
    width, seed = config.shingle_words, config.permutation_seed
    signatures = signatures_of(data, offsets, width, config.signature_length, seed)
    checked = np.array(source_part.checked_rows, np.int64)
    check_with_datasketch(data, offsets, checked, width, seed, signatures, str(source_part.artifact / source_part.name))
    sources, names = numbered_values(table.column("source"))
    facts = {
        "rows": np.int64(table.num_rows),
        "doc_ids": binary_rows(table.column("doc_id")),
        "digests": binary_rows(table.column("text_digest")),
        "sizes": np.diff(offsets),
        "sources": sources,
        "source_names": np.array(names, dtype=np.str_),
    }
    return signatures, facts


def _facts_name(index: int) -> str:
    return f"{unit_name(index)}.npz"


def _concatenate(path: Path, facts: Callable[[int], Any], name: str, first_row: I64) -> U8:
    rows = int(first_row[-1])
    with path.open("wb") as stream:
        for index in range(first_row.size - 1):
            with facts(index) as part:
                stream.write(np.ascontiguousarray(part[name]).data)
    return np.memmap(path, np.uint8, mode="r", shape=(rows, 16)) if rows else np.empty((0, 16), np.uint8)


def write_shingle_sets(corpus: Corpus, rows: I64, config: DedupConfig, target: Path) -> tuple[U64, I64]:
    """Write the shingle sets of the given documents (ascending global rows) to a file, so that memory is bounded.

    Returns (all sets in a line, memory-mapped; where each set begins, rows + 1 values).
    """
    by_part = corpus.rows_by_part(rows)

    def of_part(index: int) -> tuple[U64, I64]:
        wanted = by_part[index]
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
    """Write signatures of the given documents (ascending global rows); returns them memory-mapped, (rows, length)."""
    with target.open("wb") as stream:
        for part, wanted in zip(corpus.signatures, corpus.rows_by_part(rows), strict=True):
            for begin in range(0, wanted.size, ROWS_COPIED):
                stream.write(np.ascontiguousarray(part[wanted[begin : begin + ROWS_COPIED]]).data)
    length = corpus.signatures[0].shape[1]
    return np.asarray(np.memmap(target, np.uint32, mode="r", shape=(rows.size, length)))
