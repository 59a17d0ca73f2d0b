"""HTML and Markdown: main text of pages, alternative texts of images, leftover markup.

Main text is extracted by trafilatura (Barbaresi 2021) for quality, or by resiliparse (Bevendorff et al. 2018), which is
fifteen times as fast. Both leave out readers' comments and keep tables. trafilatura's own deduplication is off: it
remembers earlier pages, and a document's text must not depend on its neighbours.

Alternative texts replace images: in Markdown `![a map](map.png)` and `<img alt="a map">`, except badges; in raw HTML
only images that show a character (`<img class="emoji" alt="😀">`), before the main text is extracted.

Leftover markup in Markdown: badges, comments, HTML tags and entities; code in fences and backticks is not touched. A
search that fails stops where the next of its kind begins, so that a page of unclosed tags costs no more than another.
Only names of HTML elements count as tags, so that `<T>`, `<https://...>` and placeholders are kept.
"""

import html
import re
from collections.abc import Callable

from tasks.clean.document import DocumentContext
from tasks.clean.edits.emoji import MAY_BE_EMOJI

_HTML_TAGS = """
    abbr address article aside bdi bdo big blockquote body br button caption center cite code col colgroup dd
    del details dfn div dl dt em embed figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html
    iframe img input ins kbd label legend li link main map mark meta nav noscript object ol option param picture
    pre rp rt ruby samp script section select small source span strike strong style sub summary sup svg table
    tbody td template textarea tfoot th thead time title tr track tt ul var video wbr
"""
_LETTER_TAGS = "[abipqsu]"
"""Names of elements that are variables too, and have no attribute without a value: `a<b and c>d` is no tag."""

BADGE_HOSTS = (
    r"(?:shields\.io|badge\.fury\.io|badgen\.net|travis-ci\.|circleci\.com|codecov\.io|coveralls\.io|readthedocs\.|"
    r"appveyor\.com|ci/badge|badge\.svg|badges?/|zenodo\.org/badge|opencollective\.com)"
)

_IMAGE_PATTERN = r"!\[[^\]\n]{0,300}\]\([^()\n]{0,2000}\)"

CODE = r"""(?P<code>^(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?^(?P=fence)[`~]*[ \t]*$|.*\Z)
        |(?P<tick>`+)(?!`)[^\n]*?(?<!`)(?P=tick)(?!`))"""
"""Code in fences and backticks, in a verbose pattern of several lines."""

_MARKUP = re.compile(
    rf"""{CODE}
    |(?P<badge>\[[ ]?{_IMAGE_PATTERN}[ ]?\]\([^()\n]{{0,2000}}\)
        |!\[[^\]\n]{{0,300}}\]\([^()\n]{{0,2000}}?{BADGE_HOSTS}[^()\n]{{0,2000}}\))
    |(?P<comment><!--(?:(?!<!--).)*?-->)
    |(?P<block><(?P<element>script|style)\b[^<>]{{0,2000}}>(?:(?!<(?P=element)\b).)*?</(?P=element)\s*>)
    |(?P<tag></?(?:(?:{"|".join(_HTML_TAGS.split())})(?:\s[^<>]{{0,2000}})?
        |{_LETTER_TAGS}(?:\s[^<>=]{{0,2000}}=[^<>]{{0,2000}}|\s+)?)/?>)
    |(?P<entity>&(?:[A-Za-z][A-Za-z0-9]{{1,31}}|\#\d{{1,7}}|\#[xX][0-9A-Fa-f]{{1,6}});)
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL | re.IGNORECASE,
)

_MARKUP_BEGINNINGS = re.compile(r"`|~~~|!\[|\[ ?!\[|<[!/A-Za-z]|&[A-Za-z#]")
_BREAKS = re.compile(r"</?(?:br|p|div|li|tr|h[1-6])\b", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){3,}")

_IMAGE = re.compile(
    rf"""{CODE}
    |\[[ ]?!\[[^\]\n]{{0,300}}\]\([^()\n]{{0,2000}}{BADGE_HOSTS}[^()\n]{{0,2000}}\)[ ]?\]\([^()\n]{{0,2000}}\)
    |!\[(?P<alternative>[^\]\n]{{0,300}})\]\((?P<address>[^()\n]{{0,2000}})\)
    |(?P<element><img\b[^<>]{{0,2000}}>)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL | re.IGNORECASE,
)

_IMAGE_BEGINNINGS = re.compile(r"`|~~~|!\[|\[ ?!\[|<[iI]")
_BADGE = re.compile(BADGE_HOSTS)
_IMG_ELEMENT = re.compile(r"<(?i:img)\b[^<>]{0,2000}>")
_ALTERNATIVE = re.compile(r"\balt\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)'|([^\s\"'<>]+))", re.IGNORECASE)
_PICTOGRAM = re.compile(r"\bclass\s*=\s*[\"']?[^\"'>]*(?:emoji|emoticon|smil|sticker)", re.IGNORECASE)
_CODE_LIKE = re.compile(r":[\w+-]+:|\[\S{1,12}\]")


def html_to_text(page: str, extractor: str = "trafilatura") -> tuple[str | None, str]:
    """Extract the main text of a page; returns (text, "") or (None, why there is none)."""
    # Each extractor takes up to half a second to import, so only the one that is used is imported.
    try:
        if extractor == "resiliparse":
            from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource]

            text = extract_plain_text(page, main_content=True, alt_texts=False)
        else:
            from trafilatura import extract

            text = extract(page, include_comments=False, include_tables=True, deduplicate=False)
    except Exception as error:
        # The parsers fail on broken pages with many kinds of errors; the ledger records which it was.
        return None, f"{type(error).__name__}: {error}"
    return (text, "") if text and text.strip() else (None, "no main text found")


def images_to_alt_texts(text: str, context: DocumentContext) -> str:
    """Replace images of Markdown, and pictograms of HTML, by their alternative text."""
    if context.format == "markdown":
        return replace_matches(_IMAGE, _IMAGE_BEGINNINGS, _markdown_image, text)
    return _IMG_ELEMENT.sub(_html_pictogram, text) if context.format == "html" else text


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


def remove_markup(text: str, context: DocumentContext) -> str:
    """Remove badges, HTML comments and tags from Markdown, and decode entities."""
    if context.format != "markdown":
        return text
    without = replace_matches(_MARKUP, _MARKUP_BEGINNINGS, _replacement, text)
    return text if without == text else _BLANK_LINES.sub("\n\n", without)


def _replacement(match: re.Match[str]) -> str:
    if match["code"] is not None:
        return match["code"]
    if match["entity"] is not None:
        return html.unescape(match["entity"])
    if match["tag"] is not None and _BREAKS.match(match["tag"]) and _is_break(match):
        return "\n"
    return ""


def _is_break(match: re.Match[str]) -> bool:
    """Return whether the tag separates two words that would otherwise run together."""
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    return bool(before and after) and not before.isspace() and not after.isspace()


def replace_matches(
    pattern: re.Pattern[str], beginnings: re.Pattern[str], replacement: Callable[[re.Match[str]], str], text: str
) -> str:
    """Return what `pattern.sub(replacement, text)` returns, where every match begins with a match of `beginnings`.

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
