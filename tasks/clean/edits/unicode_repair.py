"""Repair of damaged text: mojibake, entities, composed forms, invisible characters, look-alike letters.

Mojibake of UTF-8 is found and undone by ftfy (Speer 2019), that of legacy encodings by `wrong_encoding`. Of ftfy only
the decoding and the entities are used: straightening quotes, folding wide characters or splitting ligatures would
change text that is not broken. ftfy is slow, so it gets a line only when a compiled search finds what ftfy's test for
badness needs: two neighbouring characters outside ASCII of which one is more unusual than the plain letters and
punctuation of Cyrillic, Chinese, Japanese and Korean text, or one of the few letters whose partner may have become a
space.

Invisible characters are removed by a kernel, except where a decision needs their neighbours.

Look-alike letters of another script inside a word are folded as an option, in no preset: `pаypаl` with Cyrillic `а`
becomes `paypal`. Only a word that mixes Latin with Cyrillic or Greek is touched, and only where every letter of the
script with fewer letters has a twin in the other. A word wholly in one script is never changed.
"""

import re
import unicodedata

import ftfy
import ftfy.fixes
import numpy as np
import regex
from ftfy.badness import is_bad

from model.kernels import kernel
from tasks.clean.batch import NEEDS_PYTHON, REWRITTEN, UNCHANGED, Texts
from tasks.clean.document import DocumentContext
from tasks.clean.edits.wrong_encoding import suspect, undo_wrong_encoding
from tasks.clean.kernels.characters import FIRST_TAG, INVISIBLE, character_flags, flags_of, mojibake_in_lines
from tasks.common.utf8 import decode

_NEIGHBOUR_BYTES = 32
"""Bytes around the signs of a line that ftfy's test for badness, of six characters at most, may look at."""

_LINE_BREAKS = re.compile("[\r\x0b\x0c\x85\u2028\u2029]\n?")
_TERMINAL_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_MACINTOSH_U_GRAVE = re.compile(r"(?<=[a-z])√π\b")

# A title in capital letters whose only strange letter is Â before a no-break space is a name as likely.
_NAME_IN_CAPITALS = re.compile("[ -`{-~]*[A-Z]Â\u00a0[A-Z][ -`{-~]*")

# `hĂ i` for `hài`: these letters end a syllable after à, and are no word by themselves.
_VIETNAMESE = re.compile("á[º»ş]")
_VIETNAMESE_A_GRAVE = re.compile(r"(?<=[A-Za-z])([ÃĂ]) (?=(?:ng?|nh|[imouy])\b)")
_ARABIC = re.compile("[\u0621-\u064a]")
_ARABIC_DIGITS = re.compile("(?:Ù[ \u00a0-©])+")

_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\ufdd0-\ufdef\U0001d173-\U0001d17a]"
)

_JOINER = re.compile("[\u200c\u200d]")

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

_TAG_CHARACTER = re.compile("[\U000e0000-\U000e007f]")
_TAGS = re.compile("(\U0001f3f4[\U000e0020-\U000e007f]*[\U000e0000-\U000e007f]?)|[\U000e0000-\U000e007f]+")
"""A flag of a region with its tags, or stray tags."""
_ESCAPE = 0x1B

_UNASSIGNED = 0x2065
"""In the range of invisible characters, but not a character: it is kept."""

_KEEP, _REMOVE, _LINE_FEED, _LEAVE_TO_PYTHON = range(4)
_CYRILLIC_TO_LATIN = dict(zip("АВЕЅІЈКМНОРСТХУԚԜаеѕіјкорсухԁһԛԝӏ", "ABESIJKMHOPCTXYQWaesijkopcyxdhqwl", strict=True))
_GREEK_TO_LATIN = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧανορυχ", "ABEZHIKMNOPTYXavopux", strict=True))
_TO_LATIN = {**_CYRILLIC_TO_LATIN, **_GREEK_TO_LATIN}

_FROM_LATIN = {
    "CYRILLIC": {latin: letter for letter, latin in _CYRILLIC_TO_LATIN.items() if letter not in "ԚԜԁԛԝһӏ"},
    "GREEK": {latin: letter for letter, latin in _GREEK_TO_LATIN.items()},
}

_WORD = re.compile(r"[^\W\d_]+")
_MIXED = re.compile(r"[A-Za-z][^\W\d_]*[\u0370-\u052f]|[\u0370-\u052f][^\W\d_]*[A-Za-z]")


def undo_mojibake(text: str, _context: DocumentContext) -> str:
    """Decode again what was decoded with the wrong encoding, once or twice, where that is sure."""
    text = undo_wrong_encoding(text)
    repaired = _undo_utf8(text)
    return text if repaired is text else undo_wrong_encoding(repaired)


def _undo_utf8(text: str) -> str:
    """Decode the lines again that are UTF-8 decoded with another encoding, where ftfy is sure of it."""
    broken_lines = _broken_lines(np.frombuffer(bytearray(text.encode()), np.uint8))
    lines = text.split("\n")
    if not broken_lines or _NAME_IN_CAPITALS.fullmatch(text):
        return text
    was_macintosh = False
    for number in broken_lines:
        line = lines[number]
        lines[number] = _undo_utf8_in_line(line)
        was_macintosh |= "√" in line and lines[number] != line
    repaired = "\n".join(lines)
    # By itself `√π` is good mathematics, so that ftfy leaves it.
    return _MACINTOSH_U_GRAVE.sub("ù", repaired) if was_macintosh else repaired


def _undo_utf8_in_line(line: str) -> str:
    """Decode a line with ftfy, and what it leaves where byte A0, a no-break space, has become a space."""
    if _VIETNAMESE.search(line):
        line = _VIETNAMESE_A_GRAVE.sub("\\1\u00a0", line)
    decoded = ftfy.fix_encoding(line)
    if decoded != line and _ARABIC.search(decoded):
        decoded = _ARABIC_DIGITS.sub(lambda match: match[0].replace(" ", "\u00a0").encode("latin-1").decode(), decoded)
    return decoded


def select_broken_texts(texts: Texts, rows: np.ndarray, _limit: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return no rewritten rows, and the few rows that `undo_mojibake` must look at, as `Texts.rewrite` would."""
    is_broken = [suspect(raw) is not None or bool(_broken_lines(raw)) for raw in map(texts.raw, rows.tolist())]
    return rows[:0], rows[np.array(is_broken, np.bool_)]


def _broken_lines(raw: np.ndarray) -> list[int]:
    """Return the numbers of the lines that ftfy's test for badness matches, tested around the signs alone."""
    return [
        line
        for line, begin, end, first, last in mojibake_in_lines(raw).tolist()
        if is_bad(
            raw[max(begin, first - _NEIGHBOUR_BYTES) : min(end, last + _NEIGHBOUR_BYTES)]
            .tobytes()
            .decode(errors="ignore")
        )
    ]


def undo_entities(text: str, context: DocumentContext) -> str:
    """Decode entities (`caf&eacute;` becomes `café`) in plain text that has no sign of being markup (no `<`)."""
    if "<" in text or context.format == "markdown":
        return text
    return ftfy.fixes.unescape_html(text)


def compose(text: str, _context: DocumentContext) -> str:
    """Apply Unicode normal form C (UAX #15): one code point per character where there is one."""
    return unicodedata.normalize("NFC", text)


def remove_invisible(text: str, _context: DocumentContext) -> str:
    """Turn line breaks into line feeds; remove control, zero-width and direction characters and terminal escapes.

    Kept are tab and line feed, and joiners where a script or an emoji needs them.
    """
    if "\x1b" in text:
        text = _TERMINAL_ESCAPES.sub("", text)
    text = _INVISIBLE.sub("", _LINE_BREAKS.sub("\n", text))
    if _JOINER.search(text):
        needed = {match.start() for match in _NEEDED_JOINER.finditer(text)}
        text = _JOINER.sub(lambda match: match[0] if match.start() in needed else "", text)
    return _TAGS.sub(lambda match: match[1] or "", text) if _TAG_CHARACTER.search(text) else text


def rewrite_invisible(texts: Texts, rows: np.ndarray, _limit: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Apply `remove_invisible` to many texts; returns what `Texts.rewrite` returns."""
    return texts.rewrite(rows, write_visible, character_flags())


@kernel
def write_visible(data, begins, ends, outcomes, place, table):
    """Leave out invisible characters, and turn line breaks into line feeds; a kernel for `Texts.rewrite`.

    Terminal escapes, joiners and tags need a look at their neighbours, so texts with them are left to Python.
    """
    for text in range(len(begins)):
        first = place
        position = begins[text]
        outcome = UNCHANGED
        while position < ends[text]:
            while position < ends[text] and ord(" ") <= data[position] < 0x7F:
                data[place] = data[position]
                place += 1
                position += 1
            if position == ends[text]:
                break
            codepoint, following = decode(data, position)
            action = _action_for(codepoint, flags_of(codepoint, table))
            if action == _KEEP:
                for byte in range(position, following):
                    data[place + byte - position] = data[byte]
                place += following - position
            elif action == _LINE_FEED:
                data[place] = 10
                place += 1
                if following < ends[text] and data[following] == ord("\n"):
                    following += 1
                outcome = REWRITTEN
            elif action == _LEAVE_TO_PYTHON:
                outcome = NEEDS_PYTHON
                break
            else:
                outcome = REWRITTEN
            position = following
        outcomes[text] = outcome
        if outcome == REWRITTEN:
            begins[text], ends[text] = first, place
        else:
            place = first


@kernel
def _action_for(codepoint, flags):
    if flags & INVISIBLE == 0 or codepoint == _UNASSIGNED:
        return _KEEP
    if ord("\v") <= codepoint <= ord("\r") or codepoint == 0x85 or codepoint == 0x2028 or codepoint == 0x2029:
        return _LINE_FEED
    if codepoint == _ESCAPE or 0x200C <= codepoint <= 0x200D or codepoint >= FIRST_TAG:
        return _LEAVE_TO_PYTHON
    return _REMOVE


def fold_homoglyphs(text: str, _context: DocumentContext) -> str:
    """Write words that mix Latin with Cyrillic or Greek look-alikes in the script of most of their letters."""
    if text.isascii() or not _MIXED.search(text):
        return text
    return _WORD.sub(lambda match: _fold_word(match[0]), text)


def _fold_word(word: str) -> str:
    if word.isascii():
        return word
    scripts = [unicodedata.name(letter, "").partition(" ")[0] for letter in word]
    others = {script for script in scripts if script != "LATIN"}
    if len(others) != 1 or "LATIN" not in scripts:
        return word
    other = others.pop()
    if other not in _FROM_LATIN:
        return word
    letters = list(zip(word, scripts, strict=True))
    to_latin = {letter: _TO_LATIN.get(letter) for letter, script in letters if script == other}
    from_latin = {letter: _FROM_LATIN[other].get(letter) for letter, script in letters if script == "LATIN"}
    # A letter without a twin shows which script was meant; where every letter has one, the majority decides.
    tables = [table for table in (to_latin, from_latin) if None not in table.values()]
    if not tables:
        return word
    if len(tables) == 2:
        tables = [to_latin] if scripts.count("LATIN") * 2 >= len(word) else [from_latin]
    return "".join(tables[0].get(letter) or letter for letter in word)
