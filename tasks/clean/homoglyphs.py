"""Look-alike letters of another script inside a word: `pаypаl` with Cyrillic `а` becomes `paypal` again.

An option, in no preset: only a word that mixes Latin with Cyrillic or Greek is touched, and only where every letter of
the script that has fewer letters there has a twin in the other. A word wholly in one script is never changed.
"""

import re
import unicodedata

from tasks.clean.about import About

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
