"""The dedup stage: sign part by part, decide globally, filter part by part, measure recall.

Signatures are scratch files per part and output parts are units, so a killed build resumes where it was; the decisions
between them are global, deterministic and cheap, and are made again. A part gets its own decisions alone, so that it
can be written on another machine.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import Clusters, DedupResult
from tasks.artifacts.tables.columns import with_texts
from tasks.artifacts.tables.ledger import CUT, DROP, LedgerRows
from tasks.artifacts.tables.map_parts import PartResult, map_parts
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, CurrentPart, read_corpus
from tasks.dedup.exact_lines import (
    NOTHING_OF_ITS_OWN,
    REPEATED_LINE,
    REPEATED_SUBSTRING,
    CutPlan,
    plan_cuts,
    remove_ranges,
)
from tasks.dedup.index import UNCUT, index_table
from tasks.dedup.minhash import s_curve
from tasks.dedup.near_duplicates import DuplicateDecisions, find_duplicates
from tasks.dedup.recall import measure_recall

SIMILARITY_BINS = 20
STAGE = "dedup"
EXACT_DUPLICATE = "exact_duplicate"
NEAR_DUPLICATE = "near_duplicate"

OF_EARLIER = "_of_earlier"
"""Ending of the rule where the kept document is one of an earlier run."""


@dataclass(frozen=True)
class Cut:
    """A passage to cut: a range of UTF-8 bytes of the document, the document that keeps it, and the rule."""

    start: int
    end: int
    representative: str
    """doc_id of the document in which the passage is kept, hexadecimal."""
    rule: str


@dataclass(frozen=True)
class PartDecisions:
    """What was decided about the documents of one part, by their row in it."""

    removed: Mapping[int, tuple[str, float | None, str]]
    """Rule, true similarity and evidence of each duplicate; those that cuts would empty have no similarity."""
    cuts: Mapping[int, Sequence[Cut]]
    signatures: Path
    """File of the part's signatures, (rows, signature length), in numpy's format."""


def deduplicate(
    documents: Artifact,
    config: DedupConfig,
    workspace: Workspace,
    executor: Executor,
    earlier: Sequence[Artifact] = (),
) -> StageReport:
    """Remove exact and near duplicates from DOCUMENTS, and optionally cut repeated lines and passages.

    Copies of kept documents of `earlier` dedup artifacts are removed too. The bytes are the same for any number of
    threads. Raises RecipeError or InputError when an earlier artifact cannot be compared with.
    """
    corpus = read_corpus(documents, earlier, config, workspace, executor)
    decisions = find_duplicates(corpus, config, workspace.scratch("comparison"))
    plan = plan_cuts(corpus, decisions, config)
    report = map_parts(
        workspace,
        documents,
        functools.partial(filter_part, config),
        executor,
        about=lambda index: (decisions_of_part(corpus, decisions, plan, index),),
    )
    report.facts = DedupResult(
        s_curve=s_curve(config.bands, config.rows_per_band),
        clusters=_clusters(corpus, decisions),
        similarities=_similarities(corpus, decisions, config),
        planted=measure_recall(corpus, decisions, plan, workspace, config),
        signed_by_datasketch=sum(len(part.checked_rows) for part in corpus.parts if isinstance(part, CurrentPart)),
        precision="every removal was verified by true Jaccard similarity against a document that stays",
        against=[{"identity": artifact.identity, "documents": artifact.rows("index")} for artifact in earlier] or None,
    ).facts()
    return report


def _clusters(corpus: Corpus, decisions: DuplicateDecisions) -> Clusters:
    """Count kept documents that represent others, and the documents of the largest such cluster."""
    representatives = decisions.representative[corpus.earlier :]
    copies = np.bincount(representatives[representatives >= 0])
    return {"count": int(np.count_nonzero(copies)), "largest": int(copies.max(initial=0)) + bool(copies.size)}


def _similarities(corpus: Corpus, decisions: DuplicateDecisions, config: DedupConfig) -> list[list[float]]:
    """Return [[from, to, near duplicates removed at a true Jaccard similarity in between], ...]."""
    own = slice(corpus.earlier, None)
    near = decisions.jaccard[own][(decisions.representative[own] >= 0) & ~decisions.exact[own]]
    edges = np.linspace(config.threshold, 1.0, SIMILARITY_BINS + 1)
    counts, _ = np.histogram(np.clip(near, config.threshold, 1.0), edges)
    return [
        [round(float(low), 4), round(float(high), 4), int(count)]
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


def decisions_of_part(corpus: Corpus, decisions: DuplicateDecisions, plan: CutPlan, index: int) -> PartDecisions:
    """Return the decisions about this run's part `index`."""
    part = corpus.earlier_parts + index
    begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
    cuts = {
        row - begin: [
            Cut(start, stop, corpus.doc_ids[first].tobytes().hex(), rule) for start, stop, first, rule in found
        ]
        for row in plan.rows_between(begin, end)
        if (found := plan.of(row))
    }
    removed: dict[int, tuple[str, float | None, str]] = {
        row: _removal(corpus, decisions, begin + row)
        for row in np.flatnonzero(decisions.representative[begin:end] >= 0).tolist()
    }
    for row in np.flatnonzero(plan.emptied[begin:end]).tolist():
        evidence = {"survivor": cuts[row][0].representative, "passages": len(cuts[row])}
        removed[row] = NOTHING_OF_ITS_OWN, None, json.dumps(evidence)
    return PartDecisions(removed, cuts, corpus.signature_files[part])


def _removal(corpus: Corpus, decisions: DuplicateDecisions, row: int) -> tuple[str, float, str]:
    """Return rule, true similarity and evidence of a duplicate's removal."""
    representative, jaccard = int(decisions.representative[row]), float(decisions.jaccard[row])
    evidence: dict[str, object] = {
        "survivor": corpus.doc_ids[representative].tobytes().hex(),
        "jaccard": round(jaccard, 6),
    }
    rule = EXACT_DUPLICATE if decisions.exact[row] else NEAR_DUPLICATE
    if representative < corpus.earlier:
        rule += OF_EARLIER
        evidence["earlier"] = corpus.earlier_identity(representative)
    return rule, jaccard, json.dumps(evidence)


def filter_part(config: DedupConfig, table: pa.Table, index: int, decisions: PartDecisions) -> PartResult:
    """Return tables documents, ledger and index of one part, and the whole texts of documents that were cut."""
    del index
    ledger, report = LedgerRows(STAGE), StageReport()
    texts = table.column("text")
    doc_ids, sources = table.column("doc_id").to_pylist(), table.column("source").to_pylist()
    sizes = pc.binary_length(texts).to_pylist()
    is_kept = np.ones(table.num_rows, np.bool_)
    cut_rows: list[int] = []
    remains: list[bytes] = []
    for row, (doc_id, source, size) in enumerate(zip(doc_ids, sources, sizes, strict=True)):
        counts = report.source(source)
        counts.documents_in += 1
        counts.bytes_in += size
        cuts = decisions.cuts.get(row, ())
        if row in decisions.removed:
            rule, jaccard, evidence = decisions.removed[row]
            counts.dropped[rule] += 1
            ledger.add(
                doc_id=doc_id,
                action=DROP,
                rule=rule,
                value=jaccard,
                limit=None if jaccard is None else config.threshold,
                bytes_in=size,
                bytes_out=0,
                evidence=evidence,
            )
            is_kept[row] = False
            continue
        if cuts:
            remains.append(remove_ranges(texts[row].as_py().encode(), [(cut.start, cut.end) for cut in cuts]))
            cut_rows.append(row)
            size = _record_cuts(ledger, doc_id, size, cuts, config)
            counts.edited["cut"] += 1
        counts.documents_out += 1
        counts.pieces_out += 1
        counts.bytes_out += size
    mask = pa.array(is_kept)
    tables = {
        "documents": with_texts(table, cut_rows, remains).filter(mask),
        "ledger": ledger.table(),
        "index": index_table(
            table.column("doc_id").filter(mask),
            table.column("text_digest").filter(mask),
            np.load(decisions.signatures, mmap_mode="r")[is_kept],
            np.array(sizes, np.int64)[is_kept],
        ),
    }
    if cut_rows:
        tables[UNCUT] = table.select(["doc_id", "text"]).take(pa.array(cut_rows, pa.int64()))
    return PartResult(tables, report)


def _record_cuts(ledger: LedgerRows, doc_id: bytes, size: int, cuts: Sequence[Cut], config: DedupConfig) -> int:
    """Add a ledger row for each cut; returns the bytes that remain."""
    left = size
    limits = {REPEATED_SUBSTRING: config.repeated_bytes, REPEATED_LINE: None}
    for cut in cuts:
        after = left - (cut.end - cut.start)
        ledger.add(
            doc_id=doc_id,
            action=CUT,
            rule=cut.rule,
            value=cut.end - cut.start,
            limit=limits[cut.rule],
            bytes_in=left,
            bytes_out=after,
            evidence=json.dumps({"survivor": cut.representative, "start": cut.start, "end": cut.end}),
        )
        left = after
    return left
