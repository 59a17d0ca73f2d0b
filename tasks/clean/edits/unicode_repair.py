"""Text that was damaged on its way: mojibake, entities, composed forms, characters that nobody can see.

Mojibake is found and undone by ftfy (Speer 2019). Of ftfy only the decoding and the entities are used: straightening
quotes, folding wide characters or splitting ligatures would change text that is not broken. ftfy is slow, so a line
goes there only when a compiled search finds what ftfy's own test for badness asks for: two neighbouring characters
outside ASCII of which one is more unusual than the plain letters and punctuation of Cyrillic, Chinese, Japanese and
Korean text, or one of the few letters whose partner may have become a blank.

The kernel behind the edit that removes characters which nobody can see.

Look-alike letters of another script inside a word: `pаypаl` with Cyrillic `а` becomes `paypal` again.

An option, in no preset: only a word that mixes Latin with Cyrillic or Greek is touched, and only where every letter of
the script that has fewer letters there has a twin in the other. A word wholly in one script is never changed.
"""

import re
import unicodedata

import ftfy
import ftfy.fixes
import numpy as np
import regex
from ftfy.badness import is_bad

from tasks.clean.batch import REWRITTEN, SAME, TOO_HARD, Texts
from tasks.clean.document import About
from tasks.clean.kernels.characters import UNSEEN, character_flags, decode, flags_of, mojibake_in_lines
from tasks.common.kernels import kernel

_NEAR = 32
"""Bytes around the signs of a line that ftfy's test for badness, of six characters at most, may look at."""

_LINE_BREAKS = re.compile("[\r\x0b\x0c\x85\u2028\u2029]\n?")

_TERMINAL_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\ufdd0-\ufdef\U0001d173-\U0001d17a]"
)

_REPAIR_JOINERS = re.compile("[\u200c\u200d]")

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

_REPAIR_TAGS = regex.compile("(?<!\U0001f3f4[\U000e0020-\U000e007f]*)[\U000e0000-\U000e007f]+")


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
    if _REPAIR_JOINERS.search(text):
        needed = {match.start() for match in _NEEDED_JOINER.finditer(text)}
        text = _REPAIR_JOINERS.sub(lambda match: match[0] if match.start() in needed else "", text)
    return _REPAIR_TAGS.sub("", text) if _TAG.search(text) else text


def rewrite_invisible(texts: Texts, rows: np.ndarray, limit: float | None) -> tuple[np.ndarray, np.ndarray]:
    """`remove_invisible` of many texts, as `Texts.rewrite` gives it."""
    del limit
    return texts.rewrite(rows, write_seen, character_flags())


_ESCAPE = 0x1B

_UNSEEN_JOINERS = (0x200C, 0x200D)

_UNSEEN_TAGS = 0xE0000

_UNASSIGNED = 0x2065
"""Among the invisible ones, and no character: it stays."""

_KEPT, _REMOVED, _LINE_BREAK, _HARD = range(4)


@kernel
def _fate(codepoint, flags):
    if flags & UNSEEN == 0 or codepoint == _UNASSIGNED:
        return _KEPT
    if 0x0B <= codepoint <= 0x0D or codepoint == 0x85 or codepoint == 0x2028 or codepoint == 0x2029:
        return _LINE_BREAK
    if (
        codepoint == _ESCAPE
        or codepoint == _UNSEEN_JOINERS[0]
        or codepoint == _UNSEEN_JOINERS[1]
        or codepoint >= _UNSEEN_TAGS
    ):
        return _HARD
    return _REMOVED


@kernel
def write_seen(data, begins, ends, outcomes, place, table):
    """Leave out characters that nobody can see, and make line breaks line feeds; as `Texts.rewrite` wants it.

    Too hard are terminal escapes, joiners and tags, which need a look at their neighbours.
    """
    for text in range(len(begins)):
        first = place
        position = begins[text]
        outcome = SAME
        while position < ends[text]:
            while position < ends[text] and 0x20 <= data[position] < 0x7F:
                data[place] = data[position]
                place += 1
                position += 1
            if position == ends[text]:
                break
            codepoint, following = decode(data, position)
            fate = _fate(codepoint, flags_of(codepoint, table))
            if fate == _KEPT:
                for byte in range(position, following):
                    data[place + byte - position] = data[byte]
                place += following - position
            elif fate == _LINE_BREAK:
                data[place] = 10
                place += 1
                if following < ends[text] and data[following] == 10:
                    following += 1
                outcome = REWRITTEN
            elif fate == _HARD:
                outcome = TOO_HARD
                break
            else:
                outcome = REWRITTEN
            position = following
        outcomes[text] = outcome
        if outcome == REWRITTEN:
            begins[text], ends[text] = first, place
        else:
            place = first


_CYRILLIC_TO_LATIN = dict(zip("АВЕЅІЈКМНОРСТХУԚԜаеѕіјкорсухԁһԛԝӏ", "ABESIJKMHOPCTXYQWaesijkopcyxdhqwl", strict=True))

_GREEK_TO_LATIN = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧανορυχ", "ABEZHIKMNOPTYXavopux", strict=True))

_TO_LATIN = {**_CYRILLIC_TO_LATIN, **_GREEK_TO_LATIN}

_FROM_LATIN = {
    "CYRILLIC": {latin: letter for letter, latin in _CYRILLIC_TO_LATIN.items() if letter not in "ԚԜԁԛԝһӏ"},
    "GREEK": {latin: letter for letter, latin in _GREEK_TO_LATIN.items()},
}

_WORD = re.compile(r"[^\W\d_]+")

_MIXED = re.compile(r"[A-Za-z][^\W\d_]*[\u0370-\u052f]|[\u0370-\u052f][^\W\d_]*[A-Za-z]")


def fold_homoglyphs(text: str, about: About) -> str:
    """Words that mix Latin with Cyrillic or Greek look-alikes, written in the script that most letters belong to."""
    del about
    if text.isascii() or not _MIXED.search(text):
        return text
    return _WORD.sub(lambda match: _folded(match[0]), text)


def _folded(word: str) -> str:
    if word.isascii():
        return word
    scripts = [_script(letter) for letter in word]
    others = {script for script in scripts if script != "LATIN"}
    if len(others) != 1 or "LATIN" not in scripts:
        return word
    other = others.pop()
    if other not in _FROM_LATIN:
        return word
    to_latin = {letter: _TO_LATIN.get(letter) for letter, script in zip(word, scripts, strict=True) if script == other}
    from_latin = {
        letter: _FROM_LATIN[other].get(letter)
        for letter, script in zip(word, scripts, strict=True)
        if script == "LATIN"
    }
    # A letter without a twin shows the script that was meant; where there is none, the majority does.
    tables = [table for table in (to_latin, from_latin) if None not in table.values()]
    if not tables:
        return word
    if len(tables) == 2:
        tables = [to_latin] if scripts.count("LATIN") * 2 >= len(word) else [from_latin]
    return "".join(tables[0].get(letter) or letter for letter in word)


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
