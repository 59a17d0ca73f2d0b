"""The clean stage, part by part: every document through the chain of its preset, and a ledger row for each change."""

import functools
from collections.abc import Iterable
from dataclasses import replace

import blake3
import numpy as np
import pyarrow as pa

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import CleanResult
from tasks.artifacts.tables.map_parts import PartResult, map_parts
from tasks.artifacts.workspace import Workspace
from tasks.clean.batch import DocumentBatch, iter_batches
from tasks.clean.chain import UserResources, clean_batch, make_chains
from tasks.clean.config import CleanConfig
from tasks.clean.document import Verdicts
from tasks.clean.filters.classifier import train_classifiers
from tasks.clean.filters.quality import QualityModel, train_quality
from tasks.clean.presets import QUALITY
from tasks.clean.results import PartTables
from tasks.common.work import Executor


def clean_documents(
    documents: Artifact,
    config: CleanConfig,
    resources: UserResources | None,
    workspace: Workspace,
    executor: Executor,
    kept: Artifact | None = None,
) -> StageReport:
    """Clean every part of `documents`; writes DOCUMENTS and LEDGER, and the quality classifier where there is one:
    that of the artifact `kept`, or one trained now.
    """
    resources = resources or UserResources()
    trained, measured = train_classifiers(documents, config, resources, workspace)
    quality = None
    if config.quality is not None:
        quality = train_quality(documents, config, resources, workspace, kept)
    # Examples stay here: workers need the models alone.
    resources = replace(resources, classifiers={**resources.classifiers, **trained}, labelled={})
    clean = functools.partial(clean_part, config, resources=resources, quality=quality)
    report = map_parts(workspace, documents, clean, executor)
    found = CleanResult.of(report)
    report.facts = replace(found, quality=quality and quality.facts, classifiers=measured or None).facts()
    return report


def clean_part(
    config: CleanConfig,
    documents: pa.Table,
    index: int,
    *,
    resources: UserResources | None = None,
    quality: QualityModel | None = None,
) -> PartResult:
    """Return the documents of one part (DOCUMENTS schema) that no rule drops, edited, with their ledger rows."""
    del index
    resources = resources or UserResources()
    chains = make_chains(config, resources)
    tables = PartTables(documents)
    for batch in iter_batches(documents, config.emoji):
        verdicts = Verdicts(len(batch))
        if resources.deny:
            ids, texts = batch.column("doc_id"), batch.column("text_digest")
            _drop_denied(verdicts, resources, zip(range(len(batch)), ids, batch.contexts.domains, texts, strict=True))
        clean_batch(batch, np.flatnonzero(verdicts.is_kept), config, chains, verdicts)
        digests = _digests_of_edited(batch, verdicts)
        if resources.deny:
            _drop_denied(verdicts, resources, ((row, b"", "", digest) for row, digest in digests.items()))
        if quality is not None:
            _drop_low_quality(batch, verdicts, quality)
        tables.add(batch, verdicts, digests)
    return tables.result()


def _drop_denied(
    verdicts: Verdicts, resources: UserResources, documents: Iterable[tuple[int, bytes, str, bytes]]
) -> None:
    """Drop what the deny-list names of documents, each (row, id, domain, digest of the text)."""
    for row, doc_id, domain, digest in documents:
        denied = resources.deny.match(doc_id, domain, digest)
        if denied is not None:
            verdicts.drop(row, denied[0], evidence={row: denied[1]})


def _digests_of_edited(batch: DocumentBatch, verdicts: Verdicts) -> dict[int, bytes]:
    """Return row -> BLAKE3-128 of the text, for documents that are kept and were edited."""
    return {
        row: blake3.blake3(batch.texts.raw(row).data).digest(length=16)
        for row in sorted(verdicts.edits)
        if verdicts.is_kept[row]
    }


def _drop_low_quality(batch: DocumentBatch, verdicts: Verdicts, quality: QualityModel) -> None:
    ids = batch.column("doc_id")
    for row in np.flatnonzero(verdicts.is_kept).tolist():
        dropped = quality.verdict(ids[row], batch.contexts.sources[row], batch.texts.raw(row))
        if dropped is not None:
            verdicts.drop(row, QUALITY, *dropped)
