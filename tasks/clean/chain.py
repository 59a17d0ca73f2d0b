"""The stage itself: every document through the edits and rules of its preset, part by part.

What happens to a document depends on its text, format, language and preset, and on nothing else, so that parts can be
cleaned in any order by any number of processes.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import blake3
import pyarrow as pa

from tasks.artifact import Artifact
from tasks.clean import c4, gopher, source_code
from tasks.clean.about import About
from tasks.clean.config import CleanConfig
from tasks.clean.emoji_words import emoji_to_words, emoticons_to_words
from tasks.clean.lines import (
    collapse_repeated_lines,
    remove_citations,
    remove_javascript_lines,
    remove_policy_lines,
    remove_short_lines,
    remove_unfinished_lines,
)
from tasks.clean.markup import remove_markup
from tasks.clean.personal_data import mask_emails, mask_ip_addresses, mask_payment_cards, mask_phones
from tasks.clean.presets import EDITS, EMPTY, HTML_NO_TEXT, LIMITS, PRESETS
from tasks.clean.repair import compose, remove_invisible, undo_entities, undo_mojibake
from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics
from tasks.ledger import DROP, EDIT, LedgerRows
from tasks.parts import PartResult, map_parts
from tasks.report import StageReport
from tasks.schema import DOCUMENTS
from tasks.wipeout import check_wipe_out
from tasks.workspace import Workspace

Edit = Callable[[str, About], str]

HTML_TO_TEXT = "html_to_text"
EDIT_FUNCTIONS: dict[str, Edit] = {
    "mojibake": undo_mojibake,
    "entities": undo_entities,
    "nfc": compose,
    "control_characters": remove_invisible,
    "markup": remove_markup,
    "emoji": emoji_to_words,
    "emoticons": emoticons_to_words,
    "email": mask_emails,
    "ip_address": mask_ip_addresses,
    "phone": mask_phones,
    "payment_card": mask_payment_cards,
    "c4_citations": remove_citations,
    "c4_javascript_lines": remove_javascript_lines,
    "c4_policy_lines": remove_policy_lines,
    "c4_unfinished_lines": remove_unfinished_lines,
    "c4_short_lines": remove_short_lines,
    "repeated_lines": collapse_repeated_lines,
}
RULES: dict[str, Rule] = {rule.name: rule for rule in (*gopher.RULES, *c4.RULES, *source_code.RULES)}


@dataclass(frozen=True)
class Dropped:
    """Why a document goes: the rule, and what it measured against its limit where it measures something."""

    rule: str
    value: float | None = None
    limit: float | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The text after the edits that changed it, by name in order; `dropped` where a rule failed."""

    text: str
    edits: tuple[str, ...] = ()
    dropped: Dropped | None = None


@dataclass(frozen=True)
class Chain:
    """The edits and rules of one preset under one configuration, in order."""

    edits: tuple[str, ...]
    rules: tuple[tuple[Rule, float], ...]
    reads_html: bool = field(default=True)

    @staticmethod
    def of(config: CleanConfig, preset: str) -> "Chain":
        """The chain of a preset with the configuration's additions, omissions, limits and emoji switch."""
        without = set(config.without)
        if config.emoji == "keep":
            without |= {"emoji", "emoticons"}
        chosen = PRESETS[preset]
        edits = tuple(name for name in EDITS if name in chosen.edits and name not in without)
        rules = tuple(
            (RULES[name], config.limits.get(name, LIMITS[name]))
            for name in LIMITS
            if (name in chosen.rules or name in config.add) and name not in without
        )
        return Chain(tuple(name for name in edits if name != HTML_TO_TEXT), rules, HTML_TO_TEXT in edits)

    def clean(self, text: str, about: About) -> Outcome:
        """One document through all edits, then all rules until one fails."""
        applied: list[str] = []
        if about.kind == "html" and self.reads_html:
            from tasks.clean.html_text import html_to_text  # Half a second to import, and most runs hold no page.

            extracted, failure = html_to_text(text)
            if extracted is None:
                return Outcome("", (), Dropped(HTML_NO_TEXT, evidence=failure))
            applied.append(HTML_TO_TEXT)
            text = extracted
        for name in self.edits:
            edited = EDIT_FUNCTIONS[name](text, about)
            if edited is not text and edited != text:
                applied.append(name)
                text = edited
        return Outcome(text, tuple(applied), self._verdict(text, about))

    def _verdict(self, text: str, about: About) -> Dropped | None:
        if not text or text.isspace():
            return Dropped(EMPTY)
        statistics = TextStatistics(text, about.language)
        for rule, limit in self.rules:
            value = rule.failing_value(statistics, limit)
            if value is not None:
                return Dropped(rule.name, value, limit)
        return None


def clean_documents(documents: Artifact, config: CleanConfig, workspace: Workspace) -> StageReport:
    """Clean every part of `documents`; writes DOCUMENTS and LEDGER.

    Raises GuardError when more of a source is dropped than the wipe-out limit allows.
    """
    report = map_parts(workspace, documents, functools.partial(clean_part, config), config.workers)
    check_wipe_out("clean", report, config.wipe_out_limit, config.wipe_out_overrides)
    return report


def clean_part(config: CleanConfig, documents: pa.Table, index: int) -> PartResult:
    """The documents of one part (DOCUMENTS schema) that no rule drops, edited, with their ledger rows."""
    del index
    chains = {name: Chain.of(config, name) for name in PRESETS}
    ledger = LedgerRows("clean")
    report = StageReport()
    kept: list[int] = []
    texts: list[str] = []
    text_digests: list[bytes] = []
    row = 0
    for batch in documents.to_batches():
        for fields in _rows(batch):
            doc_id, piece, source, language, text, digest, meta = fields
            kind = _kind(meta)
            outcome = chains[config.preset_of(source, kind)].clean(text, About(kind, language, config.emoji))
            bytes_in = _byte_length(text)
            counts = report.source(source)
            counts.documents_in += 1
            counts.bytes_in += bytes_in
            if outcome.dropped is not None:
                drop = outcome.dropped
                counts.dropped[drop.rule] += 1
                ledger.add(
                    doc_id=doc_id,
                    piece=piece,
                    action=DROP,
                    rule=drop.rule,
                    value=drop.value,
                    limit=drop.limit,
                    bytes_in=bytes_in,
                    bytes_out=0,
                    evidence=drop.evidence,
                )
            else:
                bytes_out = bytes_in
                if outcome.edits:
                    encoded = outcome.text.encode()
                    bytes_out = len(encoded)
                    digest = blake3.blake3(encoded).digest(length=16)
                    counts.edited.update(outcome.edits)
                    ledger.add(
                        doc_id=doc_id,
                        piece=piece,
                        action=EDIT,
                        rule="+".join(outcome.edits),
                        bytes_in=bytes_in,
                        bytes_out=bytes_out,
                    )
                counts.documents_out += 1
                counts.bytes_out += bytes_out
                kept.append(row)
                texts.append(outcome.text)
                text_digests.append(digest)
            row += 1
    cleaned = _with_texts(documents, kept, texts, text_digests)
    return PartResult({"documents": cleaned, "ledger": ledger.table()}, report)


def _rows(batch: pa.RecordBatch):
    names = ("doc_id", "piece", "source", "lang", "text", "text_digest", "meta")
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def _byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@functools.lru_cache(maxsize=1024)
def _kind(meta: str | None) -> str:
    """The format a document was marked with when it was read; plain text where it was not."""
    return json.loads(meta).get("format", "text") if meta else "text"


def _with_texts(documents: pa.Table, kept: list[int], texts: list[str], digests: list[bytes]) -> pa.Table:
    rows = documents.take(pa.array(kept, pa.int64()))
    for name, values in (("text", texts), ("text_digest", digests)):
        position = rows.schema.get_field_index(name)
        rows = rows.set_column(position, DOCUMENTS.field(name), pa.array(values, DOCUMENTS.field(name).type))
    return rows
