"""What edits and rules may know of a document besides its text, and what cleaning decides about documents."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

KindName = Literal[
    "prose", "documentation", "code", "chat", "question_answer", "verse", "table", "maths", "web_page", "markup"
]  # fmt: skip

KINDS: tuple[KindName, ...] = get_args(KindName)
"""Kinds of text, each with edits and rules of its own in the preset `auto`."""

CODE = "code"
_STAYS = -1


@dataclass(frozen=True, slots=True)
class DocumentContext:
    """What is known of a document besides its text.

    `format` is text, markdown, wikitext, html or code; `language` an ISO 639 code or None; `emoji` is `name` or `drop`;
    `source` the name of the source; `domain` the host of the document's URL, "" where it has none; `text_kind` is one
    of `KINDS`, "" where no kind was recognised.
    """

    format: str = "text"
    language: str | None = None
    emoji: str = "name"
    source: str = ""
    domain: str = ""
    text_kind: str = ""

    @property
    def base_language(self) -> str:
        """Return the language without its region or script, in lower case (`zh` of `zh-Hant`); "" where it is None."""
        return (self.language or "").partition("-")[0].lower()


class Verdicts:
    """What is decided about the documents of a batch, by their rows.

    `rules` (indices into `names`, -1 for documents that are kept), `values` and `limits` (NaN for none) are arrays;
    `edits` and `evidence` hold only the rows that have any.
    """

    def __init__(self, documents: int) -> None:
        self.names: list[str] = []
        self.rules = np.full(documents, _STAYS, np.int64)
        self.values = np.full(documents, np.nan)
        self.limits = np.full(documents, np.nan)
        self.edits: dict[int, list[str]] = {}
        self.evidence: dict[int, str] = {}

    @property
    def is_kept(self) -> np.ndarray:
        """Return which documents are kept (bool)."""
        return self.rules == _STAYS

    def edit(self, rows: Iterable[int], name: str) -> None:
        """Record that an edit changed some rows."""
        for row in rows:
            self.edits.setdefault(row, []).append(name)

    def drop(
        self,
        rows: np.ndarray | int,
        rule: str,
        values: np.ndarray | float = np.nan,
        limits: np.ndarray | float = np.nan,
        *,
        evidence: Mapping[int, str] | None = None,
    ) -> None:
        """Drop rows under a rule, with what it measured against which limits (NaN for nothing)."""
        if rule not in self.names:
            self.names.append(rule)
        self.rules[rows] = self.names.index(rule)
        self.values[rows] = values
        self.limits[rows] = limits
        self.evidence.update(evidence or {})
