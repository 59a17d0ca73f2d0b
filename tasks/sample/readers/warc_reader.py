"""WARC (ISO 28500): crawled pages (`response`, `resource`) and extracted text (`conversion`) are records.

Other kinds of records, HTTP statuses other than 200, media without text, and pages that the crawler marked as truncated
are skipped and counted. The framing is parsed here and not by a library: those that were measured end a file at the
first damaged header (FastWARC 2.0) or return a truncated record as a whole one. A record with a wrong length, or half a
page, is rejected alone, and reading continues at the next header.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import replace

from tasks.sample.config import Source
from tasks.sample.readers.byte_stream import Gap
from tasks.sample.readers.encodings import decode_page
from tasks.sample.readers.records import BadRecord, Found, Record, Skipped, excerpt_of

_HEADER_BYTES = 1 << 16

_NEXT = re.compile(rb"(?:^|\n)(WARC/1\.[01]\r?\n)")

_ENDED = re.compile(rb"[\r\n]*(?:WARC/1\.[01]\r?\n|\Z)")

_FOLLOWING_BYTES = 64

_END_OF_HEADER = re.compile(rb"\r?\n\r?\n")

_CONTENT_OF_MEDIA = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
    "text/markdown": "markdown",
}

_WITH_TEXT = frozenset({"response", "resource", "conversion"})

GZIP = b"\x1f\x8b"

ZLIB_OR_GZIP, BARE = 47, -15
"""Windows of zlib: 32 KiB with either header, and without one."""


class _Window:
    """The bytes between two gaps, of which only the window in use is in memory."""

    def __init__(self, blocks: Iterator[bytes | Gap], position: int) -> None:
        self._blocks = blocks
        self.held = bytearray()
        self.position = position
        self.end: Gap | None = None
        self.at_end = False

    def fill(self, size: int) -> bool:
        """Read until at least `size` bytes are in the window; return False if fewer are left."""
        while len(self.held) < size and not self.at_end:
            block = next(self._blocks, None)
            if block is None or isinstance(block, Gap):
                self.at_end, self.end = True, block
            else:
                self.held += block
        return len(self.held) >= size

    def drop(self, size: int) -> bool:
        """Skip `size` bytes without keeping them in memory; return False if fewer are left."""
        while size > len(self.held):
            size -= len(self.held)
            self.position += len(self.held)
            self.held.clear()
            if not self.fill(1):
                return False
        del self.held[:size]
        self.position += size
        return True

    def seek_header(self) -> bool:
        """Skip bytes up to the next header; return False if there is none."""
        while True:
            self.fill(_HEADER_BYTES)
            if match := _NEXT.search(self.held):
                return self.drop(match.start(1))
            if self.at_end:
                self.drop(len(self.held))
                return False
            self.drop(len(self.held) - 32)


def warc_records(blocks: Iterator[bytes | Gap], source: Source) -> Iterator[Found]:
    """Yield every record of an archive, numbered from 0, with the byte where it begins (after decompression)."""
    number = position = 0
    while True:
        window = _Window(blocks, position)
        for found in _between_gaps(window, source, number):
            number = found.number + 1
            yield found
        position = window.position
        if window.end is None:
            return
        yield BadRecord(number, position, window.end.reason)
        number += 1


def _between_gaps(window: _Window, source: Source, number: int) -> Iterator[Found]:
    while True:
        while window.fill(1) and window.held[0] in b"\r\n":
            window.drop(1)
        if not window.fill(1):
            return
        begin = window.position
        window.fill(_HEADER_BYTES)
        if not _NEXT.match(window.held):
            yield BadRecord(
                number, begin, "no WARC header where a record should begin", excerpt_of(bytes(window.held[:400]))
            )
            number += 1
            if not window.seek_header():
                return
            continue
        found = _record(window, source, number, begin)
        if found is None:
            return  # torn by the following gap, which is reported there
        yield found
        number += 1
        if isinstance(found, BadRecord) and not found.reason.startswith("larger") and not window.seek_header():
            return


def _record(window: _Window, source: Source, number: int, begin: int) -> Found | None:
    """Return the record that begins here; after a bad one the window is behind its header, where the next is
    searched."""
    end = _END_OF_HEADER.search(window.held)
    if end is None:
        if window.end is not None:
            window.drop(len(window.held))
            return None
        excerpt = excerpt_of(bytes(window.held[:400]))
        window.drop(len("WARC/1.0"))
        return BadRecord(number, begin, "header without an end", excerpt)
    head = bytes(window.held[: end.end()])
    headers = _headers(head)
    window.drop(len(head))
    kind, length = headers.get("warc-type", "").lower(), headers.get("content-length", "")
    if not re.fullmatch("[0-9]{1,18}", length):
        return BadRecord(number, begin, f"no Content-Length but {length!r}", excerpt_of(head))
    size = int(length)
    if size > source.max_file_bytes:
        return _unread(window, source, number, begin, kind, size, head)
    if not window.fill(size):
        if window.end is not None:
            window.drop(len(window.held))
            return None
        return BadRecord(number, begin, f"record ends early: {len(window.held)} of {size} bytes", excerpt_of(head))
    window.fill(size + _FOLLOWING_BYTES)
    if window.held[size : size + 1] not in (b"", b"\r", b"\n"):
        return BadRecord(number, begin, f"Content-Length {size} ends in the middle of a line", excerpt_of(head))
    # A page may quote a header; the record that it belongs to ends where the next begins, or with the file.
    if not _ENDED.match(window.held, size) and _NEXT.search(window.held, 0, size):
        return BadRecord(number, begin, f"Content-Length {size} ends in another record", excerpt_of(head))
    if kind not in _WITH_TEXT:
        window.drop(size)
        return _without_text(number, kind)
    content = bytes(window.held[:size])
    window.drop(size)
    return _page(number, begin, headers, content, source)


def _unread(
    window: _Window, source: Source, number: int, begin: int, kind: str, size: int, head: bytes
) -> Found | None:
    if not window.drop(size):
        if window.end is not None:
            return None
        return BadRecord(number, begin, f"record ends early: its {size} bytes are not there", excerpt_of(head))
    if kind in _WITH_TEXT:
        return BadRecord(number, begin, f"larger than max_file_bytes ({source.max_file_bytes})", excerpt_of(head))
    return _without_text(number, kind)


def _without_text(number: int, kind: str) -> Skipped:
    return Skipped(number, f"WARC records of type {kind or 'none'}")


def _page(number: int, begin: int, headers: dict[str, str], content: bytes, source: Source) -> Found:
    media = headers.get("content-type", "")
    answer: dict[str, str] = {}
    excerpt = excerpt_of(content[:400])
    if headers["warc-type"].lower() != "conversion" and media.lower().startswith("application/http"):
        end = _END_OF_HEADER.search(content)
        status, _, rest = (content[: end.end()] if end else content).partition(b"\n")
        words = status.split(None, 2)
        if end is None or len(words) < 2 or not words[0].startswith(b"HTTP/"):
            return BadRecord(number, begin, "no HTTP answer in a response record", excerpt)
        if words[1] != b"200":
            return Skipped(number, f"HTTP status {words[1].decode('ascii', errors='replace')[:3]}")
        answer = _headers(b"\n" + rest)
        media = answer.get("content-type", "")
        content = content[end.end() :]
    name, _, options = media.partition(";")
    kind = _CONTENT_OF_MEDIA.get(name.strip().lower())
    if kind is None:
        return Skipped(number, f"media type {name.strip().lower()[:60] or 'none'}")
    if cut := headers.get("warc-truncated"):
        return Skipped(number, f"pages truncated by the crawler ({cut.lower()[:60]})")
    try:
        content = _body(content, answer, source.max_file_bytes)
    except ValueError as error:
        return BadRecord(number, begin, str(error), excerpt)
    if len(content) > source.max_file_bytes:
        return BadRecord(number, begin, f"larger than max_file_bytes ({source.max_file_bytes})")
    charset = re.search(r"""charset\s*=\s*["']?([A-Za-z0-9_:.-]+)""", options, re.IGNORECASE)
    found = decode_page(number, content, charset[1] if charset else None)
    if isinstance(found, BadRecord):
        # Bytes of the page, which may have been packed, are not those of the file.
        where = " of the page" if " at byte " in found.reason else ""
        return replace(found, byte=begin, reason=f"{found.reason}{where}")
    key = None if source.id_field is None else headers.get(source.id_field.lower(), "").strip("<>")
    if key == "":
        reason = f"no id in header `{source.id_field}`"
        return BadRecord(number, begin, reason, excerpt_of(found.text), setting="id_field")
    return Record(number, begin, found.text, key, kind, headers.get("warc-target-uri", "").strip("<>") or None)


def _headers(head: bytes) -> dict[str, str]:
    """Return names in lower case -> values; the first line is the version or status. An indented line continues a
    value."""
    found: dict[str, str] = {}
    name = ""
    for line in head.decode("utf-8", errors="replace").splitlines()[1:]:
        if line[:1] in (" ", "\t") and name:
            found[name] += f" {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            found[name] = value.strip()
    return found


def _body(content: bytes, answer: dict[str, str], limit: int) -> bytes:
    """Return the page with transfer and content encoding undone, at most `limit` + 1 bytes of it.

    Crawls that store pages decoded keep the old headers, so an encoding that does not fit counts as undone.
    """
    if "chunked" in answer.get("transfer-encoding", "").lower():
        content = _joined_chunks(content)
    encoding = answer.get("content-encoding", "identity").strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate") and content.lstrip()[:1] != b"<":
        try:
            return _inflated(content, limit + 1, ZLIB_OR_GZIP, encoding)
        except zlib.error as error:
            if encoding != "deflate":
                raise ValueError(f"damaged {encoding} content: {error}") from error
        # Some servers send what "deflate" says, and not zlib's format, which it means (RFC 9110, section 8.4.1.2).
        try:
            return _inflated(content, limit + 1, BARE, encoding)
        except zlib.error as error:
            raise ValueError(f"damaged {encoding} content: {error}") from error
    if encoding in ("br", "zstd") and content.lstrip()[:1] != b"<":
        raise ValueError(f"content encoded as {encoding}, which is not read")
    return content


def _inflated(content: bytes, limit: int, window: int, encoding: str) -> bytes:
    """Return the first `limit` bytes of what was compressed, of all members of a gzip file; `window` is zlib's."""
    decoder = zlib.decompressobj(window)
    found = decoder.decompress(content, limit)
    while decoder.unused_data.startswith(GZIP) and len(found) < limit:
        content, decoder = decoder.unused_data, zlib.decompressobj(window)
        found += decoder.decompress(content, limit - len(found))
    if len(found) < limit and content and not decoder.eof:
        raise ValueError(f"{encoding} content ends early")
    return found


def _joined_chunks(content: bytes) -> bytes:
    pieces: list[bytes] = []
    begin = 0
    while True:
        end = content.find(b"\r\n", begin)
        if end < 0 and pieces:
            raise ValueError("chunks of a page end early")
        try:
            size = int(content[begin : max(0, end)].partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            if not pieces:
                return content  # stored joined
            raise ValueError("damaged chunks of a page") from None
        if size == 0:
            return b"".join(pieces)
        pieces.append(content[end + 2 : end + 2 + size])
        begin = end + 2 + size + 2
