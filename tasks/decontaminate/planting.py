"""How a benchmark item comes to stand in a document: six forms of a leak, and near misses that are none.

A near miss is an item with a word replaced before any run of it grows as long as an n-gram: same topic, same words,
and no copy.
"""

import re
import unicodedata
from collections.abc import Callable

import numpy as np

from tasks.scripts import is_unspaced

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

_UNSPACED = "".join(chr(codepoint) for codepoint in range(0xE00, 0x10000) if is_unspaced(codepoint))
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_ATOM = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+|\\s+")
_MARGINS = ("", "    ", "> ", "# ", "\t")
_LATIN, _CYRILLIC = "aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ"
_TWINS = dict(zip(_LATIN + _CYRILLIC, _CYRILLIC + _LATIN, strict=True))
_HIDDEN = "\u200b"


def plant(text: str, host: str, form: str, generator: np.random.Generator) -> str:
    """`host` with `text` in it in the given form."""
    if form == SHORT:
        form = (VERBATIM, PARAGRAPH, REWRAPPED, INLINE)[int(generator.integers(4))]
    if form == VERBATIM:
        return f"{text}\n{host}"
    if form == PARAGRAPH:
        return _between(host, "\n", f"\n\n{text}\n\n", generator)
    if form == REWRAPPED:
        return _between(host, "\n", f"\n{rewrapped(text, generator)}\n", generator)
    if form == INLINE:
        return _between(host, " ", f" {' '.join(text.split())} ", generator)
    return _between(host, "\n", f"\n{varied(text, generator)}\n", generator)


def _between(host: str, border: str, inset: str, generator: np.random.Generator) -> str:
    """`host` with `inset` in the place of one of its borders, or at its end where it has none."""
    borders = [place for place, character in enumerate(host) if character == border]
    if not borders:
        return host + inset
    place = borders[int(generator.integers(len(borders)))]
    return host[:place] + inset + host[place + 1 :]


def rewrapped(text: str, generator: np.random.Generator) -> str:
    """`text` in lines of at most 24 to 79 characters (longer words stand alone), each after the same margin."""
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
    """`text` with other capitals, letters of another script that look alike, full-width forms, hidden characters
    within words, or other punctuation: one of these."""
    ways: tuple[Callable[[str], str], ...] = (
        str.upper,
        str.swapcase,
        _with_twins,
        _full_width,
        _with_hidden,
        _without_punctuation,
    )
    changed = ways[int(generator.integers(len(ways)))](text)
    # Chinese has no capitals and no Latin twins: a change of punctuation is left.
    return changed if changed != text else _without_punctuation(text)


def _with_twins(text: str) -> str:
    return "".join(_TWINS.get(character, character) for character in text)


def _full_width(text: str) -> str:
    return "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text)


def _with_hidden(text: str) -> str:
    return re.sub(r"(\w)(?=\w)", rf"\1{_HIDDEN}", text)


def _without_punctuation(text: str) -> str:
    return "".join(" " if unicodedata.category(character)[0] in "PS" else character for character in text)


_WAYS: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.swapcase,
    _with_twins,
    _full_width,
    _with_hidden,
    _without_punctuation,
)


def near_miss(text: str, host: str, ngram: int, generator: np.random.Generator) -> str | None:
    """`text` with one word of `host` in the place of every word that would complete a run of `ngram` words; in texts
    with fewer words the middle one. None where the text has no word or the host no
    other."""
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


def plain_words(text: str) -> list[str]:
    """The words of `text` by rules of their own, so that what the kernel found can be checked by other means."""
    return [word.casefold() for word in _WORD.findall(text)]
