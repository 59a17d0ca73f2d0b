"""What kernels count, in plain Python, and kernels applied to one text."""

from typing import Any

import numpy as np
import regex

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.filters.language import identify_languages, language_model
from tasks.clean.kernels.characters import (
    CHINESE_JAPANESE,
    SOUTH_EAST_ASIAN,
    UNSEGMENTED_PUNCTUATION,
    Ranges,
    has_unsegmented_script,
    words_of_units,
)
from tasks.clean.kernels.measurements import Measurements


def character_class(*ranges: Ranges) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for several in ranges for first, last in several)


IDEOGRAPH = regex.compile(f"[{character_class(CHINESE_JAPANESE)}]")
UNSPACED = character_class(CHINESE_JAPANESE, SOUTH_EAST_ASIAN)
UNITS = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^\s{UNSPACED}{character_class(UNSEGMENTED_PUNCTUATION)}]+")


def split_units(text: str) -> list[str]:
    """Split at whitespace; unsegmented scripts into single characters with their marks, without punctuation."""
    return UNITS.findall(text) if has_unsegmented_script(text) else text.split()


def count_words(text: str) -> float:
    """Return the words of a text; unsegmented scripts by characters per word."""
    units = split_units(text)
    ideographs = sum(IDEOGRAPH.match(unit) is not None for unit in units)
    return words_of_units(len(units), ideographs, sum(map(has_unsegmented_script, units)) - ideographs)


def identify_language(text: str) -> tuple[str, float]:
    """Return (ISO 639-1 code, confidence 0 to 1) of a text."""
    raw = np.frombuffer(text.encode(), np.uint8).copy()
    languages, confidences = identify_languages(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int64))
    return language_model().languages[int(languages[0])], float(confidences[0])


class OneText:
    """The measurements of a batch of one text, each as its only value."""

    def __init__(self, text: str) -> None:
        self._all = Measurements(Texts.of([text]), BatchContext.of(DocumentContext()), np.ones(1, np.bool_))

    def __getattr__(self, name: str) -> Any:
        return only_value(getattr(self._all, name))


def only_value(found: Any) -> Any:
    if callable(found):
        return lambda *words, **named: only_value(found(*words, **named))
    return tuple(map(only_value, found)) if isinstance(found, tuple) else found[0].item()
