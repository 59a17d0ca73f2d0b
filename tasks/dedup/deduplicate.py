"""The dedup stage from parts to parts: sign, decide globally, filter part by part, measure.

Signatures are scratch files per part and output parts are units, so a killed build goes on where it was; the decisions
between them are global, deterministic and cheap, and are made again.
"""

import functools
import json

import numpy as np
import pyarrow as pa

from tasks.artifact import Artifact, read_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, read_corpus
from tasks.dedup.index import index_table
from tasks.dedup.planted import curve_facts, make_plants, measure_recall
from tasks.dedup.survivors import Fates, decide_fates
from tasks.ledger import DROP, LedgerRows
from tasks.parts import PartResult, map_parts, unit_name
from tasks.report import StageReport
from tasks.wipeout import check_wipe_out
from tasks.workspace import Workspace, table_file_name

STAGE = "dedup"
EXACT_DUPLICATE = "exact_duplicate"
NEAR_DUPLICATE = "near_duplicate"


def deduplicate(documents: Artifact, config: DedupConfig, workspace: Workspace) -> StageReport:
    """Remove exact and near duplicates from DOCUMENTS; the same bytes for any number of threads.

    Raises GuardError when a source would lose more than its wipe-out limit.
    """
    corpus = read_corpus(documents, config, workspace)
    fates = decide_fates(corpus, config, workspace.scratch("verify"))
    filter_part = functools.partial(_filter_part, corpus, fates, config)
    report = map_parts(workspace, documents, filter_part, config.threads, in_threads=True)
    kept = np.flatnonzero(fates.survivor < 0)
    index = (read_table(workspace.file(table_file_name("index", unit_name(part)))) for part in range(len(corpus.paths)))
    report.facts = {
        "s_curve": curve_facts(config),
        "clusters": _cluster_facts(fates),
        "planted": measure_recall(make_plants(corpus, kept, config), index, config),
        "precision": "every removal was verified by true Jaccard similarity against a document that stays",
    }
    check_wipe_out(STAGE, report, config.wipe_out_limit, config.wipe_out_overrides)
    return report


def _cluster_facts(fates: Fates) -> dict[str, int]:
    """Kept documents that stand for others, and the most documents (with itself) that one of them stands for."""
    copies = np.bincount(fates.survivor[fates.survivor >= 0])
    return {"count": int(np.count_nonzero(copies)), "largest": int(copies.max(initial=0)) + bool(copies.size)}


def _filter_part(corpus: Corpus, fates: Fates, config: DedupConfig, table: pa.Table, index: int) -> PartResult:
    begin, end = int(corpus.first_row[index]), int(corpus.first_row[index + 1])
    survivors = fates.survivor[begin:end]
    ledger, report = LedgerRows(STAGE), StageReport()
    for row in range(end - begin):
        counts = report.source(corpus.source_names[corpus.sources[begin + row]])
        size = int(corpus.sizes[begin + row])
        counts.documents_in += 1
        counts.bytes_in += size
        if survivors[row] < 0:
            counts.documents_out += 1
            counts.pieces_out += 1
            counts.bytes_out += size
            continue
        rule = EXACT_DUPLICATE if fates.exact[begin + row] else NEAR_DUPLICATE
        jaccard = float(fates.jaccard[begin + row])
        survivor = corpus.doc_ids[survivors[row]].tobytes().hex()
        counts.dropped[rule] += 1
        ledger.add(
            doc_id=corpus.doc_ids[begin + row].tobytes(),
            action=DROP,
            rule=rule,
            value=jaccard,
            limit=config.threshold,
            bytes_in=size,
            bytes_out=0,
            evidence=json.dumps({"survivor": survivor, "jaccard": round(jaccard, 6)}),
        )
    stays = survivors < 0
    kept = table.filter(pa.array(stays))
    signatures = corpus.signatures[index][stays]
    tables = {
        "documents": kept,
        "ledger": ledger.table(),
        "index": index_table(kept.column("doc_id"), kept.column("text_digest"), signatures),
    }
    return PartResult(tables, report)
