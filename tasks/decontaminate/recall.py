"""Recall and precision of the search, measured in every run: items are injected into the run's own documents.

Documents without a leak are hosts. Texts of items are injected in the forms of `FORMS` and searched for with the run's
own index and its own table of what is rare; near misses of the same texts are searched too. A control is found when its
item is reported; a report is right when the injected text contains the item's own words in order, by plain Python.
Controls are made after the decisions of the run and never reach its output.

A near miss is a text with every second word replaced: same topic, half of the words, but not a copy.
"""

import functools
import html
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.artifacts.results import InjectedLeaks
from tasks.artifacts.tables.columns import text_buffers
from tasks.common.numeric import seed64, wilson_interval
from tasks.common.text import is_unspaced, replace_places
from tasks.common.utf8 import GOLDEN
from tasks.decontaminate.align import HALF_WORDS
from tasks.decontaminate.benchmarks import CONTEXT, Item
from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.forms import UNSPACED_HALF_CHARS
from tasks.decontaminate.leaks import Rarity, find_leaks, is_stem
from tasks.decontaminate.ngrams import ItemIndex
from tasks.decontaminate.scan import scan_texts
from tasks.decontaminate.seeds import CHARACTER_UNITS, I64, WORD_UNITS

MIN_BYTES, MAX_BYTES = 400, 12_000

VERBATIM, PARAGRAPH, REWRAPPED, INLINE, VARIANT, FULL_WIDTH, ESCAPED, CHOICES, SHORT, TYPOS, NUMBERS, HALF = FORMS = (
    "verbatim",
    "own_paragraph",
    "rewrapped",
    "inline",
    "variant",
    "full_width",
    "escaped",
    "choices",
    "short",
    "typos",
    "numbers",
    "half",
)
"""At the head of a document, between its paragraphs, in lines of another width, within a sentence, with other letters,
in full-width forms, as JSON, HTML or LaTeX write it, with its choices in any order, an item of parts of few words as a
whole, a letter wrong in every tenth word, with other numbers, and half of a text of twice the words that half needs."""

MIN_TYPO_WORDS, TYPO_EVERY = 7, 10
_TRIES = 60
"""Draws of an item for each control; rare forms, such as numbers, get fewer controls where few items have them."""

_UNSEGMENTED = "".join(chr(codepoint) for codepoint in range(0xE00, 0x10000) if is_unspaced(codepoint))
_WORD = re.compile(f"[{_UNSEGMENTED}]|[^\\W_{_UNSEGMENTED}]+")
_ATOM = re.compile(f"[{_UNSEGMENTED}]|[^\\s{_UNSEGMENTED}]+|\\s+")
_MARGINS = ("", "    ", "> ", "# ", "\t")
_LATIN, _CYRILLIC = "aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ"
_TWINS = str.maketrans(_LATIN + _CYRILLIC, _CYRILLIC + _LATIN)
_FULL_WIDTH = {codepoint: codepoint + 0xFEE0 for codepoint in range(ord("!"), ord("~") + 1)}
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
    items: Sequence[Item],
    index: ItemIndex,
    matchable: npt.NDArray[np.bool_],
    hosts: Sequence[str],
    config: DecontaminateConfig,
) -> list[Control]:
    """Make at most `planted_per_form` controls of each form, each with a near miss of its text in the same host."""
    generator = np.random.Generator(np.random.PCG64(seed64(config.seed, "decontaminate", "planted")))
    numbers = np.flatnonzero(matchable)
    controls: list[Control] = []
    # A form that few items have draws the same items again and again.
    passages: dict[int, list[str]] = {}
    for form in FORMS if hosts and numbers.size else ():
        wanted = config.planted_per_form
        for _ in range(_TRIES * wanted):
            if not wanted:
                break
            item = int(numbers[int(generator.integers(numbers.size))])
            if item not in passages:
                passages[item] = _passages(items[item], index, item, config)
            text = passage_of(form, passages[item], items[item], config, generator)
            if text is None:
                continue
            wanted -= 1
            host = hosts[int(generator.integers(len(hosts)))]
            controls.append(Control(inject(text, host, form, generator), form, text, item))
            miss = near_miss(text, host, generator)
            if miss is not None:
                controls.append(Control(f"{host}\n{miss}\n", None, miss, item))
    return controls


def _passages(item: Item, index: ItemIndex, number: int, config: DecontaminateConfig) -> list[str]:
    """Return the texts of an item's context that are long enough by themselves, without templates."""
    firsts, lasts = index.words_of(number)
    return [
        part.text
        for part, first, last in zip(item.searched, firsts.tolist(), lasts.tolist(), strict=True)
        if part.role == CONTEXT
        and _units(part.text) >= config.short_words * WORD_UNITS
        and (seeds := index.seed_places(first, last)).size
        and not is_stem(index, seeds)
    ]


@functools.lru_cache(maxsize=1 << 14)
def _units(text: str) -> int:
    words = plain_words(text)
    return sum(CHARACTER_UNITS if is_unspaced(ord(word[0])) else 0 if word.isdigit() else WORD_UNITS for word in words)


def passage_of(
    form: str, passages: Sequence[str], item: Item, config: DecontaminateConfig, generator: np.random.Generator
) -> str | None:
    """Return what of an item is planted in a form, before it is written in its way; None where it has no such text.

    `passages` are the item's texts that are long enough by themselves.
    """
    if form in (CHOICES, SHORT):
        others = [*item.choices] or [*item.answers]
        longest = max((_units(part.text) for part in item.searched), default=0)
        if not others or (form == SHORT) != (longest < config.short_words * WORD_UNITS):
            return None
        order = generator.permutation(len(others)).tolist()
        marks = (("", "", "", ""), ("A. ", "B. ", "C. ", "D. "), ("(1) ", "(2) ", "(3) ", "(4) "))
        mark = marks[int(generator.integers(len(marks)))]
        lines = [f"{mark[place % 4]}{others[number]}" for place, number in enumerate(order)]
        question = "\n".join(item.parts)
        return "\n".join([question, *lines] if generator.integers(2) else [*lines, question])
    if not passages:
        return None
    text = passages[int(generator.integers(len(passages)))]
    if form == TYPOS:
        return misspelt(text, generator) if _units(text) >= MIN_TYPO_WORDS * WORD_UNITS else None
    if form == NUMBERS:
        changed = renumbered(text, generator)
        return changed if changed != text and _units(text) >= 2 * config.short_words * WORD_UNITS else None
    if form == HALF:
        words = list(_WORD.finditer(text))
        unspaced = sum(is_unspaced(ord(word[0][0])) for word in words) * 2 > len(words)
        least = UNSPACED_HALF_CHARS * CHARACTER_UNITS if unspaced else HALF_WORDS * WORD_UNITS
        if _units(text) < 2 * least + WORD_UNITS or (unspaced and len(item.parts) > 1):
            return None
        middle = (len(words) + 1) // 2
        return text[: words[middle].start()] if generator.integers(2) else text[words[len(words) - middle].start() :]
    return text


def measure_search(
    controls: Sequence[Control],
    items: Sequence[Item],
    index: ItemIndex,
    rarity: Rarity,
    config: DecontaminateConfig,
) -> InjectedLeaks:
    """Return recall by form and over all, and precision over all reports.

    Each has Wilson's 95% interval.
    """
    reported = _reported_items(controls, index, rarity, config)
    forms: dict[str, dict[str, Any]] = {}
    for form in FORMS:
        found = [one.item in at for one, at in zip(controls, reported, strict=True) if one.form == form]
        forms[form] = {"planted": len(found), **_share_with_interval(sum(found), len(found), "found", "recall")}
    right = [
        holds(control.passage, items[item])
        for control, at in zip(controls, reported, strict=True)
        for item in sorted(at)
    ]
    total = sum(line["planted"] for line in forms.values())
    return InjectedLeaks(
        planted=total,
        **_share_with_interval(sum(line["found"] for line in forms.values()), total, "found", "recall"),
        forms=forms,
        near_misses=sum(one.form is None for one in controls),
        precision={"reported": len(right), **_share_with_interval(sum(right), len(right), "right", "precision")},
    )


def _share_with_interval(successes: int, trials: int, count: str, share: str) -> dict[str, Any]:
    low, high = wilson_interval(successes, trials)
    return {count: successes, share: successes / trials if trials else None, "low": low, "high": high}


def _reported_items(
    controls: Sequence[Control], index: ItemIndex, rarity: Rarity, config: DecontaminateConfig
) -> list[set[int]]:
    """Return the items reported for each control."""
    data, offsets = text_buffers(pa.array([one.text for one in controls], pa.large_string()))
    found = scan_texts(data, offsets, index, config)
    leaks = find_leaks(index, found.stretches, rarity.with_seen(found.seeds))
    return [{region.item for region in leaks.get(row, ())} for row in range(len(controls))]


def holds(passage: str, item: Item) -> bool:
    """Return whether a passage has, in order, two fifths of a text of the item and five words or ten characters in all.

    Only runs of two words count, numbers are equal.
    """
    words = _numberless(passage)
    total = 0
    for part in item.searched:
        sought = _numberless(part.text)
        blocks = SequenceMatcher(None, words, sought, autojunk=False).get_matching_blocks()
        runs = [block.size for block in blocks if block.size >= min(2, len(sought))]
        if max(runs, default=0) >= 13:
            return True
        if sum(runs) >= 0.4 * len(sought):
            total += sum(runs)
    return total >= 5


def _numberless(text: str) -> list[str]:
    return ["0" if word.isdigit() else word for word in plain_words(unicodedata.normalize("NFKC", text))]


def plain_words(text: str) -> list[str]:
    """Return the words of `text` by independent rules, to check what the kernel found by other means."""
    return [word.casefold() for word in _WORD.findall(text)]


def inject(text: str, host: str, form: str, generator: np.random.Generator) -> str:
    """Return `host` with `text` in it in the given form."""
    if form in (SHORT, CHOICES, TYPOS, NUMBERS, HALF):
        form = (VERBATIM, PARAGRAPH, REWRAPPED, INLINE)[int(generator.integers(4))]
    if form == VERBATIM:
        return f"{text}\n{host}"
    if form == PARAGRAPH:
        return _replace_border(host, "\n", f"\n\n{text}\n\n", generator)
    if form == REWRAPPED:
        return _replace_border(host, "\n", f"\n{rewrapped(text, generator)}\n", generator)
    if form == INLINE:
        return _replace_border(host, " ", f" {' '.join(text.split())} ", generator)
    if form == FULL_WIDTH:
        written = _full_width(text)
    else:
        written = escaped(text, generator) if form == ESCAPED else varied(text, generator)
    return _replace_border(host, "\n", f"\n{written}\n", generator)


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
    return text.translate(_TWINS)


def _full_width(text: str) -> str:
    return text.translate(_FULL_WIDTH)


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


def escaped(text: str, generator: np.random.Generator) -> str:
    """Write `text` as JSON, HTML or LaTeX do."""
    form = int(generator.integers(3))
    if form == 0:
        return json.dumps(text)
    if form == 1:
        return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()
    words = list(_WORD.finditer(text))
    bold = words[int(generator.integers(len(words)))]
    pieces = (text[: bold.start()], text[bold.start() : bold.end()], text[bold.end() :])
    before, inside, after = (re.sub(r"([%&$#_{}])", r"\\\1", piece) for piece in pieces)
    return f"{before}\\textbf{{{inside}}}{after}"


def misspelt(text: str, generator: np.random.Generator) -> str | None:
    """Swap two letters within one of every ten words; None where there is no such word.

    In scripts without spaces one of every twenty characters is left out, of texts of at least so many.
    """
    words = [word for word in _WORD.finditer(text) if len(word[0]) > 3 and not word[0].isdigit()]
    swapped = [word for word in words if word[0][1] != word[0][2]]
    characters = [word for word in _WORD.finditer(text) if is_unspaced(ord(word[0][0]))]
    total = len(_WORD.findall(text))
    pool, every = (characters, 2 * TYPO_EVERY) if 2 * len(characters) > total else (swapped, TYPO_EVERY)
    if not pool or (pool is characters and total < every):
        return None
    chosen = generator.choice(len(pool), max(1, min(len(pool), total // every)), replace=False)
    for number in sorted(chosen.tolist(), reverse=True):
        word = pool[number]
        changed = "" if pool is characters else f"{word[0][0]}{word[0][2]}{word[0][1]}{word[0][3:]}"
        text = text[: word.start()] + changed + text[word.end() :]
    return text


def renumbered(text: str, generator: np.random.Generator) -> str:
    """Replace each number by another of as many digits."""

    def other(match: re.Match[str]) -> str:
        return str(int(match[0]) + int(generator.integers(1, 9 * 10 ** (len(match[0]) - 1) + 1)))[-len(match[0]) :]

    return re.sub(r"(?<!\w)[0-9]{1,9}(?!\w)", other, text)


def near_miss(text: str, host: str, generator: np.random.Generator) -> str | None:
    """Replace every second word by one of `host`; None where the text has no second word or the host no other."""
    words = list(_WORD.finditer(text))
    others = sorted({word.casefold() for word in _WORD.findall(host)} - {word[0].casefold() for word in words})
    if len(words) < 2 or not others:
        return None
    drawn = (f" {others[int(generator.integers(len(others)))]} " for _ in words[1::2])
    return replace_places(text, ((*word.span(), other) for word, other in zip(words[1::2], drawn, strict=True)))
