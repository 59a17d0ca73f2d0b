"""Markup left over in Markdown: badges, comments, HTML tags and entities; code in fences and backticks is not touched.

A search that fails stops where the next of its kind begins, so that a page of unclosed tags costs no more than another.
Only names that HTML knows count as tags, so that `<T>`, `<https://...>` and placeholders stay.
"""

import html
import re
from collections.abc import Callable

from tasks.clean.about import About

_TAGS = """a abbr address article aside b bdi bdo big blockquote body br button caption center cite code col colgroup dd
    del details dfn div dl dt em embed figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe
    img input ins kbd label legend li link main map mark meta nav noscript object ol option p param picture pre q rp rt
    ruby s samp script section select small source span strike strong style sub summary sup svg table tbody td template
    textarea tfoot th thead time title tr track tt u ul var video wbr"""
BADGE_HOSTS = (
    r"(?:shields\.io|badge\.fury\.io|badgen\.net|travis-ci\.|circleci\.com|codecov\.io|coveralls\.io|readthedocs\.|"
    r"appveyor\.com|ci/badge|badge\.svg|badges?/|zenodo\.org/badge|opencollective\.com)"
)
_IMAGE = r"!\[[^\]\n]{0,300}\]\([^()\n]{0,2000}\)"
CODE = r"""(?P<code>^(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?^(?P=fence)[`~]*[ \t]*$|.*\Z)
        |(?P<tick>`+)(?!`)[^\n]*?(?<!`)(?P=tick)(?!`))"""
"""Code in fences and backticks, in a verbose pattern of several lines."""
_MARKUP = re.compile(
    rf"""{CODE}
    |(?P<badge>\[[ ]?{_IMAGE}[ ]?\]\([^()\n]{{0,2000}}\)
        |!\[[^\]\n]{{0,300}}\]\([^()\n]{{0,2000}}?{BADGE_HOSTS}[^()\n]{{0,2000}}\))
    |(?P<comment><!--(?:(?!<!--).)*?-->)
    |(?P<block><(?P<element>script|style)\b[^<>]{{0,2000}}>(?:(?!<(?P=element)\b).)*?</(?P=element)\s*>)
    |(?P<tag></?(?:{"|".join(_TAGS.split())})(?:\s[^<>]{{0,2000}})?/?>)
    |(?P<entity>&(?:[A-Za-z][A-Za-z0-9]{{1,31}}|\#\d{{1,7}}|\#[xX][0-9A-Fa-f]{{1,6}});)
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_SIGNS = re.compile(r"[<&]|!\[")
_MARKUP_BEGINNINGS = re.compile(r"`|~~~|!\[|\[ ?!\[|<[!/A-Za-z]|&[A-Za-z#]")
_BREAKS = re.compile(r"</?(?:br|p|div|li|tr|h[1-6])\b", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){3,}")


def remove_markup(text: str, about: About) -> str:
    """Markdown without badges, HTML comments and tags, and with entities as characters."""
    if about.kind != "markdown" or not _SIGNS.search(text):
        return text
    without = replace_matches(_MARKUP, _MARKUP_BEGINNINGS, _replacement, text)
    return text if without == text else _BLANK_LINES.sub("\n\n", without)


def replace_matches(
    pattern: re.Pattern[str], beginnings: re.Pattern[str], replacement: Callable[[re.Match[str]], str], text: str
) -> str:
    """What `pattern.sub(replacement, text)` gives, where a match begins with a match of `beginnings` only.

    A pattern of many alternatives is tried at every character, which takes 60 ns; a search for a few first characters
    takes 3.
    """
    pieces: list[str] = []
    done = position = 0
    while (found := beginnings.search(text, position)) is not None:
        match = pattern.match(text, found.start())
        if match is None:
            position = found.start() + 1
            continue
        pieces += (text[done : found.start()], replacement(match))
        done = position = match.end()
    return "".join((*pieces, text[done:])) if done else text


def _replacement(match: re.Match[str]) -> str:
    if match["code"] is not None:
        return match["code"]
    if match["entity"] is not None:
        return html.unescape(match["entity"])
    if match["tag"] is not None and _BREAKS.match(match["tag"]) and _is_break(match):
        return "\n"
    return ""


def _is_break(match: re.Match[str]) -> bool:
    """Whether the tag parts two words that would else run together."""
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    return bool(before and after) and not before.isspace() and not after.isspace()
