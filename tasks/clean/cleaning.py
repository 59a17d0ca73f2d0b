"""The stage itself: every document through the chain of its preset, part by part, with what the ledger says of it."""

import functools
from dataclasses import replace

import blake3
import pyarrow as pa

from tasks.artifact import Artifact
from tasks.clean.about import About
from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig
from tasks.clean.part_rows import Row, rows_of
from tasks.clean.presets import LIMITS, PRESETS, QUALITY
from tasks.clean.quality import QualityModel, train_quality
from tasks.clean.supplied import Supplied
from tasks.clean.verdicts import Dropped, Outcome
from tasks.ledger import DROP, EDIT, LedgerRows
from tasks.parts import PartResult, map_parts
from tasks.report import StageReport
from tasks.schema import DOCUMENTS
from tasks.wipeout import check_wipe_out
from tasks.workspace import Workspace

LANGUAGES = "languages"
KNOWN_LANGUAGE = LIMITS["language_confidence"]
"""Confidence from which an identified language is written into the document's `lang`."""


def clean_documents(
    documents: Artifact, config: CleanConfig, supplied: Supplied | None, workspace: Workspace
) -> StageReport:
    """Clean every part of `documents`; writes DOCUMENTS and LEDGER, and the quality classifier where there is one.

    Facts: `languages`, documents that stay by language; `quality`, how well the classifier tells sources that it has
    not seen. Raises GuardError when more of a source is dropped than the wipe-out limit allows.
    """
    supplied = supplied or Supplied()
    quality = None
    if config.quality is not None:
        quality = train_quality(documents, config, supplied, workspace)
    clean = functools.partial(clean_part, config, supplied=supplied, quality=quality)
    report = map_parts(workspace, documents, clean, config.workers)
    if quality is not None:
        report.facts[QUALITY] = quality.facts
    check_wipe_out("clean", report, config.wipe_out_limit, config.wipe_out_overrides)
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
    ledger = LedgerRows("clean")
    report = StageReport()
    report.facts[LANGUAGES] = languages = {}
    kept: list[int] = []
    texts: list[bytes] = []
    digests: list[bytes] = []
    written_languages: list[str | None] = []
    for number, row in enumerate(rows_of(documents)):
        outcome, digest = _cleaned(row, config, chains, supplied, quality)
        counts = report.source(row.source)
        counts.documents_in += 1
        counts.bytes_in += len(row.raw)
        if outcome.dropped is not None:
            drop = outcome.dropped
            counts.dropped[drop.rule] += 1
            ledger.add(
                doc_id=row.doc_id,
                piece=row.piece,
                action=DROP,
                rule=drop.rule,
                value=drop.value,
                limit=drop.limit,
                bytes_in=len(row.raw),
                bytes_out=0,
                evidence=drop.evidence,
            )
            continue
        if outcome.edits:
            counts.edited.update(outcome.edits)
            ledger.add(
                doc_id=row.doc_id,
                piece=row.piece,
                action=EDIT,
                rule="+".join(outcome.edits),
                bytes_in=len(row.raw),
                bytes_out=len(outcome.raw),
            )
        language = row.language
        if language is None and outcome.language is not None and outcome.language[1] >= KNOWN_LANGUAGE:
            language = outcome.language[0]
        languages[language or "?"] = languages.get(language or "?", 0) + 1
        counts.documents_out += 1
        counts.bytes_out += len(outcome.raw)
        kept.append(number)
        texts.append(outcome.raw.tobytes())
        digests.append(digest)
        written_languages.append(language)
    cleaned = _with(documents, kept, {"text": texts, "text_digest": digests, "lang": written_languages})
    return PartResult({"documents": cleaned, "ledger": ledger.table()}, report)


def _cleaned(
    row: Row, config: CleanConfig, chains: dict[str, Chain], supplied: Supplied, quality: QualityModel | None
) -> tuple[Outcome, bytes]:
    """What becomes of a document, and the digest of its text."""
    denied = supplied.deny.match(row.doc_id, row.domain, row.text_digest) if supplied.deny else None
    if denied is not None:
        return Outcome(row.raw, (), Dropped(denied[0], evidence=denied[1])), row.text_digest
    about = About(row.kind, row.language, config.emoji, row.source, row.domain)
    outcome = chains[config.preset_of(row.source, row.kind)].clean(row.raw, about, row.signs)
    if outcome.dropped is not None:
        return outcome, row.text_digest
    digest = row.text_digest
    if outcome.edits:
        digest = blake3.blake3(outcome.raw.tobytes()).digest(length=16)
        denied = supplied.deny.match(row.doc_id, "", digest) if supplied.deny else None
        if denied is not None:
            return replace(outcome, dropped=Dropped(denied[0], evidence=denied[1])), digest
    if quality is not None:
        dropped = quality.verdict(row.doc_id, row.source, outcome.raw)
        if dropped is not None:
            outcome = replace(outcome, dropped=dropped)
    return outcome, digest


def _with(documents: pa.Table, kept: list[int], columns: dict[str, list]) -> pa.Table:
    rows = documents.take(pa.array(kept, pa.int64()))
    for name, values in columns.items():
        field = DOCUMENTS.field(name)
        if name == "text":
            array = pa.array(values, pa.large_binary()).cast(field.type)
        elif name == "lang":
            array = pa.array(values, pa.string()).dictionary_encode().cast(field.type)
        else:
            array = pa.array(values, field.type)
        rows = rows.set_column(rows.schema.get_field_index(name), field, array)
    return rows
