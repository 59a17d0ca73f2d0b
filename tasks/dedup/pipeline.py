"""The dedup stage from parts to parts: sign, decide globally, filter part by part, measure.

Signatures are scratch files per part and output parts are units, so a killed build goes on where it was; the decisions
between them are global, deterministic and cheap, and are made again.

One part of dedup's output: its documents without copies and cut passages, its ledger, its rows of the INDEX.

What was decided over the whole corpus comes to a part as its own fates alone, so that a part can be written on another
machine.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.ledger import CUT, DROP, LedgerRows
from tasks.artifacts.map_parts import PartResult, map_parts
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, OwnPart, read_corpus, text_column
from tasks.dedup.exact_lines import NOTHING_OF_ITS_OWN, REPEATED_LINE, REPEATED_SUBSTRING, CutPlan, plan_cuts, without
from tasks.dedup.index import UNCUT, index_table
from tasks.dedup.minhash import s_curve
from tasks.dedup.near_duplicates import Fates, decide_fates
from tasks.dedup.recall import make_plants, measure_recall

SIMILARITY_BINS = 20


def deduplicate(
    documents: Artifact,
    config: DedupConfig,
    workspace: Workspace,
    executor: Executor,
    earlier: Sequence[Artifact] = (),
) -> StageReport:
    """Remove exact and near duplicates from DOCUMENTS, also those of kept documents of `earlier` dedup artifacts, and
    cut repeated lines and passages where the settings ask for it.

    The same bytes for any number of threads. Raises RecipeError or InputError when an earlier artifact cannot be
    compared with.
    """
    corpus = read_corpus(documents, earlier, config, workspace, executor)
    fates = decide_fates(corpus, config, workspace.scratch("verify"))
    plan = plan_cuts(corpus, fates, config)
    report = map_parts(
        workspace,
        documents,
        functools.partial(filter_part, config),
        executor,
        about=lambda index: (fates_of_part(corpus, fates, plan, index),),
    )
    report.facts = {
        "s_curve": s_curve(config.bands, config.rows_per_band),
        "clusters": _cluster_facts(corpus, fates),
        "similarities": _similarity_facts(corpus, fates, config),
        "planted": measure_recall(corpus, fates, plan, make_plants(corpus, fates, plan, config), workspace, config),
        "signed_by_datasketch": sum(len(part.checked_rows) for part in corpus.parts if isinstance(part, OwnPart)),
        "precision": "every removal was verified by true Jaccard similarity against a document that stays",
    }
    if earlier:
        report.facts["against"] = [
            {"identity": artifact.identity, "documents": artifact.rows("index")} for artifact in earlier
        ]
    return report


def _cluster_facts(corpus: Corpus, fates: Fates) -> dict[str, int]:
    """Kept documents that stand for others, and the most documents (with itself) that one of them stands for."""
    survivors = fates.survivor[corpus.earlier :]
    copies = np.bincount(survivors[survivors >= 0])
    return {"count": int(np.count_nonzero(copies)), "largest": int(copies.max(initial=0)) + bool(copies.size)}


def _similarity_facts(corpus: Corpus, fates: Fates, config: DedupConfig) -> list[list[float]]:
    """[[from, to, near duplicates removed at a true Jaccard similarity in between], ...] from the threshold to 1."""
    own = slice(corpus.earlier, None)
    near = fates.jaccard[own][(fates.survivor[own] >= 0) & ~fates.exact[own]]
    edges = np.linspace(config.threshold, 1.0, SIMILARITY_BINS + 1)
    counts, _ = np.histogram(np.clip(near, config.threshold, 1.0), edges)
    return [
        [round(float(low), 4), round(float(high), 4), int(count)]
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


STAGE = "dedup"

EXACT_DUPLICATE = "exact_duplicate"

NEAR_DUPLICATE = "near_duplicate"

OF_EARLIER = "_of_earlier"
"""Ending of the rule where the document that stays is one of an earlier run."""


@dataclass(frozen=True)
class Cut:
    """A passage that goes: a range of UTF-8 bytes of the document, where it stays, and by which rule."""

    start: int
    end: int
    survivor: str
    """doc_id of the document in which the passage stays, hexadecimal."""
    rule: str


@dataclass(frozen=True)
class PartFates:
    """What was decided about the documents of one part, by their row in it."""

    removed: Mapping[int, tuple[str, float, str]]
    """Rule, true similarity and evidence of each duplicate."""
    cuts: Mapping[int, Sequence[Cut]]
    emptied: frozenset[int]
    """Rows of which the cuts would leave nothing."""
    signatures: Path
    """Those of the part, (rows, signature length), as numpy has them."""


def fates_of_part(corpus: Corpus, fates: Fates, plan: CutPlan, index: int) -> PartFates:
    """The fates of this run's part `index`."""
    part = corpus.earlier_parts + index
    begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
    removed = np.flatnonzero(fates.survivor[begin:end] >= 0).tolist()
    return PartFates(
        removed={row: _removal(corpus, fates, begin + row) for row in removed},
        cuts={
            row - begin: [
                Cut(start, stop, corpus.doc_ids[first].tobytes().hex(), rule) for start, stop, first, rule in found
            ]
            for row in plan.rows_between(begin, end)
            if (found := plan.of(row))
        },
        emptied=frozenset(np.flatnonzero(plan.emptied[begin:end]).tolist()),
        signatures=corpus.signature_files[part],
    )


def filter_part(config: DedupConfig, table: pa.Table, index: int, fates: PartFates) -> PartResult:
    """Tables documents, ledger and index of one part, and the whole texts of documents that were cut."""
    del index
    ledger, report = LedgerRows(STAGE), StageReport()
    texts = text_column(table)
    doc_ids, sources = table.column("doc_id").to_pylist(), table.column("source").to_pylist()
    sizes = pc.binary_length(texts).to_pylist()
    stays = np.ones(table.num_rows, np.bool_)
    cut_rows: list[int] = []
    remains: list[bytes] = []
    for row, (doc_id, source, size) in enumerate(zip(doc_ids, sources, sizes, strict=True)):
        counts = report.source(source)
        counts.documents_in += 1
        counts.bytes_in += size
        cuts = fates.cuts.get(row, ())
        if row in fates.removed:
            rule, jaccard, evidence = fates.removed[row]
            counts.dropped[rule] += 1
            ledger.add(
                doc_id=doc_id,
                action=DROP,
                rule=rule,
                value=jaccard,
                limit=config.threshold,
                bytes_in=size,
                bytes_out=0,
                evidence=evidence,
            )
            stays[row] = False
            continue
        if row in fates.emptied:
            counts.dropped[NOTHING_OF_ITS_OWN] += 1
            ledger.add(
                doc_id=doc_id,
                action=DROP,
                rule=NOTHING_OF_ITS_OWN,
                bytes_in=size,
                bytes_out=0,
                evidence=json.dumps({"survivor": cuts[0].survivor, "passages": len(cuts)}),
            )
            stays[row] = False
            continue
        if cuts:
            remains.append(without(texts[row].as_py().encode(), [(cut.start, cut.end) for cut in cuts]))
            cut_rows.append(row)
            size = _tell_cuts(ledger, doc_id, size, cuts, config)
            counts.edited["cut"] += 1
        counts.documents_out += 1
        counts.pieces_out += 1
        counts.bytes_out += size
    mask = pa.array(stays)
    tables = {
        "documents": _with_texts(table, cut_rows, remains).filter(mask),
        "ledger": ledger.table(),
        "index": index_table(
            table.column("doc_id").filter(mask),
            table.column("text_digest").filter(mask),
            _signatures(fates.signatures)[stays],
        ),
    }
    if cut_rows:
        tables[UNCUT] = table.select(["doc_id", "text"]).take(pa.array(cut_rows, pa.int64()))
    return PartResult(tables, report)


def _signatures(path: Path) -> npt.NDArray[np.uint32]:
    return np.load(path, mmap_mode="r")


def _removal(corpus: Corpus, fates: Fates, row: int) -> tuple[str, float, str]:
    """Rule, true similarity and evidence of a duplicate's removal."""
    survivor, jaccard = int(fates.survivor[row]), float(fates.jaccard[row])
    evidence: dict[str, object] = {"survivor": corpus.doc_ids[survivor].tobytes().hex(), "jaccard": round(jaccard, 6)}
    rule = EXACT_DUPLICATE if fates.exact[row] else NEAR_DUPLICATE
    if survivor < corpus.earlier:
        rule += OF_EARLIER
        evidence["earlier"] = corpus.earlier_identity(survivor)
    return rule, jaccard, json.dumps(evidence)


def _tell_cuts(ledger: LedgerRows, doc_id: bytes, size: int, cuts: Sequence[Cut], config: DedupConfig) -> int:
    """A ledger row for each cut; returns the bytes that remain."""
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
            evidence=json.dumps({"survivor": cut.survivor, "start": cut.start, "end": cut.end}),
        )
        left = after
    return left


def _with_texts(table: pa.Table, rows: list[int], texts: list[bytes]) -> pa.Table:
    """The table with other texts (and their digests) in the given rows."""
    if not rows:
        return table
    mask = np.zeros(table.num_rows, np.bool_)
    mask[rows] = True
    columns = {
        "text": pa.array([text.decode() for text in texts], pa.large_string()),
        "text_digest": pa.array([blake3.blake3(text).digest(length=16) for text in texts], pa.binary(16)),
    }
    for name, values in columns.items():
        replaced = pc.replace_with_mask(table.column(name).combine_chunks(), pa.array(mask), values)
        table = table.set_column(table.column_names.index(name), table.schema.field(name), replaced)
    return table
