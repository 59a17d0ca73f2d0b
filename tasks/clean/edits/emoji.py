"""Emoji and emoticons as words: a small vocabulary has no token for them, but has the words of their names.

Names are those of Unicode CLDR as the `emoji` package carries them, in the document's language where it is among its
fourteen, else in English. A run of one emoji counts once. Characters that are text unless asked otherwise (such as ©
and ™) stay unless a variation selector asks. Emoticons must stand alone; kaomoji, whose brackets and letters set them
apart, may touch other text.

Codes that chat programs show as pictures: `:thumbsup:` of GitHub, Slack and Discord, `[捂脸]` of WeChat and Weibo.

A code becomes the name of its emoji in the document's language; Chinese codes in Chinese text are words already. Only
known codes count, so that `[编辑]` and `a:b:c` stay. A run of one code counts once.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path

import emoji
import regex

from tasks.clean.document import About

_ELEMENT = r"\p{Extended_Pictographic}(?:\ufe0f|\p{EMod}|[\U000e0020-\U000e007f]+)*\u20e3?"

_ONE = rf"(?:\p{{RI}}\p{{RI}}|[#*0-9]\ufe0f?\u20e3|{_ELEMENT}(?:\u200d{_ELEMENT})*)"

_RUN = regex.compile(rf"({_ONE})(?:[ ]?\1)*")

_SHOWN_AS_PICTURE = regex.compile(r"\p{Emoji_Presentation}|[\ufe0f\u20e3]|\p{RI}")

_SELECTORS = re.compile("[\ufe0e\ufe0f\u20e3]")


def read_pairs(name: str) -> dict[str, str]:
    """The two columns of a table beside this file."""
    lines = Path(__file__).with_name(name).read_text("utf-8").splitlines()
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines if line}


def alternatives(words: Iterable[str]) -> str:
    """A pattern for any of `words`, the longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_EMOTICONS = read_pairs("emoticons.tsv")

_KAOMOJI = read_pairs("kaomoji.tsv")

_FACES = {**_EMOTICONS, **_KAOMOJI}

STANDING_ALONE = (*_EMOTICONS, *(face for face in _KAOMOJI if face.isalpha()))
"""Emoticons that count between blanks only."""

ANYWHERE = tuple(face for face in _KAOMOJI if not face.isalpha())
"""Kaomoji, which may touch other text."""

_STANDING_ALONE = re.compile(rf"(?:{alternatives(STANDING_ALONE)})(?=[\s.,!?]|$)")

_ANYWHERE = re.compile(alternatives(ANYWHERE))

MAY_BE_EMOJI = re.compile(
    "[\u00a9\u00ae\u203c\u2049\u20e3\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001ffff]"
)

_MODIFIERS = regex.compile(r"[\p{EMod}\ufe0e\ufe0f]")


def emoji_to_words(text: str, about: About) -> str:
    """Every emoji as its name between blanks, or removed when `about.emoji` is `drop`."""
    if text.isascii() or not MAY_BE_EMOJI.search(text):
        return text

    def word(match: "regex.Match[str]") -> str:
        picture = match[1]
        if not _SHOWN_AS_PICTURE.search(picture):
            return match[0]
        name = "" if about.emoji == "drop" else emoji_name(picture, about.language)
        return set_apart(name, match.string, match.start(), match.end())

    without = _RUN.sub(word, text)
    return text if without == text else _SELECTORS.sub("", without)


def emoticons_to_words(text: str, about: About) -> str:
    """`:-)`, `(^_^)` and their like as the name of the emoji they stand for, or removed."""

    def word(match: re.Match[str]) -> str:
        name = "" if about.emoji == "drop" else emoji_name(_FACES[match[0]], about.language)
        return set_apart(name, match.string, match.start(), match.end())

    def word_between_blanks(match: re.Match[str]) -> str:
        before = match.string[match.start() - 1 : match.start()]
        return match[0] if before and not before.isspace() else word(match)

    return _STANDING_ALONE.sub(word_between_blanks, _ANYWHERE.sub(word, text))


@functools.cache
def emoji_name(picture: str, language: str | None) -> str:
    """The name of one emoji, `red heart`; of an unknown combination, the names of its parts; "" for none."""
    code = (language or "en").partition("-")[0].lower()
    if code not in emoji.LANGUAGES:
        code = "en"
    _load(code)
    for form in (picture, f"{picture}\ufe0f", _MODIFIERS.sub("", picture), f"{_MODIFIERS.sub('', picture)}\ufe0f"):
        names = emoji.EMOJI_DATA.get(form)
        if names is not None:
            return names.get(code, names["en"]).strip(":").replace("_", " ")
    parts = picture.split("\u200d")
    return " ".join(filter(None, (emoji_name(part, language) for part in parts))) if len(parts) > 1 else ""


@functools.cache
def _load(code: str) -> None:
    if code != "en":
        emoji.config.load_language(code)


def set_apart(name: str, text: str, start: int, end: int) -> str:
    """`name` in the place of text[start:end], with blanks where it would run into a neighbour."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    if not name:
        # Two blanks around nothing would be one too many; two letters around nothing need one.
        return " " if before.isalnum() and after.isalnum() else ""
    left = "" if not before or before.isspace() or before in "([{\"'“‘（「" else " "
    right = "" if not after or after.isspace() or after in ".,;:!?)]}\"'”’，。！？、）」" else " "
    return f"{left}{name}{right}"


_SHORTCODE = re.compile(r"(:(?<![\w:/]:)[A-Za-z0-9_+-]+:)(?:[ ]?\1)*(?![\w:])")
"""The colon stands before the look at what is before it, so that the search leaps from colon to colon."""

_STICKERS = read_pairs("stickers.tsv")

STICKERS = tuple(f"[{code}]" for code in _STICKERS)

_STICKER = re.compile(rf"(\[(?:{alternatives(_STICKERS)})\])(?:[ ]?\1)*(?![(\[:])")


def shortcodes_to_words(text: str, about: About) -> str:
    """`:smile:` as the name of its emoji, or removed."""

    def word(match: re.Match[str]) -> str:
        picture = _shortcodes().get(match[1].lower())
        if picture is None:
            return match[0]
        name = "" if about.emoji == "drop" else emoji_name(picture, about.language)
        return set_apart(name, match.string, match.start(), match.end())

    return _SHORTCODE.sub(word, text)


def stickers_to_words(text: str, about: About) -> str:
    """`[捂脸]` as its own word in Chinese text, elsewhere as the name of its emoji, or removed."""

    def word(match: re.Match[str]) -> str:
        code = match[1][1:-1]
        if about.emoji == "drop":
            name = ""
        elif about.language is None or about.language.partition("-")[0] == "zh":
            name = code
        else:
            name = emoji_name(_STICKERS[code], about.language)
        return set_apart(name, match.string, match.start(), match.end())

    return _STICKER.sub(word, text)


@functools.cache
def _shortcodes() -> dict[str, str]:
    return {
        alias: picture
        for picture, names in emoji.EMOJI_DATA.items()
        for alias in (names["en"].lower(), *names.get("alias", ()))
    }
