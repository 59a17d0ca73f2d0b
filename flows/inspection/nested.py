"""Find text in lists and objects of records, which the sample stage does not read, and join it to one text.

Posts of a thread with replies within replies are the usual case, and paragraphs of an article.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.inspection.fields import KNOWN_NAME_SHARE, TEXT_NAMES

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
