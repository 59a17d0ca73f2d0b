"""The chain of edits and rules that documents go through: which they are, in which order, and what they do to them.

What happens to a document depends on its text, format, language, source and address, and on nothing else. A handful of
documents goes through side by side, edit by edit and rule by rule, since most of what an edit or a rule does for one
small document alone is getting ready for it.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from model.errors import RecipeError
from tasks.clean.batch import Abouts, Handful, Texts
from tasks.clean.config import CleanConfig
from tasks.clean.document import About, Outcome, Verdicts
from tasks.clean.edits.html import html_to_text
from tasks.clean.edits.registry import HTML_TO_TEXT, Edit, edit_of
from tasks.clean.edits.spelling import correct_spelling
from tasks.clean.filters import heuristics as c4
from tasks.clean.filters import heuristics as fineweb
from tasks.clean.filters import heuristics as gopher
from tasks.clean.filters import heuristics as source_code
from tasks.clean.filters.blocklist import Supplied
from tasks.clean.filters.language import language_model
from tasks.clean.filters.rule import CountedRule, Rule, TextStatistics
from tasks.clean.filters.word_lists import word_list_rule
from tasks.clean.kernels.measurements import Measurements
from tasks.clean.kernels.prefilter import ALL_SIGNS, BLANK_TEXT
from tasks.clean.kernels.repetition import Slots
from tasks.clean.presets import EDIT_LIMITS, EDITS, EMPTY, HTML_NO_TEXT, LANGUAGE, LIMITS, PICTURES, PRESETS, SPELLING

RULES: dict[str, Rule | CountedRule] = {
    rule.name: rule
    for rule in (*gopher.GOPHER_RULES, *c4.C4_RULES, *fineweb.FINEWEB_RULES, *source_code.SOURCE_CODE_RULES)
}


@dataclass(frozen=True)
class Chain:
    """The edits and rules of one preset under one configuration, in order."""

    edits: tuple[Edit, ...]
    rules: tuple[tuple[Rule | CountedRule, float], ...]
    reads_html: bool = True
    languages: frozenset[str] = frozenset()
    emoji: str = "name"
    slots: Slots | None = None
    html_extractor: str = "trafilatura"

    @staticmethod
    def of(config: CleanConfig, preset: str, supplied: Supplied | None = None) -> "Chain":
        """The chain of a preset with all that the configuration changes about it."""
        supplied = supplied or Supplied()
        without = set(config.without) | (PICTURES if config.emoji == "keep" else frozenset())
        chosen = PRESETS[preset]
        asked = {*chosen.edits, *config.add, *((SPELLING,) if config.spelling else ())}
        edits, rules = config.edits, config.rules
        if edits is None:
            edits = tuple(name for name in EDITS if name in asked)
        elif edits:
            edits = (HTML_TO_TEXT, *edits)
        if rules is None:
            rules = tuple(name for name in LIMITS if name in chosen.rules or name in config.add)
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
            HTML_TO_TEXT in edits,
            frozenset(config.languages),
            config.emoji,
            Slots(),
            config.html_extractor,
        )

    def clean(self, document: str | np.ndarray, about: About) -> Outcome:
        """One document (str or UTF-8 bytes) through all edits, then all rules until one fails."""
        texts, abouts, verdicts = Texts.of([document]), Abouts.of(about, identifies=True), Verdicts(1)
        self.clean_many(texts, abouts, np.zeros(1, np.int64), verdicts)
        return Outcome(
            texts.raw(0), tuple(verdicts.edits.get(0, ())), verdicts.dropped(0), abouts.identified_language(0)
        )

    def clean_many(self, texts: Texts, abouts: Abouts, rows: np.ndarray, verdicts: Verdicts) -> None:
        """The documents of `rows` through all edits, then all rules until one fails; `texts`, `abouts` and `verdicts`
        hold afterwards what became of them."""
        texts.looked_for = ALL_SIGNS
        if self.reads_html:
            rows = self._pages_read(texts, abouts, rows, verdicts)
        before_names = None
        for edit, later_signs in zip(self.edits, self._later_signs, strict=True):
            if edit.needs_language and before_names is None:
                before_names = texts.bounds
            chosen = rows[texts.signs[rows] & edit.sign != 0]
            texts.looked_for = later_signs
            if len(chosen):
                if edit.needs_language:
                    abouts.identify_unknown(texts, chosen, before_names)
                verdicts.edit(edit.apply_to_many(texts, abouts, chosen).tolist(), edit.name)
        is_blank = texts.signs[rows] & BLANK_TEXT != 0
        if is_blank.any():
            verdicts.drop(rows[is_blank], EMPTY)
        rows = rows[~is_blank]
        if self.languages:
            rows = self._in_wanted_languages(texts, abouts, rows, verdicts)
        wanted = np.zeros(len(texts), np.bool_)
        wanted[rows] = True
        measurements = Measurements(texts, abouts, wanted, self.slots)
        for rule, limit in self.rules:
            failures = rule.failures(measurements, limit)
            if len(failures.rows):
                limits = np.where(np.isnan(failures.values), np.nan, limit)
                verdicts.drop(failures.rows, rule.name, failures.values, limits, evidence=failures.reasons)
                wanted[failures.rows] = False
            if not wanted.any():
                break
        abouts.identify_unknown(texts, np.flatnonzero(wanted))

    @functools.cached_property
    def _later_signs(self) -> list[int]:
        """For each edit the signs that the edits after it ask for."""
        signs = [0]
        for edit in self.edits[:0:-1]:
            signs.append(signs[-1] | edit.sign)
        return signs[: len(self.edits)][::-1]

    def _pages_read(self, texts: Texts, abouts: Abouts, rows: np.ndarray, verdicts: Verdicts) -> np.ndarray:
        """Pages of HTML become text, or go; returns the rows that are left."""
        pages = [row for row in rows.tolist() if abouts.kinds[row] == "html"]
        if not pages:
            return rows
        alt_texts = next((edit for edit in self.edits if edit.name == "alt_texts"), None)
        read: dict[int, str] = {}
        for row in pages:
            page = texts.text(row)
            if alt_texts is not None:
                page = alt_texts.apply(page, abouts.about(row)) or page
            text, failure = html_to_text(page, self.html_extractor)
            if text is None:
                verdicts.drop(row, HTML_NO_TEXT, evidence={row: failure})
            else:
                read[row] = text
        verdicts.edit(read, HTML_TO_TEXT)
        texts.replace(read)
        return rows[verdicts.stays[rows]]

    def _in_wanted_languages(self, texts: Texts, abouts: Abouts, rows: np.ndarray, verdicts: Verdicts) -> np.ndarray:
        """Documents in other languages than the recipe wants go; returns the rows that are left."""
        found, confidences = abouts.identified(texts, rows)
        names = language_model().languages
        is_wanted = np.array([name in self.languages for name in names])[found[rows]]
        unwanted = rows[~is_wanted]
        evidence = {row: names[found[row]] for row in unwanted.tolist()}
        verdicts.drop(unwanted, LANGUAGE, confidences[unwanted], evidence=evidence)
        return rows[is_wanted]


def clean_handful(
    handful: Handful, rows: np.ndarray, config: CleanConfig, chains: Mapping[str, Chain], verdicts: Verdicts
) -> None:
    """The documents of `rows`, each through the chain of its preset."""
    of_preset: dict[str, list[int]] = {}
    for row in rows.tolist():
        of_preset.setdefault(config.preset_of(handful.sources[row], handful.kinds[row]), []).append(row)
    for preset, chosen in of_preset.items():
        chains[preset].clean_many(handful.texts, handful.abouts, np.array(chosen, np.int64), verdicts)


def _edit(name: str, limits: Mapping[str, float], supplied: Supplied) -> Edit:
    if name in supplied.functions:
        return Edit(name, supplied.functions[name].function)
    if name == SPELLING:
        return Edit(name, functools.partial(correct_spelling, supplied.spellings))
    return edit_of(name, limits.get(name, EDIT_LIMITS.get(name)))


def _rule(name: str, limits: Mapping[str, float], supplied: Supplied) -> tuple[Rule | CountedRule, float]:
    if name not in supplied.functions:
        return RULES[name], limits.get(name, LIMITS[name])
    own = supplied.functions[name].function
    if not isinstance(own, Rule | CountedRule):
        return Rule(name, functools.partial(_own_reason, own)), 0.0
    if name not in limits:
        raise RecipeError(f'clean: the rule `{name}` has no limit; set [clean.limits] "{name}" = ...')
    return replace(own, name=name), limits[name]


def _own_reason(function, statistics: TextStatistics, limit: float) -> str | None:
    del limit
    return function(statistics.text, statistics.about) or None
