"""Recall and precision of the search, measured in every run: items are injected into the run's own documents.

Documents without a leak are hosts. Texts of items are injected in six forms and searched for with the run's own
patterns and its own evidence of what is common; near misses of the same texts are searched too. A control is found when
its item is reported; a report is right when the injected text contains the item's own words, by plain Python. Controls
are made after the decisions of the run and never reach its output.

A near miss is an item with a word replaced before any run of it grows as long as an n-gram: same topic, same words, but
not a copy.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.common.numeric import seed64, wilson_interval
from tasks.common.text import is_unspaced
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.leaks import Evidence, find_leaks
from tasks.decontaminate.ngrams import I64, Patterns
from tasks.decontaminate.normalize import GOLDEN
from tasks.decontaminate.scan import Verifier, scan_texts, text_buffers

MIN_BYTES, MAX_BYTES = 400, 12_000

VERBATIM, PARAGRAPH, REWRAPPED, INLINE, VARIANT, SHORT = FORMS = (
    "verbatim",
    "own_paragraph",
    "rewrapped",
    "inline",
    "variant",
    "short",
)
"""At the head of a document, between its paragraphs, in lines of another width, within a sentence, with other letters;
`short` are texts of fewer words than an n-gram, placed in one of the first four ways."""

_UNSEGMENTED = "".join(chr(codepoint) for codepoint in range(0xE00, 0x10000) if is_unspaced(codepoint))
_WORD = re.compile(f"[{_UNSEGMENTED}]|[^\\W_{_UNSEGMENTED}]+")
_ATOM = re.compile(f"[{_UNSEGMENTED}]|[^\\s{_UNSEGMENTED}]+|\\s+")
_MARGINS = ("", "    ", "> ", "# ", "\t")
_LATIN, _CYRILLIC = "aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ"
_TWINS = dict(zip(_LATIN + _CYRILLIC, _CYRILLIC + _LATIN, strict=True))
_ZERO_WIDTH_SPACE = "\u200b"


@dataclass(frozen=True)
class Control:
    """A document with an item's text injected, or with a near miss of one (`form` None)."""

    text: str
    form: str | None
    passage: str
    """What was injected, before its letters and line breaks were changed."""
    item: int


def choose_hosts(
    doc_ids: npt.NDArray[np.uint8], sizes: I64, clean: npt.NDArray[np.bool_], count: int, seed: int
) -> I64:
    """Choose at most `count` documents of ordinary length without a leak (ascending), by their ids and the seed."""
    eligible = np.flatnonzero(clean & (sizes >= MIN_BYTES) & (sizes <= MAX_BYTES))
    halves = np.ascontiguousarray(doc_ids[eligible]).view(np.uint64).reshape(-1, 2)
    draw = (halves[:, 0] ^ np.uint64(seed64(seed, "decontaminate", "hosts"))) * GOLDEN
    return np.sort(eligible[np.lexsort((halves[:, 1], draw))[:count]])


def make_controls(
    patterns: Patterns, evidence: Evidence, hosts: Sequence[str], config: DecontaminateConfig
) -> list[Control]:
    """Make `planted_per_form` controls of each form, each with a near miss of its text in the same host.

    Texts are drawn from those that can be matched; of the forms only `short` uses texts below an n-gram.
    """
    template = np.zeros(len(patterns.texts), np.bool_)
    template[patterns.posting_text[np.repeat(evidence.template, np.diff(patterns.posting_start))]] = True
    matchable = (patterns.totals > 0) & ~(patterns.short & template)
    generator = np.random.Generator(np.random.PCG64(seed64(config.seed, "decontaminate", "planted")))
    controls: list[Control] = []
    for form in FORMS if hosts else ():
        texts = np.flatnonzero(matchable & (patterns.short == (form == SHORT)))
        for _ in range(config.planted_per_form if texts.size else 0):
            number = int(texts[int(generator.integers(texts.size))])
            text, item = patterns.texts[number], int(patterns.text_item[number])
            host = hosts[int(generator.integers(len(hosts)))]
            controls.append(Control(inject(text, host, form, generator), form, text, item))
            miss = near_miss(text, host, config.ngram, generator)
            if miss is not None:
                controls.append(Control(f"{host}\n{miss}\n", None, miss, item))
    return controls


def measure_search(
    controls: Sequence[Control], patterns: Patterns, evidence: Evidence, config: DecontaminateConfig
) -> dict[str, Any]:
    """Return facts of the run: recall by form and over all, and precision over all reports.

    Each has Wilson's 95% interval.
    """
    reported = _reported_items(controls, patterns, evidence, config)
    forms: dict[str, dict[str, Any]] = {}
    for form in FORMS:
        found = [one.item in items for one, items in zip(controls, reported, strict=True) if one.form == form]
        forms[form] = {"planted": len(found), **_share_with_interval(sum(found), len(found), "found", "recall")}
    plain_search = _PlainSearch(patterns, config.ngram)
    right = [
        plain_search.holds(control.passage, item)
        for control, items in zip(controls, reported, strict=True)
        for item in sorted(items)
    ]
    total = sum(line["planted"] for line in forms.values())
    return {
        "planted": total,
        **_share_with_interval(sum(line["found"] for line in forms.values()), total, "found", "recall"),
        "forms": forms,
        "near_misses": sum(one.form is None for one in controls),
        "precision": {"reported": len(right), **_share_with_interval(sum(right), len(right), "right", "precision")},
    }


def _share_with_interval(successes: int, trials: int, count: str, share: str) -> dict[str, Any]:
    low, high = wilson_interval(successes, trials)
    return {count: successes, share: successes / trials if trials else None, "low": low, "high": high}


def _reported_items(
    controls: Sequence[Control], patterns: Patterns, evidence: Evidence, config: DecontaminateConfig
) -> list[set[int]]:
    """Return the items reported for each control."""
    data, offsets = text_buffers(pa.array([one.text for one in controls], pa.large_string()))
    hits = Verifier(patterns).verified(data, offsets, scan_texts(data, offsets, patterns))
    leaks = find_leaks(patterns, hits, evidence, config)
    return [{region.item for region in leaks.get(row, ())} for row in range(len(controls))]


class _PlainSearch:
    """Searches a passage for an item's words: one run of `ngram` words, or all of a shorter text."""

    def __init__(self, patterns: Patterns, ngram: int) -> None:
        self._ngram = ngram
        self._texts: dict[int, list[str]] = {}
        for text, item in zip(patterns.texts, patterns.text_item.tolist(), strict=True):
            self._texts.setdefault(item, []).append(text)

    def holds(self, passage: str, item: int) -> bool:
        """Return whether one of the item's texts shares such a run with `passage`."""
        words = plain_words(_compose(passage))
        for text in self._texts[item]:
            sought = plain_words(_compose(text))
            width = min(self._ngram, len(sought))
            if width and not _runs(words, width).isdisjoint(_runs(sought, width)):
                return True
        return False


def _runs(words: list[str], width: int) -> set[tuple[str, ...]]:
    return {tuple(words[begin : begin + width]) for begin in range(len(words) - width + 1)}


def _compose(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def plain_words(text: str) -> list[str]:
    """Return the words of `text` by independent rules, to check what the kernel found by other means."""
    return [word.casefold() for word in _WORD.findall(text)]


def inject(text: str, host: str, form: str, generator: np.random.Generator) -> str:
    """Return `host` with `text` in it in the given form."""
    if form == SHORT:
        form = (VERBATIM, PARAGRAPH, REWRAPPED, INLINE)[int(generator.integers(4))]
    if form == VERBATIM:
        return f"{text}\n{host}"
    if form == PARAGRAPH:
        return _replace_border(host, "\n", f"\n\n{text}\n\n", generator)
    if form == REWRAPPED:
        return _replace_border(host, "\n", f"\n{rewrapped(text, generator)}\n", generator)
    if form == INLINE:
        return _replace_border(host, " ", f" {' '.join(text.split())} ", generator)
    return _replace_border(host, "\n", f"\n{varied(text, generator)}\n", generator)


def _replace_border(host: str, border: str, inset: str, generator: np.random.Generator) -> str:
    """Return `host` with `inset` in place of one of its borders, or at its end where it has none."""
    borders = [place for place, character in enumerate(host) if character == border]
    if not borders:
        return host + inset
    place = borders[int(generator.integers(len(borders)))]
    return host[:place] + inset + host[place + 1 :]


def rewrapped(text: str, generator: np.random.Generator) -> str:
    """Wrap `text` into lines of at most 24 to 79 characters, unless a word is longer, each after the same margin."""
    width, margin = int(generator.integers(24, 80)), _MARGINS[int(generator.integers(len(_MARGINS)))]
    lines = [margin]
    for atom in _ATOM.findall(text):
        if lines[-1] != margin and len(lines[-1]) + len(atom) > width:
            lines.append(margin)
        if not atom.isspace():
            lines[-1] += atom
        elif lines[-1] != margin:
            lines[-1] += " "
    return "\n".join(lines)


def varied(text: str, generator: np.random.Generator) -> str:
    """Vary `text` in one way.

    The ways: other capitals, look-alike letters of another script, full-width forms, zero-width spaces within words, or
    other punctuation.
    """
    changed = _VARIATIONS[int(generator.integers(len(_VARIATIONS)))](text)
    # Chinese has neither capitals nor Latin twins: only a change of punctuation remains.
    return changed if changed != text else _without_punctuation(text)


def _with_twins(text: str) -> str:
    return "".join(_TWINS.get(character, character) for character in text)


def _full_width(text: str) -> str:
    return "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text)


def _with_zero_width_spaces(text: str) -> str:
    return re.sub(r"(\w)(?=\w)", rf"\1{_ZERO_WIDTH_SPACE}", text)


def _without_punctuation(text: str) -> str:
    return "".join(" " if unicodedata.category(character)[0] in "PS" else character for character in text)


_VARIATIONS: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.swapcase,
    _with_twins,
    _full_width,
    _with_zero_width_spaces,
    _without_punctuation,
)


def near_miss(text: str, host: str, ngram: int, generator: np.random.Generator) -> str | None:
    """Replace every word that would complete a run of `ngram` words by one word of `host`.

    In texts with fewer words the middle one is replaced. Returns None where the text has no word or the host no other.
    """
    words = list(_WORD.finditer(text))
    others = sorted({word.casefold() for word in _WORD.findall(host)} - {word[0].casefold() for word in words})
    if not words or not others:
        return None
    places = range(ngram - 1, len(words), ngram) if len(words) >= ngram else (len(words) // 2,)
    position, pieces = 0, []
    for place in places:
        pieces += [text[position : words[place].start()], others[int(generator.integers(len(others)))]]
        position = words[place].end()
    return "".join([*pieces, text[position:]])
