"""Judge sampled records for a new recipe: roles of fields, and languages.

Languages are identified by py3langid (langid.py, Lui and Baldwin 2012), whose model knows 97 languages.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_NAMES = ("text", "content", "body", "raw_content", "document", "article", "markdown", "code", "message")

ID_NAMES = ("id", "_id", "doc_id", "docid", "uuid", "uid", "guid", "key")

KNOWN_NAME_SHARE = 0.3
"""A field with a customary name is the text if its mean length is at least this share of the longest field's."""

SHORTEST_CHARS = 40
"""UTF-8 bytes below which no language is identified, because a guess from few words is unreliable."""

SNIFFED_CHARS = 2000
"""Characters of a text from which its language is identified."""


@dataclass(frozen=True)
class Fields:
    """Names of the fields by role; None where no field has it."""

    text: str | None
    id: str | None
    all: tuple[str, ...]


def judge_fields(records: Sequence[Mapping[str, Any]]) -> Fields:
    """Return the roles of fields; the text is the longest string on average, or a long one with a customary name."""
    names = tuple(dict.fromkeys(name for record in records for name in record))
    lengths = {
        name: sum(len(record[name]) for record in records if isinstance(record.get(name), str)) / max(1, len(records))
        for name in names
    }
    longest = max(lengths.values(), default=0.0)
    customary = [name for name in TEXT_NAMES if lengths.get(name, 0.0) >= KNOWN_NAME_SHARE * longest > 0]
    text = customary[0] if customary else max(lengths, key=lambda name: lengths[name]) if longest else None
    ids = [name for name in ID_NAMES if name in names and name != text and _identifies(records, name)]
    return Fields(text, ids[0] if ids else None, names)


def _identifies(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [record.get(name) for record in records]
    usable = all(isinstance(value, str | int) and not isinstance(value, bool) and value != "" for value in values)
    return usable and len(set(values)) == len(values)


def conversation_size(record: Mapping[str, Any]) -> int:
    """Return the characters that are said in a record's conversation: 0 where it has none."""
    turns = [one for value in record.values() if isinstance(value, list) for one in value if isinstance(one, dict)]
    said = [one[key] for one in turns for who, key in (("role", "content"), ("from", "value")) if {who, key} <= {*one}]
    return sum(len(str(text)) for text in said)


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Count texts by ISO 639-1 code, without texts that are too short."""
    enough = (text for text in map(str.strip, texts) if len(text.encode()) >= SHORTEST_CHARS)
    return Counter(str(_identifier().classify(text[:SNIFFED_CHARS])[0]) for text in enough)


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_pickled_model(MODEL_FILE)
