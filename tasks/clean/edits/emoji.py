"""Emoji, emoticons and their codes as words: a small vocabulary has tokens for the words of their names alone.

Names are those of Unicode CLDR as the `emoji` package ships them, in the document's language where it is among its
fourteen, else in English. A run of one emoji counts once. Characters that are text by default (such as © and ™) are
kept unless a variation selector makes them emoji. Emoticons must be isolated; kaomoji, whose brackets and letters set
them apart, may touch other text.

Codes are those that chat programs show as pictures: `:thumbsup:` of GitHub, Slack and Discord, `[捂脸]` of WeChat and
Weibo. A code becomes the name of its emoji in the document's language; Chinese codes in Chinese text are words already.
Only known codes count, so that `[编辑]` and `a:b:c` are kept. A run of one code counts once.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path

import emoji
import regex

from tasks.clean.document import DocumentContext

_ELEMENT = r"\p{Extended_Pictographic}(?:\ufe0f|\p{EMod}|[\U000e0020-\U000e007f]+)*\u20e3?"
_ONE = rf"(?:\p{{RI}}\p{{RI}}|[#*0-9]\ufe0f?\u20e3|{_ELEMENT}(?:\u200d{_ELEMENT})*)"
_RUN = regex.compile(rf"({_ONE})(?:[ ]?\1)*")
_SHOWN_AS_PICTURE = regex.compile(r"\p{Emoji_Presentation}|[\ufe0f\u20e3]|\p{RI}")
_SELECTORS = re.compile("[\ufe0e\ufe0f\u20e3]")

MAY_BE_EMOJI = re.compile(
    "[\u00a9\u00ae\u203c\u2049\u20e3\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001ffff]"
)

_MODIFIERS = regex.compile(r"[\p{EMod}\ufe0e\ufe0f]")

_SHORTCODE = re.compile(r"(:(?<![\w:/]:)[A-Za-z0-9_+-]+:)(?:[ ]?\1)*(?![\w:])")
"""The look-behind comes after the colon, so that the search can jump from colon to colon."""

_DIRECTIVE = re.compile(r"^[ \t]*(?:\.\. [a-z][\w:+.-]*::|[`:]{3,}\{[a-z][\w:+.-]*\})", re.MULTILINE)
"""A mark of reStructuredText and MyST: in such a text `:link: intro` on a line of its own is a field."""


def read_pairs(name: str) -> dict[str, str]:
    """Read the first two columns of a table in this folder."""
    lines = Path(__file__).with_name(name).read_text("utf-8").splitlines()
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines if line}


def alternatives(words: Iterable[str]) -> str:
    """Return a pattern for any of `words`, the longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_EMOTICONS = read_pairs("emoticons.tsv")
_KAOMOJI = read_pairs("kaomoji.tsv")
_EMOJI_OF_FACE = {**_EMOTICONS, **_KAOMOJI}

ISOLATED_EMOTICONS = (*_EMOTICONS, *(face for face in _KAOMOJI if face.isalpha()))
"""Emoticons that count between whitespace only."""

ANYWHERE = tuple(face for face in _KAOMOJI if not face.isalpha())
"""Kaomoji, which may touch other text."""

_ISOLATED = re.compile(rf"(?:{alternatives(ISOLATED_EMOTICONS)})(?=[\s.,!?]|$)")
_ANYWHERE = re.compile(alternatives(ANYWHERE))
_STICKERS = read_pairs("stickers.tsv")
STICKERS = tuple(f"[{code}]" for code in _STICKERS)
_STICKER = re.compile(rf"(\[(?:{alternatives(_STICKERS)})\])(?:[ ]?\1)*(?![(\[:])")


def emoji_to_words(text: str, context: DocumentContext) -> str:
    """Replace every emoji by its name, or remove it where `context.emoji` is `drop`."""
    if text.isascii() or not MAY_BE_EMOJI.search(text):
        return text

    def word(match: "regex.Match[str]") -> str:
        picture = match[1]
        if not _SHOWN_AS_PICTURE.search(picture):
            return match[0]
        return _in_place_of(match, _name(picture, context))

    without = _RUN.sub(word, text)
    return text if without == text else _SELECTORS.sub("", without)


def emoticons_to_words(text: str, context: DocumentContext) -> str:
    """Replace `:-)`, `(^_^)` and the like by the name of the emoji with that meaning, or remove them."""

    def word(match: re.Match[str]) -> str:
        return _in_place_of(match, _name(_EMOJI_OF_FACE[match[0]], context))

    def word_if_isolated(match: re.Match[str]) -> str:
        before = match.string[match.start() - 1 : match.start()]
        return match[0] if before and not before.isspace() else word(match)

    return _ISOLATED.sub(word_if_isolated, _ANYWHERE.sub(word, text))


def shortcodes_to_words(text: str, context: DocumentContext) -> str:
    """Replace `:smile:` by the name of its emoji, or remove it; fields of reStructuredText (`:date: 2020`) are kept."""
    has_fields = _DIRECTIVE.search(text) is not None

    def word(match: re.Match[str]) -> str:
        picture = _shortcodes().get(match[1].lower())
        is_field = has_fields and not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        return match[0] if picture is None or is_field else _in_place_of(match, _name(picture, context))

    return _SHORTCODE.sub(word, text)


def stickers_to_words(text: str, context: DocumentContext) -> str:
    """Replace `[捂脸]` by its own word in Chinese text, elsewhere by the name of its emoji, or remove it."""

    def word(match: re.Match[str]) -> str:
        code = match[1][1:-1]
        is_word = context.emoji != "drop" and context.base_language in ("", "zh")
        return _in_place_of(match, code if is_word else _name(_STICKERS[code], context))

    return _STICKER.sub(word, text)


def _name(picture: str, context: DocumentContext) -> str:
    """Return what a document has in place of an emoji; "" where it is removed."""
    return "" if context.emoji == "drop" else emoji_name(picture, context.base_language)


@functools.cache
def emoji_name(picture: str, language: str) -> str:
    """Return the name of one emoji, `red heart`; of an unknown combination, the names of its parts; "" for none."""
    code = language if language in emoji.LANGUAGES else "en"
    emoji.config.load_language(code)
    for form in (picture, f"{picture}\ufe0f", _MODIFIERS.sub("", picture), f"{_MODIFIERS.sub('', picture)}\ufe0f"):
        names = emoji.EMOJI_DATA.get(form)
        if names is not None:
            return names.get(code, names["en"]).strip(":").replace("_", " ")
    parts = picture.split("\u200d")
    return " ".join(filter(None, (emoji_name(part, language) for part in parts))) if len(parts) > 1 else ""


@functools.cache
def _shortcodes() -> dict[str, str]:
    return {
        alias: picture
        for picture, names in emoji.EMOJI_DATA.items()
        for alias in (names["en"].lower(), *names.get("alias", ()))
    }


def _in_place_of(match: "re.Match[str] | regex.Match[str]", name: str) -> str:
    """Return `name`, with spaces where it would run into a neighbour of what it replaces."""
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    if not name:
        # Where nothing is left, two letters need a space between them; elsewhere a second space would be one too many.
        return " " if before.isalnum() and after.isalnum() else ""
    left = "" if not before or before.isspace() or before in "([{\"'“‘（「" else " "
    right = "" if not after or after.isspace() or after in ".,;:!?)]}\"'”’，。！？、）」" else " "
    return f"{left}{name}{right}"
