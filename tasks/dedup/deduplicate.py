"""The dedup stage from parts to parts: sign, decide globally, filter part by part, measure.

Signatures are scratch files per part and output parts are units, so a killed build goes on where it was; the decisions
between them are global, deterministic and cheap, and are made again.
"""

import functools
from collections.abc import Sequence

import numpy as np

from tasks.artifact import Artifact
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, OwnPart, read_corpus
from tasks.dedup.cuts import plan_cuts
from tasks.dedup.filtering import fates_of_part, filter_part
from tasks.dedup.minhash import s_curve
from tasks.dedup.planted import make_plants, measure_recall
from tasks.dedup.survivors import Fates, decide_fates
from tasks.execution.work import Executor
from tasks.parts import map_parts
from tasks.report import StageReport
from tasks.workspace import Workspace

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
