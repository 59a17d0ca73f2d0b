"""The dedup stage from parts to parts: sign, decide globally, filter part by part, measure.

Signatures are scratch files per part and output parts are units, so a killed build goes on where it was; the decisions
between them are global, deterministic and cheap, and are made again.
"""

import functools
import json
from collections.abc import Sequence

import blake3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.artifact import Artifact
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, read_corpus, text_column
from tasks.dedup.cuts import NOTHING_OF_ITS_OWN, REPEATED_LINE, REPEATED_SUBSTRING, CutPlan, plan_cuts, without
from tasks.dedup.earlier import UNCUT
from tasks.dedup.index import index_table
from tasks.dedup.minhash import s_curve
from tasks.dedup.planted import make_plants, measure_recall
from tasks.dedup.survivors import Fates, decide_fates
from tasks.ledger import CUT, DROP, LedgerRows
from tasks.parts import PartResult, map_parts
from tasks.report import StageReport
from tasks.wipeout import check_wipe_out
from tasks.workspace import Workspace

STAGE = "dedup"
EXACT_DUPLICATE = "exact_duplicate"
NEAR_DUPLICATE = "near_duplicate"
OF_EARLIER = "_of_earlier"
"""Ending of the rule where the document that stays is one of an earlier run."""
SIMILARITY_BINS = 20


def deduplicate(
    documents: Artifact, config: DedupConfig, workspace: Workspace, earlier: Sequence[Artifact] = ()
) -> StageReport:
    """Remove exact and near duplicates from DOCUMENTS, also those of kept documents of `earlier` dedup artifacts, and
    cut repeated lines and passages where the settings ask for it.

    The same bytes for any number of threads. Raises GuardError when a source would lose more than its wipe-out limit,
    RecipeError or InputError when an earlier artifact cannot be compared with.
    """
    corpus = read_corpus(documents, earlier, config, workspace)
    fates = decide_fates(corpus, config, workspace.scratch("verify"))
    plan = plan_cuts(corpus, fates, config)
    filter_part = functools.partial(_filter_part, corpus, fates, plan, config)
    report = map_parts(workspace, documents, filter_part, config.threads, in_threads=True)
    report.facts = {
        "s_curve": s_curve(config.bands, config.rows_per_band),
        "clusters": _cluster_facts(corpus, fates),
        "similarities": _similarity_facts(corpus, fates, config),
        "planted": measure_recall(corpus, fates, plan, make_plants(corpus, fates, plan, config), workspace, config),
        "precision": "every removal was verified by true Jaccard similarity against a document that stays",
    }
    if earlier:
        report.facts["against"] = [
            {"identity": artifact.identity, "documents": artifact.rows("index")} for artifact in earlier
        ]
    check_wipe_out(STAGE, report, config.wipe_out_limit, config.wipe_out_overrides)
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


def _filter_part(
    corpus: Corpus, fates: Fates, plan: CutPlan, config: DedupConfig, table: pa.Table, index: int
) -> PartResult:
    part = corpus.earlier_parts + index
    begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
    ledger, report = LedgerRows(STAGE), StageReport()
    texts = text_column(table)
    cut_rows: list[int] = []
    remains: list[bytes] = []
    for row in range(begin, end):
        counts = report.source(corpus.source_names[corpus.sources[row]])
        size = int(corpus.sizes[row])
        counts.documents_in += 1
        counts.bytes_in += size
        if fates.survivor[row] >= 0:
            rule, jaccard, evidence = _removal(corpus, fates, row)
            counts.dropped[rule] += 1
            ledger.add(
                doc_id=corpus.doc_ids[row].tobytes(),
                action=DROP,
                rule=rule,
                value=jaccard,
                limit=config.threshold,
                bytes_in=size,
                bytes_out=0,
                evidence=evidence,
            )
            continue
        cuts = plan.of(row)
        if plan.emptied[row]:
            counts.dropped[NOTHING_OF_ITS_OWN] += 1
            ledger.add(
                doc_id=corpus.doc_ids[row].tobytes(),
                action=DROP,
                rule=NOTHING_OF_ITS_OWN,
                bytes_in=size,
                bytes_out=0,
                evidence=json.dumps({"survivor": corpus.doc_ids[cuts[0][2]].tobytes().hex(), "passages": len(cuts)}),
            )
            continue
        if cuts:
            remains.append(without(texts[row - begin].as_py().encode(), cuts))
            cut_rows.append(row - begin)
            size = _tell_cuts(ledger, corpus, row, cuts, config)
            counts.edited["cut"] += 1
        counts.documents_out += 1
        counts.pieces_out += 1
        counts.bytes_out += size
    stays = (fates.survivor[begin:end] < 0) & ~plan.emptied[begin:end]
    tables = {
        "documents": _with_texts(table, cut_rows, remains).filter(pa.array(stays)),
        "ledger": ledger.table(),
        "index": index_table(
            table.column("doc_id").filter(pa.array(stays)),
            table.column("text_digest").filter(pa.array(stays)),
            corpus.signatures[part][stays],
        ),
    }
    if cut_rows:
        tables[UNCUT] = table.select(["doc_id", "text"]).take(pa.array(cut_rows, pa.int64()))
    return PartResult(tables, report)


def _removal(corpus: Corpus, fates: Fates, row: int) -> tuple[str, float, str]:
    """Rule, true similarity and evidence of a duplicate's removal."""
    survivor, jaccard = int(fates.survivor[row]), float(fates.jaccard[row])
    evidence: dict[str, object] = {"survivor": corpus.doc_ids[survivor].tobytes().hex(), "jaccard": round(jaccard, 6)}
    rule = EXACT_DUPLICATE if fates.exact[row] else NEAR_DUPLICATE
    if survivor < corpus.earlier:
        rule += OF_EARLIER
        evidence["earlier"] = corpus.earlier_identity(survivor)
    return rule, jaccard, json.dumps(evidence)


def _tell_cuts(
    ledger: LedgerRows, corpus: Corpus, row: int, cuts: list[tuple[int, int, int, str]], config: DedupConfig
) -> int:
    """A ledger row for each cut; returns the bytes that remain."""
    left = int(corpus.sizes[row])
    limits = {REPEATED_SUBSTRING: config.repeated_bytes, REPEATED_LINE: None}
    for start, end, first, rule in cuts:
        evidence = {"survivor": corpus.doc_ids[first].tobytes().hex(), "start": start, "end": end}
        ledger.add(
            doc_id=corpus.doc_ids[row].tobytes(),
            action=CUT,
            rule=rule,
            value=end - start,
            limit=limits[rule],
            bytes_in=left,
            bytes_out=left - (end - start),
            evidence=json.dumps(evidence),
        )
        left -= end - start
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
