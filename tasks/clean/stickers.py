"""Codes that chat programs show as pictures: `:thumbsup:` of GitHub, Slack and Discord, `[捂脸]` of WeChat and Weibo.

A code becomes the name of its emoji in the document's language; Chinese codes in Chinese text are words already. Only
known codes count, so that `[编辑]` and `a:b:c` stay. A run of one code counts once.
"""

import functools
import re

import emoji

from tasks.clean.about import About
from tasks.clean.emoji_words import alternatives, emoji_name, read_pairs, set_apart

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
