"""The chain of edits and rules that documents go through: which they are, in which order, and what they do.

The result depends on a document's text, format, language, source and URL, and on nothing else. Documents go through in
batches, edit by edit and rule by rule: for one small document alone, most of the work would be setting up kernels.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from model.errors import RecipeError
from tasks.clean.batch import BatchContext, DocumentBatch, Texts
from tasks.clean.config import ClassifierConfig, CleanConfig
from tasks.clean.document import KINDS, DocumentContext, Verdicts
from tasks.clean.edits.html import html_to_text
from tasks.clean.edits.registry import EDIT_REGISTRY, HTML_TO_TEXT, Edit
from tasks.clean.edits.spelling import SpellingList, correct_spelling
from tasks.clean.filters.blocklist import DenyList
from tasks.clean.filters.language import language_model
from tasks.clean.filters.rule import Rule, TextStatistics
from tasks.clean.filters.word_lists import WordList, word_list_rule
from tasks.clean.kernels.measurements import Measurements
from tasks.clean.kernels.prefilter import ALL_FEATURES, BLANK_TEXT
from tasks.clean.kernels.repetition import Slots
from tasks.clean.kinds import recognise_kinds
from tasks.clean.presets import (
    EDIT_LIMITS,
    EDITS,
    EMPTY,
    HTML_NO_TEXT,
    LANGUAGE,
    PICTURES,
    PRESETS,
    SPELLING,
    identified_as,
)
from tasks.clean.rules import RULES, CountedRule
from tasks.clean.structure import Structure


class Scorer(Protocol):
    """A classifier (`tasks.clean.filters.classifier`)."""

    def score(self, raw: np.ndarray) -> float | None:
        """Return the probability of its label (0 to 1) for UTF-8 bytes (uint8); None where nothing can be said."""
        ...


@dataclass(frozen=True)
class Labelled:
    """Texts (UTF-8), whether each has the label that a classifier is to learn, and the digest of their file."""

    texts: tuple[bytes, ...]
    has_label: tuple[bool, ...]
    digest: str


class UserFunction(Protocol):
    """A function of the user that a worker process can load again (`tasks.execution.plugins.Extension`)."""

    @property
    def function(self) -> Callable[..., Any]:
        """Return an edit `(text, context) -> text`, a rule `(text, context) -> reason or None`, or a `Rule`."""
        ...


@dataclass(frozen=True)
class UserResources:
    """Deny-list, word lists and classifiers by name, spelling lists, and functions by `module:function`, which a recipe
    brings."""

    deny: DenyList = field(default_factory=DenyList)
    word_lists: Mapping[str, WordList] = field(default_factory=dict)
    spellings: tuple[SpellingList, ...] = ()
    functions: Mapping[str, UserFunction] = field(default_factory=dict)
    classifiers: Mapping[str, Scorer] = field(default_factory=dict)
    """Those that are loaded or trained by now."""
    labelled: Mapping[str, Labelled] = field(default_factory=dict)
    """Examples of those that are to be trained, by name."""


@dataclass(frozen=True)
class Chain:
    """The edits and rules of one preset under one configuration, in order."""

    edits: tuple[Edit, ...]
    rules: tuple[tuple[Rule | CountedRule, float], ...]
    reads_html: bool
    languages: frozenset[str]
    slots: Slots
    html_extractor: str

    @staticmethod
    def of(config: CleanConfig, preset: str, resources: UserResources | None = None) -> "Chain":
        """Return the chain of a preset with all changes that the configuration makes to it."""
        resources = resources or UserResources()
        without = {*config.without, *(PICTURES if config.emoji == "keep" else ())}
        chosen = PRESETS[preset]
        names = {*chosen.edits, *config.add, *((SPELLING,) if config.spelling else ())}
        edits, rules = config.edits, config.rules
        if edits is None:
            edits = tuple(name for name in EDITS if name in names)
        elif edits:
            edits = (HTML_TO_TEXT, *edits)
        if rules is None:
            rules = tuple(name for name in RULES if name in chosen.rules or name in config.add)
        if config.extensions is not None:
            edits = tuple(dict.fromkeys((*edits, *config.extensions.edits)))
            rules = tuple(dict.fromkeys((*rules, *config.extensions.rules)))
        edits = tuple(name for name in edits if name not in without)
        return Chain(
            tuple(_edit(name, config.limits, resources) for name in edits if name != HTML_TO_TEXT),
            (
                *(_rule(name, config.limits, resources) for name in rules if name not in without),
                *(word_list_rule(words, resources.word_lists[words.name]) for words in config.word_lists),
                *(
                    _classifier_rule(chosen, resources.classifiers[chosen.name])
                    for chosen in config.classifiers
                    if chosen.name in resources.classifiers
                ),
            ),
            HTML_TO_TEXT in edits,
            frozenset(code for asked in config.languages for code in identified_as(asked)),
            Slots(),
            config.html_extractor,
        )

    def clean(self, text: str, context: DocumentContext) -> tuple[str, Verdicts]:
        """Return a text after all edits, and what these and the rules, up to the first that fails, decided about it."""
        texts, contexts, verdicts = Texts.of([text]), BatchContext.of(context, identify_unknown=True), Verdicts(1)
        self.clean_many(texts, contexts, np.zeros(1, np.int64), verdicts)
        return texts.text(0), verdicts

    def clean_many(
        self,
        texts: Texts,
        contexts: BatchContext,
        rows: np.ndarray,
        verdicts: Verdicts,
        structure: Structure | None = None,
    ) -> None:
        """Apply all edits to the documents of `rows`, then all rules until one fails.

        Changes `texts`, `contexts` and `verdicts` in place. `structure` spares counting texts that edits leave alone.
        """
        texts.wanted_features = ALL_FEATURES
        if self.reads_html:
            rows = self._extract_pages(texts, contexts, rows, verdicts)
        bounds_before_names = None
        for edit, later_features in zip(self.edits, self._later_features, strict=True):
            if edit.needs_language and bounds_before_names is None:
                bounds_before_names = texts.bounds
            is_chosen = texts.features[rows] & edit.trigger != 0
            chosen = rows[is_chosen | contexts.are_of(edit.format)[rows] if edit.format else is_chosen]
            texts.wanted_features = later_features
            if len(chosen):
                if edit.needs_language:
                    contexts.identify_unknown(texts, chosen, bounds_before_names)
                verdicts.edit(edit.apply_to_many(texts, contexts, chosen).tolist(), edit.name)
        is_blank = texts.features[rows] & BLANK_TEXT != 0
        if is_blank.any():
            verdicts.drop(rows[is_blank], EMPTY)
        rows = rows[~is_blank]
        if self.languages:
            rows = self._filter_languages(texts, contexts, rows, verdicts)
        wanted = np.zeros(len(texts), np.bool_)
        wanted[rows] = True
        measurements = Measurements(texts, contexts, wanted, self.slots, structure)
        for rule, limit in self.rules:
            failures = rule.failures(measurements, limit)
            if len(failures.rows):
                limits = np.where(np.isnan(failures.values), np.nan, limit)
                verdicts.drop(failures.rows, rule.name, failures.values, limits, evidence=failures.reasons)
                wanted[failures.rows] = False
            if not wanted.any():
                break
        contexts.identify_unknown(texts, np.flatnonzero(wanted))

    @functools.cached_property
    def _later_features(self) -> list[int]:
        """Return for each edit the feature flags that trigger the edits after it."""
        features = [0]
        for edit in self.edits[:0:-1]:
            features.append(features[-1] | edit.trigger)
        return features[: len(self.edits)][::-1]

    def _extract_pages(self, texts: Texts, contexts: BatchContext, rows: np.ndarray, verdicts: Verdicts) -> np.ndarray:
        """Extract the text of HTML pages, or drop them; returns the rows that are left."""
        pages = [row for row in rows.tolist() if contexts.formats[row] == "html"]
        if not pages:
            return rows
        alt_texts = next((edit for edit in self.edits if edit.name == "alt_texts"), None)
        extracted: dict[int, str] = {}
        for row in pages:
            page = texts.text(row)
            if alt_texts is not None:
                page = alt_texts.apply(page, contexts.at(row)) or page
            text, failure = html_to_text(page, self.html_extractor)
            if text is None:
                verdicts.drop(row, HTML_NO_TEXT, evidence={row: failure})
            else:
                extracted[row] = text
        verdicts.edit(extracted, HTML_TO_TEXT)
        texts.replace(extracted)
        return rows[verdicts.is_kept[rows]]

    def _filter_languages(
        self, texts: Texts, contexts: BatchContext, rows: np.ndarray, verdicts: Verdicts
    ) -> np.ndarray:
        """Drop documents in languages that the recipe does not list; returns the rows that are left."""
        found, confidences = contexts.identify(texts, rows)
        names = language_model().languages
        is_wanted = np.array([name in self.languages for name in names])[found[rows]]
        unwanted = rows[~is_wanted]
        evidence = {row: names[found[row]] for row in unwanted.tolist()}
        verdicts.drop(unwanted, LANGUAGE, confidences[unwanted], evidence=evidence)
        return rows[is_wanted]


def clean_batch(
    batch: DocumentBatch, rows: np.ndarray, config: CleanConfig, chains: Mapping[str, Chain], verdicts: Verdicts
) -> None:
    """Recognise the kinds of the documents of `rows`, and clean each by the chain of its preset."""
    structure = recognise_batch(batch, rows, config)
    rows_of_preset: dict[str, list[int]] = {}
    for row in rows.tolist():
        rows_of_preset.setdefault(preset_of(batch, row, config), []).append(row)
    for preset, chosen in rows_of_preset.items():
        chains[preset].clean_many(batch.texts, batch.contexts, np.array(chosen, np.int64), verdicts, structure)


def recognise_batch(batch: DocumentBatch, rows: np.ndarray, config: CleanConfig) -> Structure:
    """Fill in the kinds of the documents of `rows`, as their sources set them or as their structure shows."""
    kinds, sources, formats = batch.contexts.text_kinds, batch.contexts.sources, batch.contexts.formats
    given = {pair: config.kind_of(*pair) for pair in set(zip(sources, formats, strict=True))}
    if any(given.values()):
        for row in rows.tolist():
            kind = given[sources[row], formats[row]]
            kinds[row] = -1 if kind is None else KINDS.index(kind)
    wanted = np.zeros(len(batch), np.bool_)
    wanted[rows[kinds[rows] < 0]] = True
    structure = Structure(batch.texts).scan(wanted)
    if wanted.any():
        kinds[wanted] = recognise_kinds(structure, formats)[wanted]
    return structure


def preset_of(batch: DocumentBatch, row: int, config: CleanConfig) -> str:
    """Return the name of the preset of a document whose kind is known."""
    contexts = batch.contexts
    return config.preset_of(contexts.sources[row], contexts.formats[row], KINDS[contexts.text_kinds[row]])


def make_chains(config: CleanConfig, resources: UserResources) -> dict[str, Chain]:
    """Return the chain of each preset."""
    return {name: Chain.of(config, name, resources) for name in PRESETS}


def _edit(name: str, limits: Mapping[str, float], resources: UserResources) -> Edit:
    if name in resources.functions:
        return Edit(name, functools.partial(_edited, name, resources.functions[name].function))
    if name == SPELLING:
        return Edit(name, functools.partial(correct_spelling, resources.spellings))
    return replace(EDIT_REGISTRY[name], limit=limits.get(name, EDIT_LIMITS.get(name)))


def _rule(name: str, limits: Mapping[str, float], resources: UserResources) -> tuple[Rule | CountedRule, float]:
    if name not in resources.functions:
        return RULES[name], limits.get(name, RULES[name].limit)
    function = resources.functions[name].function
    if not isinstance(function, Rule | CountedRule):
        return Rule(name, lambda statistics, _limit: function(statistics.text, statistics.context) or None), 0.0
    if name not in limits:
        raise RecipeError(f'clean: the rule `{name}` has no limit; set [clean.limits] "{name}" = ...')
    return replace(function, name=name), limits[name]


def _classifier_rule(config: ClassifierConfig, scorer: Scorer) -> tuple[Rule, float]:
    def measure(statistics: TextStatistics, _limit: float) -> float | None:
        return scorer.score(statistics.raw)

    return Rule(f"classifier_{config.name}", measure, at_least=config.keep == "above"), config.limit


def _edited(name: str, function: Callable[..., Any], text: str, context: DocumentContext) -> str:
    after = function(text, context)
    if not isinstance(after, str):
        raise RecipeError(
            f"clean.extensions: `{name}` returned {type(after).__name__}, and an edit returns the text, changed or not"
        )
    return after
