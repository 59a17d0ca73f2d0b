"""The XML export of a MediaWiki (`pages-articles.xml`): each article is a document of wikitext, its title above it.

Pages outside the namespace of articles, redirects, and pages of other content (styles, JSON) are skipped and counted.
The stream is cut at `<page>` and `</page>`, which a page's escaped text cannot contain, and each page is parsed alone:
damage costs one page, memory is bounded by a page, and a document type, whose entities could grow without bound, is
never read. Of a page with several revisions the last one counts.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote
from xml.etree import ElementTree

from tasks.sample.config import Source
from tasks.sample.readers.byte_stream import Gap
from tasks.sample.readers.records import BadRecord, Found, Record, Skipped, excerpt_of

OPENING, CLOSING = b"<page>", b"</page>"
ARTICLES = "0"
NO_END = "the page has no end"
_BASE = re.compile(rb"<base>\s*(https?://[^<\s]{1,400}/)[^<\s/]*\s*</base>")
_MARKUP_BYTES = 1 << 16
"""Bytes of a page besides its text."""


def mediawiki_records(blocks: Iterable[bytes | Gap], source: Source) -> Iterator[Found]:
    """Yield every page, numbered from 0, with the byte where it begins (after decompression)."""
    held = bytearray()
    position = page_begin = number = 0
    base = ""
    is_in_page = is_too_large = False
    limit = source.max_file_bytes + _MARKUP_BYTES
    for block in blocks:
        if isinstance(block, Gap):
            yield BadRecord(number, position, block.reason, excerpt_of(bytes(held[-200:])))
            number += 1
            position += len(held)
            held.clear()
            is_in_page = is_too_large = False
            continue
        held += block
        while True:
            if not is_in_page:
                begin = held.find(OPENING)
                if not base and (found := _BASE.search(held, 0, begin if begin >= 0 else len(held))):
                    base = found[1].decode("utf-8", "replace")
                keep = min(len(held), len(OPENING) - 1 if base or number else _MARKUP_BYTES)
                dropped = begin if begin >= 0 else len(held) - keep
                del held[:dropped]
                position += dropped
                if begin < 0:
                    break
                is_in_page, page_begin = True, position
            end = held.find(CLOSING)
            if end < 0:
                if len(held) > limit:
                    is_too_large = True
                    dropped = len(held) - len(CLOSING)
                    del held[:dropped]
                    position += dropped
                break
            end += len(CLOSING)
            if is_too_large or end > limit:
                yield BadRecord(number, page_begin, f"larger than max_file_bytes ({source.max_file_bytes})")
            else:
                # A damaged page without its end holds the beginning of the next one.
                if (next_page := held.rfind(OPENING, 0, end)) > 0:
                    yield BadRecord(number, page_begin, NO_END, excerpt_of(bytes(held[:400])))
                    number, page_begin = number + 1, page_begin + next_page
                yield _page(number, page_begin, bytes(held[max(0, next_page) : end]), base)
            number += 1
            del held[:end]
            position += end
            is_in_page = is_too_large = False
    if is_in_page:
        yield BadRecord(number, page_begin, NO_END, excerpt_of(bytes(held[:400])))


def _page(number: int, byte: int, raw: bytes, base: str) -> Found:
    try:
        page = ElementTree.fromstring(raw)
    except ElementTree.ParseError as error:
        return BadRecord(number, byte, f"invalid XML: {error}", excerpt_of(raw[:400]))
    if page.findtext("ns", ARTICLES).strip() != ARTICLES:
        return Skipped(number, "pages outside the namespace of articles")
    if page.find("redirect") is not None:
        return Skipped(number, "redirects")
    revisions = page.findall("revision")
    if not revisions or revisions[-1].findtext("model", "wikitext") != "wikitext":
        return Skipped(number, "pages without wikitext")
    title = page.findtext("title", "").strip()
    text = revisions[-1].findtext("text", "")
    if not text.strip():
        return BadRecord(number, byte, "empty text")
    url = base + quote(title.replace(" ", "_"), safe="/:,()'!*") if base and title else None
    headed = f"= {title} =\n\n{text}" if title else text
    return Record(number, byte, headed, page.findtext("id") or None, "wikitext", url)
