"""Pictures that carry words: the alternative text of an image takes the image's place.

In Markdown that is `![a map](map.png)` and `<img alt="a map">`; badges are left for `markup` to remove. In raw HTML
only pictures that stand for a character count (`<img class="emoji" alt="😀">`), before the main text is extracted.
"""

import html
import re

from tasks.clean.about import About
from tasks.clean.emoji_words import MAY_BE_EMOJI
from tasks.clean.markup import BADGE_HOSTS, CODE, replace_matches

_IMAGE = re.compile(
    rf"""{CODE}
    |\[[ ]?!\[[^\]\n]{{0,300}}\]\([^()\n]{{0,2000}}{BADGE_HOSTS}[^()\n]{{0,2000}}\)[ ]?\]\([^()\n]{{0,2000}}\)
    |!\[(?P<alternative>[^\]\n]{{0,300}})\]\((?P<address>[^()\n]{{0,2000}})\)
    |(?P<element><img\b[^<>]{{0,2000}}>)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_IMAGE_BEGINNINGS = re.compile(r"`|~~~|!\[|\[ ?!\[|<[iI]")
_BADGE = re.compile(BADGE_HOSTS)
_ELEMENT = re.compile(r"<img\b[^<>]{0,2000}>", re.IGNORECASE)
_ELEMENT_BEGINNINGS = re.compile("<[iI]")
_ALTERNATIVE = re.compile(r"\balt\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)'|([^\s\"'<>]+))", re.IGNORECASE)
_PICTOGRAM = re.compile(r"\bclass\s*=\s*[\"']?[^\"'>]*(?:emoji|emoticon|smil|sticker)", re.IGNORECASE)
_CODE_LIKE = re.compile(r":[\w+-]+:|\[\S{1,12}\]")


def images_to_alt_texts(text: str, about: About) -> str:
    """Images of Markdown, and pictograms of HTML, as their alternative text."""
    if about.kind == "markdown":
        return replace_matches(_IMAGE, _IMAGE_BEGINNINGS, _markdown_image, text)
    return replace_matches(_ELEMENT, _ELEMENT_BEGINNINGS, _html_pictogram, text) if about.kind == "html" else text


def _markdown_image(match: re.Match[str]) -> str:
    if match["element"] is not None:
        return _alternative(match["element"])
    if match["alternative"] is None or _BADGE.search(match["address"]):
        return match[0]
    return match["alternative"].strip()


def _html_pictogram(match: re.Match[str]) -> str:
    element = match[0]
    alternative = _alternative(element)
    shown = MAY_BE_EMOJI.search(alternative) or _CODE_LIKE.fullmatch(alternative) or _PICTOGRAM.search(element)
    return alternative if shown else element


def _alternative(element: str) -> str:
    found = _ALTERNATIVE.search(element)
    return html.unescape(next(filter(None, found.groups()), "")).strip() if found else ""
