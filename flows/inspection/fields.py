"""Judge sampled records for a new recipe: roles of fields, languages, and text in lists and objects, which the sample
stage does not read: posts of a thread with replies within replies, or paragraphs of an article, joined to one text.

Languages are identified by py3langid (langid.py, Lui and Baldwin 2012), whose model knows 97 languages.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_NAMES = ("text", "content", "body", "raw_content", "document", "article", "markdown", "code", "message")

ID_NAMES = ("id", "_id", "doc_id", "docid", "uuid", "uid", "guid", "key")

KNOWN_NAME_SHARE = 0.3
"""A field with a customary name is the text if its mean length is at least this share of the longest field's."""

SHORTEST_BYTES = 40
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
    enough = (text for text in map(str.strip, texts) if len(text.encode()) >= SHORTEST_BYTES)
    return Counter(str(_identifier().classify(text[:SNIFFED_CHARS])[0]) for text in enough)


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_pickled_model(MODEL_FILE)


MOST = 0.5
"""Share of the text above which a field that is not read is named."""


@dataclass(frozen=True)
class NestedText:
    """A field of lists or objects, and the share (0 to 1) of the text in all fields that it holds."""

    field: str
    share: float


def find_nested_text(records: Sequence[Mapping[str, Any]]) -> NestedText | None:
    """Return the field of lists or objects that holds most of the text; None where none holds more than half of it.

    Of the strings in lists and objects, those of one word are names, tags, addresses and dates, and do not count,
    unless they are not ASCII, since some scripts write no spaces.
    """
    held = 0
    nested: Counter[str] = Counter()
    for record in records:
        for name, value in record.items():
            if isinstance(value, list | dict):
                nested[name] += _sizes(value).total()
            elif isinstance(value, str):
                held += text_size(value)
    ((name, most),) = nested.most_common(1) or [("", 0)]
    whole = held + nested.total()
    return NestedText(name, most / whole) if most > MOST * whole else None


def name_of_texts(values: Sequence[Any]) -> str | None:
    """Return the field that holds most of the text in lists, or much of it under a customary name; None where these are
    lists of texts."""
    sizes = sum(map(_sizes, values), Counter())
    longest = max(sizes.values(), default=0)
    customary = [name for name in TEXT_NAMES if sizes[name] >= KNOWN_NAME_SHARE * longest > 0]
    return customary[0] if customary else max(sizes, key=lambda name: sizes[name], default=None)


def _sizes(value: Any) -> Counter[str | None]:
    """Return the bytes of the text in a list or an object, by the field that holds it."""
    sizes: Counter[str | None] = Counter()
    for name, text in _texts(value):
        if " " in text or not text.isascii():
            sizes[name] += text_size(text)
    return sizes


def text_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text.encode(errors="replace"))


def joined_texts(value: Any, name: str | None) -> str:
    """Return the texts in a field, an empty line between them, each before those within it: those in fields called
    `name`, and with None those in lists themselves."""
    return "\n\n".join(text for of, text in _texts(value) if of == name)


def _texts(value: Any) -> Iterator[tuple[str | None, str]]:
    """Yield every string in a value with the field that it is in; None outside objects."""
    # A chain of replies may be as deep as Python's stack.
    left: list[tuple[str | None, Any]] = [(None, value)]
    while left:
        name, one = left.pop()
        if isinstance(one, str):
            yield name, one
        elif isinstance(one, list):
            left += [(name, member) for member in reversed(one)]
        elif isinstance(one, dict):
            texts_first = sorted(one.items(), key=lambda pair: not isinstance(pair[1], str))
            left += texts_first[::-1]


def stored_size(record: dict[str, Any], format: str) -> int:
    """Return about how many bytes a record takes in a file: a line of JSON, or the cells of a row."""
    if format == "csv":
        return sum(text_size(f"{value or ''},") for value in record.values())
    return text_size(json.dumps(record, ensure_ascii=False))
