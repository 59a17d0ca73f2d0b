"""The chain of edits and rules that one document goes through: which they are, in which order, and what they do to it.

What happens to a document depends on its text, format, language, source and address, and on nothing else.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from model.errors import RecipeError
from tasks.clean import c4, fineweb, gopher, language, source_code
from tasks.clean.about import CODE, About
from tasks.clean.config import CleanConfig
from tasks.clean.edits import HTML_TO_TEXT, Edit, edit_of
from tasks.clean.emoji_words import ANYWHERE, STANDING_ALONE
from tasks.clean.presets import EDIT_LIMITS, EDITS, EMPTY, HTML_NO_TEXT, LANGUAGE, LIMITS, PICTURES, PRESETS, SPELLING
from tasks.clean.rule import Rule
from tasks.clean.signs import beginnings, signs_of
from tasks.clean.spelling import correct_spelling
from tasks.clean.statistics import Scratch, TextStatistics
from tasks.clean.supplied import Supplied
from tasks.clean.verdicts import Dropped, Outcome
from tasks.clean.word_lists import word_list_rule

RULES: dict[str, Rule] = {
    rule.name: rule for rule in (*language.RULES, *gopher.RULES, *c4.RULES, *fineweb.RULES, *source_code.RULES)
}
_SPACE, _BEYOND_ASCII = 32, 128
_LOOK_BYTES = 256
_FACE_BEGINNINGS = beginnings(STANDING_ALONE, ANYWHERE)


@dataclass(frozen=True)
class Chain:
    """The edits and rules of one preset under one configuration, in order."""

    edits: tuple[Edit, ...]
    rules: tuple[tuple[Rule, float], ...]
    reads_html: bool = True
    languages: frozenset[str] = frozenset()
    emoji: str = "name"
    scratch: Scratch | None = None

    @staticmethod
    def of(config: CleanConfig, preset: str, supplied: Supplied | None = None) -> "Chain":
        """The chain of a preset with all that the configuration changes about it."""
        supplied = supplied or Supplied()
        without = set(config.without) | (PICTURES if config.emoji == "keep" else frozenset())
        chosen = PRESETS[preset]
        asked = {*chosen.edits, *config.add, *((SPELLING,) if config.spelling else ())}
        edits = config.edits or tuple(name for name in EDITS if name in asked)
        rules = config.rules or tuple(name for name in LIMITS if name in chosen.rules or name in config.add)
        if config.extensions is not None:
            edits = tuple(dict.fromkeys((*edits, *config.extensions.edits)))
            rules = tuple(dict.fromkeys((*rules, *config.extensions.rules)))
        edits = tuple(name for name in edits if name not in without)
        return Chain(
            tuple(_edit(name, config.limits, supplied) for name in edits if name != HTML_TO_TEXT),
            (
                *(_rule(name, config.limits, supplied) for name in rules if name not in without),
                *(word_list_rule(words, supplied.word_lists[words.name]) for words in config.word_lists),
            ),
            HTML_TO_TEXT in edits or config.edits is not None,
            frozenset(config.languages),
            config.emoji,
            Scratch(),
        )

    def clean(self, document: str | np.ndarray, about: About, signs: int | None = None) -> Outcome:
        """One document (str, or UTF-8 bytes with their signs) through all edits, then all rules until one fails."""
        raw = np.frombuffer(document.encode(), np.uint8) if isinstance(document, str) else document
        text = document if isinstance(document, str) else None
        applied: list[str] = []
        identified: tuple[str, float] | None = None
        if about.kind == "html" and self.reads_html:
            from tasks.clean.html_text import html_to_text  # Half a second to import, and most runs hold no page.

            page = next(self._edited(("alt_texts",), text or raw.tobytes().decode(), about), None)
            extracted, failure = html_to_text(page or text or raw.tobytes().decode())
            if extracted is None:
                return Outcome(raw, (), Dropped(HTML_NO_TEXT, evidence=failure))
            applied.append(HTML_TO_TEXT)
            text, signs = extracted, None
            raw = np.frombuffer(text.encode(), np.uint8)
        if signs is None:
            signs = _signs(raw)
        for edit in self.edits:
            if not signs & edit.sign:
                continue
            if edit.needs_language and about.language is None and identified is None:
                identified = language.identify_language(raw)
            if text is None:
                text = raw.tobytes().decode()
            edited = edit.apply(text, _in_language(about, identified))
            if edited is not text and edited != text:
                applied.append(edit.name)
                text = edited
                raw = np.frombuffer(text.encode(), np.uint8)
                signs = _signs(raw)
        return self._judged(raw, text, about, tuple(applied), identified)

    def _edited(self, names: tuple[str, ...], text: str, about: About) -> Iterator[str]:
        """What edits of these names make of a text, where the chain has them."""
        return (edit.apply(text, about) for edit in self.edits if edit.name in names)

    def _judged(
        self,
        raw: np.ndarray,
        text: str | None,
        about: About,
        edits: tuple[str, ...],
        identified: tuple[str, float] | None,
    ) -> Outcome:
        if not len(raw) or (text.isspace() if text is not None else _is_blank(raw)):
            return Outcome(raw, edits, Dropped(EMPTY), identified)
        is_unknown = about.language is None and about.kind != CODE
        if identified is None and (is_unknown or self.languages or self._measures_language):
            identified = language.identify_language(raw)
        if self.languages and identified is not None and identified[0] not in self.languages:
            return Outcome(raw, edits, Dropped(LANGUAGE, identified[1], None, identified[0]), identified)
        about = _in_language(about, identified)
        measured = {language.CONFIDENCE: identified[1]} if identified is not None else {}
        statistics = TextStatistics(raw, about.language, about=about, scratch=self.scratch, measured=measured)
        for rule, limit in self.rules:
            value = rule.failing_value(statistics, limit)
            if value is None:
                continue
            if isinstance(value, str):
                return Outcome(raw, edits, Dropped(rule.name, None, None, value), identified)
            return Outcome(raw, edits, Dropped(rule.name, value, limit), identified)
        return Outcome(raw, edits, None, identified)

    @functools.cached_property
    def _measures_language(self) -> bool:
        return any(rule.name == language.CONFIDENCE for rule, _ in self.rules)


def _in_language(about: About, identified: tuple[str, float] | None) -> About:
    if about.language is not None or identified is None:
        return about
    return About(about.kind, identified[0], about.emoji, about.source, about.domain)


def _is_blank(raw: np.ndarray) -> bool:
    if _SPACE < raw[0] < _BEYOND_ASCII:
        return False
    beginning = raw[:_LOOK_BYTES].tobytes().decode(errors="ignore")
    return beginning.isspace() and raw.tobytes().decode().isspace()


def _signs(raw: np.ndarray) -> int:
    return int(signs_of(raw, np.array([0, len(raw)], np.int64), _FACE_BEGINNINGS)[0])


def document_signs(data: np.ndarray, offsets: np.ndarray) -> list[int]:
    """The signs of each document of an Arrow string buffer."""
    return signs_of(data, offsets, _FACE_BEGINNINGS).tolist()


def _edit(name: str, limits: Mapping[str, float], supplied: Supplied) -> Edit:
    if name in supplied.functions:
        return Edit(name, supplied.functions[name].function)
    if name == SPELLING:
        return Edit(name, functools.partial(correct_spelling, supplied.spellings))
    return edit_of(name, limits.get(name, EDIT_LIMITS.get(name)))


def _rule(name: str, limits: Mapping[str, float], supplied: Supplied) -> tuple[Rule, float]:
    if name not in supplied.functions:
        return RULES[name], limits.get(name, LIMITS[name])
    own = supplied.functions[name].function
    if not isinstance(own, Rule):
        return Rule(name, functools.partial(_own_reason, own)), 0.0
    if name not in limits:
        raise RecipeError(f'clean: the rule `{name}` has no limit; set [clean.limits] "{name}" = ...')
    return Rule(name, own.measure, own.at_least), limits[name]


def _own_reason(function, statistics: TextStatistics, limit: float) -> str | None:
    del limit
    return function(statistics.text, statistics.about) or None
