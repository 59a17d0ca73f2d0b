"""The dedup stage from parts to parts: sign, decide globally, filter part by part, measure.

Signatures are scratch files per part and output parts are units, so a killed build goes on where it was; the decisions
between them are global, deterministic and cheap, and are made again.
"""

import functools
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.artifact import Artifact
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, read_corpus
from tasks.dedup.index import index_table
from tasks.dedup.minhash import s_curve
from tasks.dedup.planted import make_plants, measure_recall
from tasks.dedup.survivors import Fates, decide_fates
from tasks.ledger import DROP, LedgerRows
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
    """Remove exact and near duplicates from DOCUMENTS, also those of kept documents of `earlier` dedup artifacts.

    The same bytes for any number of threads. Raises GuardError when a source would lose more than its wipe-out limit,
    RecipeError or InputError when an earlier artifact cannot be compared with.
    """
    corpus = read_corpus(documents, earlier, config, workspace)
    fates = decide_fates(corpus, config, workspace.scratch("verify"))
    filter_part = functools.partial(_filter_part, corpus, fates, config)
    report = map_parts(workspace, documents, filter_part, config.threads, in_threads=True)
    report.facts = {
        "s_curve": s_curve(config.bands, config.rows_per_band),
        "clusters": _cluster_facts(corpus, fates),
        "similarities": _similarity_facts(corpus, fates, config),
        "planted": measure_recall(corpus, fates, make_plants(corpus, fates, config), workspace, config),
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


def _filter_part(corpus: Corpus, fates: Fates, config: DedupConfig, table: pa.Table, index: int) -> PartResult:
    part = corpus.earlier_parts + index
    begin, end = int(corpus.first_row[part]), int(corpus.first_row[part + 1])
    survivors = fates.survivor[begin:end]
    ledger, report = LedgerRows(STAGE), StageReport()
    for row in range(begin, end):
        counts = report.source(corpus.source_names[corpus.sources[row]])
        size = int(corpus.sizes[row])
        counts.documents_in += 1
        counts.bytes_in += size
        survivor = int(fates.survivor[row])
        if survivor < 0:
            counts.documents_out += 1
            counts.pieces_out += 1
            counts.bytes_out += size
            continue
        jaccard = float(fates.jaccard[row])
        evidence = {"survivor": corpus.doc_ids[survivor].tobytes().hex(), "jaccard": round(jaccard, 6)}
        rule = EXACT_DUPLICATE if fates.exact[row] else NEAR_DUPLICATE
        if survivor < corpus.earlier:
            rule += OF_EARLIER
            evidence["earlier"] = corpus.earlier_identity(survivor)
        counts.dropped[rule] += 1
        ledger.add(
            doc_id=corpus.doc_ids[row].tobytes(),
            action=DROP,
            rule=rule,
            value=jaccard,
            limit=config.threshold,
            bytes_in=size,
            bytes_out=0,
            evidence=json.dumps(evidence),
        )
    stays = survivors < 0
    kept = table.filter(pa.array(stays))
    signatures = corpus.signatures[part][stays]
    tables = {
        "documents": kept,
        "ledger": ledger.table(),
        "index": index_table(kept.column("doc_id"), kept.column("text_digest"), signatures),
    }
    return PartResult(tables, report)
