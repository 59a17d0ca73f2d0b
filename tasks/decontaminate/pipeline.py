"""The decontaminate stage: scan part by part, decide globally, cut part by part, measure recall.

Hits of each part are scratch files and output parts are units, so a killed build resumes where it was; the decisions
between them need all parts (how common an n-gram is, which documents are held out), are deterministic and are made
again.
"""

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.errors import Bug
from model.file_content import Content
from tasks.artifacts.artifact import Artifact, artifact_at
from tasks.artifacts.map_parts import PartResult, map_parts, unit_name
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables import read_table, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor, Work
from tasks.decontaminate.benchmarks import items_table, read_items
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.heldout import choose_heldout
from tasks.decontaminate.leaks import (
    COMMON,
    TEMPLATE,
    Evidence,
    Region,
    benchmark_facts,
    document_frequency,
    find_leaks,
    leaks_table,
    weigh_evidence,
)
from tasks.decontaminate.ngrams import I64, Patterns, build_patterns, template_patterns
from tasks.decontaminate.recall import choose_hosts, make_controls, measure_search
from tasks.decontaminate.rewrite import Decisions, rewrite_part
from tasks.decontaminate.scan import Hits, Verifier, scan_texts, text_buffers

LISTED_NGRAMS = 50
FLAG = "flag"


@dataclass(frozen=True)
class _Corpus:
    """What decisions need of every document, in input order; row r of part p is at first_row[p] + r."""

    first_row: I64
    doc_ids: npt.NDArray[np.uint8]
    sizes: I64
    source_names: list[str]
    sources: npt.NDArray[np.int32]
    """The number of each document's source in `source_names`."""
    hits_files: list[Path]
    frequency: I64
    """Documents that contain each pattern."""
    unverified: int
    """Hits by hash whose words differ: chance collisions of 64-bit hashes."""

    def rows_of_part(self, index: int) -> tuple[int, int]:
        """Return the first row of a part, and the one after its last."""
        return int(self.first_row[index]), int(self.first_row[index + 1])


def decontaminate(
    documents: Artifact,
    config: DecontaminateConfig,
    contents: Mapping[Path, Content],
    workspace: Workspace,
    executor: Executor,
) -> StageReport:
    """Cut, drop or flag what the benchmarks share with DOCUMENTS, and set the held-out split aside.

    `contents` are the contents of the benchmarks' files. The bytes are the same for any number of workers. Raises
    InputError for a benchmark that is missing, empty or lacks a field, before any document is read.
    """
    items = read_items(config.benchmarks, contents)
    patterns = build_patterns(items, config)
    corpus = _scan_corpus(documents, patterns, workspace, executor)
    template = template_patterns(patterns, items, config.template_items)
    evidence = weigh_evidence(patterns, corpus.frequency, corpus.sizes.size, template, config)
    leaks = _find_corpus_leaks(corpus, patterns, evidence, config)
    decisions = Decisions(dict(enumerate(items)), leaks, _heldout_rows(corpus, leaks, config))
    report = map_parts(
        workspace,
        documents,
        functools.partial(_rewrite_part, config),
        executor,
        about=lambda index: (decisions.between(*corpus.rows_of_part(index)),),
    )
    remains = config.mode == FLAG
    _write_run_table(workspace, "items", items_table(items))
    _write_run_table(workspace, "leaks", leaks_table(items, patterns, leaks, corpus.doc_ids, remains))
    hosts = _host_texts(documents, corpus, _leak_free(corpus, leaks), config)
    controls = make_controls(patterns, evidence, hosts, config)
    report.facts = {
        "benchmarks": benchmark_facts(items, patterns, leaks, remains),
        "common_ngrams": _frequent_weak_ngrams(patterns, evidence, corpus.frequency),
        "hash_collisions": corpus.unverified,
        "forms": dict(sorted(Counter(region.form for regions in leaks.values() for region in regions).items())),
        "leaked_documents": len(leaks),
        "planted": measure_search(controls, patterns, evidence, config),
    }
    return report


def _scan_corpus(documents: Artifact, patterns: Patterns, workspace: Workspace, executor: Executor) -> _Corpus:
    names = documents.names("documents")
    scanning = workspace.within("hits")
    missing = [index for index in range(len(names)) if scanning.finished(unit_name(index)) is None]
    work = Work(
        functools.partial(_scan_part, documents.path, patterns, scanning.for_worker()),
        name=names.__getitem__,
        arguments=lambda index: (names[index],),
    )
    for done, _ in enumerate(executor.map(work, missing), start=len(names) - len(missing) + 1):
        workspace.advance(done, len(names), "parts scanned")
    files = [scanning.file(_hits_name(index)) for index in range(len(names))]
    scanning.await_units([unit_name(index) for index in missing], executor)
    doc_ids, sizes, sources = [np.empty((0, 16), np.uint8)], [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    numbers: dict[str, int] = {}
    frequency = np.zeros(len(patterns), np.int64)
    unverified = 0
    for file in files:
        with np.load(file) as part:
            renumber = [numbers.setdefault(str(name), len(numbers)) for name in part["source_names"]]
            doc_ids.append(part["doc_ids"])
            sizes.append(part["sizes"])
            sources.append(np.array(renumber, np.int32)[part["sources"]])
            frequency += document_frequency(Hits(*part["hits"]), patterns)
            unverified += int(part["unverified"])
    return _Corpus(
        first_row=np.cumsum([0, *(part.size for part in sizes[1:])]),
        doc_ids=np.concatenate(doc_ids),
        sizes=np.concatenate(sizes),
        source_names=list(numbers),
        sources=np.concatenate(sources),
        hits_files=files,
        frequency=frequency,
        unverified=unverified,
    )


def _scan_part(documents: Path, patterns: Patterns, scanning: Workspace, index: int, name: str) -> None:
    table = read_table(artifact_at(documents).file(name))
    if any(table.column("piece").to_pylist()):
        raise Bug(f"decontaminate: {documents / name} holds pieces; documents can be cut into pieces only once")
    texts = pa.concat_arrays(table.column("text").chunks) if table.num_rows else pa.array([], pa.large_string())
    data, offsets = text_buffers(texts)
    found = scan_texts(data, offsets, patterns)
    # Each thread has its own verifier, since its cache is not thread-safe.
    hits = Verifier(patterns).verified(data, offsets, found)
    sources = table.column("source").to_pylist()
    names = sorted(set(sources))
    with scanning.unit(unit_name(index)) as unit:
        np.savez(
            unit.path(_hits_name(index)),
            hits=np.array([hits.row, hits.pattern, hits.word, hits.start, hits.end], np.int64).reshape(5, -1),
            unverified=np.array(len(found) - len(hits)),
            doc_ids=np.frombuffer(b"".join(table.column("doc_id").to_pylist()), np.uint8).reshape(-1, 16),
            sizes=np.diff(offsets),
            sources=np.array([names.index(source) for source in sources], np.int64),
            source_names=np.array(names, dtype=np.str_),
        )
        unit.add_file(_hits_name(index))


def _hits_name(index: int) -> str:
    return f"{unit_name(index)}.npz"


def _find_corpus_leaks(
    corpus: _Corpus, patterns: Patterns, evidence: Evidence, config: DecontaminateConfig
) -> dict[int, list[Region]]:
    """Return leaks of all parts, documents numbered through the run; one part's hits are in memory at a time."""
    leaks: dict[int, list[Region]] = {}
    for first, file in zip(corpus.first_row.tolist(), corpus.hits_files, strict=False):
        with np.load(file) as part:
            found = find_leaks(patterns, Hits(*part["hits"]), evidence, config)
        leaks.update({first + row: regions for row, regions in found.items()})
    return leaks


def _heldout_rows(corpus: _Corpus, leaks: dict[int, list[Region]], config: DecontaminateConfig) -> frozenset[int]:
    leak_free = _leak_free(corpus, leaks)
    chosen: set[int] = set()
    for number, source in enumerate(corpus.source_names):
        rows = np.flatnonzero(corpus.sources == number)
        held = choose_heldout(corpus.doc_ids[rows], corpus.sizes[rows], source, leak_free[rows], config)
        chosen.update(rows[held].tolist())
    return frozenset(chosen)


def _rewrite_part(config: DecontaminateConfig, table: pa.Table, index: int, decisions: Decisions) -> PartResult:
    del index
    return rewrite_part(table, decisions, config)


def _write_run_table(workspace: Workspace, name: str, table: pa.Table) -> None:
    if workspace.finished(name) is None:
        with workspace.unit(name) as unit:
            write_table(unit, name, table)


def _host_texts(
    documents: Artifact, corpus: _Corpus, leak_free: npt.NDArray[np.bool_], config: DecontaminateConfig
) -> list[str]:
    hosts = choose_hosts(corpus.doc_ids, corpus.sizes, leak_free, config.planted_per_form, config.seed)
    parts = np.searchsorted(corpus.first_row, hosts, side="right") - 1
    names = documents.names("documents")
    texts: list[str] = []
    for part in np.unique(parts).tolist():
        rows = hosts[parts == part] - corpus.first_row[part]
        texts += read_table(documents.file(names[part])).column("text").take(pa.array(rows)).to_pylist()
    return texts


def _leak_free(corpus: _Corpus, leaks: dict[int, list[Region]]) -> npt.NDArray[np.bool_]:
    leak_free = np.ones(corpus.sizes.size, np.bool_)
    leak_free[list(leaks)] = False
    return leak_free


def _frequent_weak_ngrams(patterns: Patterns, evidence: Evidence, frequency: I64) -> list[dict[str, Any]]:
    """Return the most frequent n-grams of the run that are not evidence by themselves, with words and counts."""
    verifier = Verifier(patterns)
    seen = np.flatnonzero(evidence.weak & (frequency > 0))
    order = np.lexsort((seen, -frequency[seen]))[:LISTED_NGRAMS]
    return [
        {
            "text": " ".join(verifier.pattern_words(pattern)),
            "documents": int(frequency[pattern]),
            "items": patterns.items_with(pattern).size,
            "why": TEMPLATE if evidence.template[pattern] else COMMON,
        }
        for pattern in seen[order].tolist()
    ]
