"""The stage itself: every document through the chain of its preset, part by part, with what the ledger says of it."""

import functools

import blake3
import numpy as np
import pyarrow as pa

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.map_parts import PartResult, map_parts
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.clean.batch import Handful, handfuls_of
from tasks.clean.chain import Chain, clean_handful
from tasks.clean.config import CleanConfig
from tasks.clean.document import Verdicts
from tasks.clean.filters.blocklist import Supplied
from tasks.clean.filters.quality import QualityModel, train_quality
from tasks.clean.presets import PRESETS, QUALITY
from tasks.clean.results import PartTables
from tasks.common.work import Executor


def clean_documents(
    documents: Artifact, config: CleanConfig, supplied: Supplied | None, workspace: Workspace, executor: Executor
) -> StageReport:
    """Clean every part of `documents`; writes DOCUMENTS and LEDGER, and the quality classifier where there is one.

    Facts: `languages`, documents that stay by language; `quality`, how well the classifier tells sources that it has
    not seen.
    """
    supplied = supplied or Supplied()
    quality = None
    if config.quality is not None:
        quality = train_quality(documents, config, supplied, workspace)
    clean = functools.partial(clean_part, config, supplied=supplied, quality=quality)
    report = map_parts(workspace, documents, clean, executor)
    if quality is not None:
        report.facts[QUALITY] = quality.facts
    return report


def clean_part(
    config: CleanConfig,
    documents: pa.Table,
    index: int,
    *,
    supplied: Supplied | None = None,
    quality: QualityModel | None = None,
) -> PartResult:
    """The documents of one part (DOCUMENTS schema) that no rule drops, edited, with their ledger rows."""
    del index
    supplied = supplied or Supplied()
    chains = {name: Chain.of(config, name, supplied) for name in PRESETS}
    tables = PartTables(documents)
    for handful in handfuls_of(documents, config.emoji):
        verdicts = Verdicts(len(handful))
        if supplied.deny:
            _drop_denied(handful, verdicts, supplied)
        clean_handful(handful, np.flatnonzero(verdicts.stays), config, chains, verdicts)
        digests = _digests_of_edited(handful, verdicts)
        if supplied.deny:
            _drop_denied_texts(digests, verdicts, supplied)
        if quality is not None:
            _drop_unlike(handful, verdicts, quality)
        tables.add(handful, verdicts, digests)
    return tables.result()


def _drop_denied(handful: Handful, verdicts: Verdicts, supplied: Supplied) -> None:
    ids, digests = handful.column("doc_id"), handful.column("text_digest")
    for row, (doc_id, domain, digest) in enumerate(zip(ids, handful.domains, digests, strict=True)):
        denied = supplied.deny.match(doc_id, domain, digest)
        if denied is not None:
            verdicts.drop(row, denied[0], evidence={row: denied[1]})


def _digests_of_edited(handful: Handful, verdicts: Verdicts) -> dict[int, bytes]:
    """Row -> BLAKE3-128 of its text, for documents that stay and were edited."""
    return {
        row: blake3.blake3(handful.texts.raw(row).data).digest(length=16)
        for row in sorted(verdicts.edits)
        if verdicts.stays[row]
    }


def _drop_denied_texts(digests: dict[int, bytes], verdicts: Verdicts, supplied: Supplied) -> None:
    for row, digest in digests.items():
        denied = supplied.deny.match(b"", "", digest)
        if denied is not None:
            verdicts.drop(row, denied[0], evidence={row: denied[1]})


def _drop_unlike(handful: Handful, verdicts: Verdicts, quality: QualityModel) -> None:
    ids = handful.column("doc_id")
    for row in np.flatnonzero(verdicts.stays).tolist():
        dropped = quality.verdict(ids[row], handful.sources[row], handful.texts.raw(row))
        if dropped is not None:
            verdicts.drop(row, dropped.rule, dropped.value, dropped.limit)
