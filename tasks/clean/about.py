"""What an edit may know of a document besides its text."""

from dataclasses import dataclass

CODE = "code"


@dataclass(frozen=True, slots=True)
class About:
    """`kind` is text, markdown, html or code; `language` an ISO 639 code or None; `emoji` is `name` or `drop`; `source`
    the name of the source; `domain` the host of the document's address, "" where it has none."""

    kind: str = "text"
    language: str | None = None
    emoji: str = "name"
    source: str = ""
    domain: str = ""
