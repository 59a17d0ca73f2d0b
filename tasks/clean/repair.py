"""Text that was damaged on its way: mojibake, entities, composed forms, characters that nobody can see.

Mojibake is found and undone by ftfy (Speer 2019). Of ftfy only the decoding and the entities are used: straightening
quotes, folding wide characters or splitting ligatures would change text that is not broken. ftfy is slow, so a line
goes there only when a compiled search finds what ftfy's own test for badness asks for: two neighbouring characters
outside ASCII of which one is more unusual than the plain letters and punctuation of Cyrillic, Chinese, Japanese and
Korean text, or one of the few letters whose partner may have become a blank.
"""

import re
import unicodedata

import ftfy
import ftfy.fixes
import numpy as np
import regex
from ftfy.badness import is_bad

from tasks.clean.about import About
from tasks.clean.characters import character_flags
from tasks.clean.mojibake_lines import mojibake_in_lines
from tasks.clean.texts import Texts
from tasks.clean.unseen import write_seen

_NEAR = 32
"""Bytes around the signs of a line that ftfy's test for badness, of six characters at most, may look at."""
_LINE_BREAKS = re.compile("[\r\x0b\x0c\x85\u2028\u2029]\n?")
_TERMINAL_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\ufdd0-\ufdef\U0001d173-\U0001d17a]"
)
_JOINERS = re.compile("[\u200c\u200d]")
# Joiners carry meaning inside words of Arabic, Syriac, Mongolian and the scripts of India and South-East Asia, and
# the zero-width joiner between the parts of an emoji.
_JOINING = (
    r"\p{Arabic}\p{Syriac}\p{Mongolian}\p{NKo}\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}"
    r"\p{Telugu}\p{Kannada}\p{Malayalam}\p{Sinhala}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
_NEEDED_JOINER = regex.compile(
    rf"(?<=[{_JOINING}])[\u200c\u200d](?=[{_JOINING}])"
    r"|(?<=[\p{Extended_Pictographic}\p{EMod}\ufe0f])\u200d(?=\p{Extended_Pictographic})"
)
_TAG = re.compile("[\U000e0000-\U000e007f]")
_TAGS = regex.compile("(?<!\U0001f3f4[\U000e0020-\U000e007f]*)[\U000e0000-\U000e007f]+")


def undo_mojibake(text: str, about: About) -> str:
    """Lines decoded with the wrong encoding are decoded with the right one, where ftfy is sure of it."""
    del about
    if text.isascii():
        return text
    broken = _broken_lines(np.frombuffer(bytearray(text.encode()), np.uint8))
    if not broken:
        return text
    lines = text.split("\n")
    for line in broken:
        lines[line] = ftfy.fix_encoding(lines[line])
    return "\n".join(lines)


def _broken_lines(raw: np.ndarray) -> list[int]:
    """Numbers of the lines that ftfy's test for badness names; it is asked about the surroundings of signs only."""
    return [
        line
        for line, begin, end, first, last in mojibake_in_lines(raw).tolist()
        if is_bad(raw[max(begin, first - _NEAR) : min(end, last + _NEAR)].tobytes().decode(errors="ignore"))
    ]


def pass_sound_texts(texts: Texts, rows: np.ndarray, limit: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Of many texts those that `undo_mojibake` must look at, which are few; none is rewritten (`Texts.rewrite`)."""
    del limit
    is_broken = [bool(_broken_lines(texts.raw(row))) for row in rows.tolist()]
    return rows[:0], rows[np.array(is_broken, np.bool_)]


def undo_entities(text: str, about: About) -> str:
    """`caf&eacute;` becomes `café` in plain text that shows no sign of being markup (no `<`)."""
    if "&" not in text or "<" in text or about.kind == "markdown":
        return text
    return ftfy.fixes.unescape_html(text)


def compose(text: str, about: About) -> str:
    """Unicode normal form C (UAX #15): one code point per character where there is one."""
    del about
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def remove_invisible(text: str, about: About) -> str:
    """Line breaks become line feeds; control, zero-width and direction characters and terminal escapes go.

    Kept are tab and line feed, and joiners where a script or an emoji needs them.
    """
    del about
    if "\x1b" in text:
        text = _TERMINAL_ESCAPES.sub("", text)
    if _LINE_BREAKS.search(text):
        text = _LINE_BREAKS.sub("\n", text)
    if _INVISIBLE.search(text):
        text = _INVISIBLE.sub("", text)
    if text.isascii():
        return text
    if _JOINERS.search(text):
        needed = {match.start() for match in _NEEDED_JOINER.finditer(text)}
        text = _JOINERS.sub(lambda match: match[0] if match.start() in needed else "", text)
    return _TAGS.sub("", text) if _TAG.search(text) else text


def rewrite_invisible(texts: Texts, rows: np.ndarray, limit: float | None) -> tuple[np.ndarray, np.ndarray]:
    """`remove_invisible` of many texts, as `Texts.rewrite` gives it."""
    del limit
    return texts.rewrite(rows, write_seen, character_flags())
