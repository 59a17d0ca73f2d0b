"""WARC (ISO 28500): crawled pages (`response`, `resource`) and extracted text (`conversion`) are records.

Other kinds of records, answers other than 200, and media that hold no text are passed over and counted. Framing is
read here and not by a library: those that were measured end a file at the first damaged header (FastWARC 2.0) or hand
out a torn record as a whole one. A record whose length does not fit is rejected alone, and reading goes on at the next
header.
"""

import re
import zlib
from collections.abc import Iterator

from tasks.sample.byte_stream import Gap, decode_page
from tasks.sample.config import Source
from tasks.sample.records import BadRecord, Record, Skipped, excerpt_of

_HEADER_BYTES = 1 << 16

_NEXT = re.compile(rb"(?:^|\n)(WARC/1\.[01]\r?\n)")

_END_OF_HEADER = re.compile(rb"\r?\n\r?\n")

_CONTENT_OF_MEDIA = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
    "text/markdown": "markdown",
}

_WITH_TEXT = frozenset({"response", "resource", "conversion"})

Found = Record | BadRecord | Skipped


class _Tape:
    """The bytes between two gaps, of which only what is being looked at is held."""

    def __init__(self, blocks: Iterator[bytes | Gap], position: int) -> None:
        self._blocks = blocks
        self.held = bytearray()
        self.position = position
        self.end: Gap | None = None
        self.at_end = False

    def fill(self, size: int) -> bool:
        """Hold at least `size` bytes; False where fewer are left."""
        while len(self.held) < size and not self.at_end:
            block = next(self._blocks, None)
            if block is None or isinstance(block, Gap):
                self.at_end, self.end = True, block
            else:
                self.held += block
        return len(self.held) >= size

    def drop(self, size: int) -> bool:
        """Pass over `size` bytes without holding them all; False where fewer are left."""
        while size > len(self.held):
            size -= len(self.held)
            self.position += len(self.held)
            self.held.clear()
            if not self.fill(1):
                return False
        del self.held[:size]
        self.position += size
        return True

    def skip_line_ends(self) -> None:
        while self.fill(1) and self.held[0] in b"\r\n":
            self.drop(1)

    def seek_header(self) -> bool:
        """Pass over bytes up to the next header; False where there is none."""
        while True:
            self.fill(_HEADER_BYTES)
            if match := _NEXT.search(self.held):
                return self.drop(match.start(1))
            if self.at_end:
                self.drop(len(self.held))
                return False
            self.drop(len(self.held) - 32)


def warc_records(blocks: Iterator[bytes | Gap], source: Source) -> Iterator[Found]:
    """Every record of an archive, numbered from 0 with the byte where it begins (after decompression)."""
    number = position = 0
    while True:
        tape = _Tape(blocks, position)
        for found in _between_gaps(tape, source, number):
            number = found.number + 1
            yield found
        position = tape.position
        if tape.end is None:
            return
        yield BadRecord(number, position, tape.end.reason)
        number += 1


def _between_gaps(tape: _Tape, source: Source, number: int) -> Iterator[Found]:
    while True:
        tape.skip_line_ends()
        if not tape.fill(1):
            return
        begin = tape.position
        tape.fill(_HEADER_BYTES)
        if not _NEXT.match(tape.held):
            yield BadRecord(
                number, begin, "no WARC header where a record should begin", excerpt_of(bytes(tape.held[:400]))
            )
            number += 1
            if not tape.seek_header():
                return
            continue
        found = _record(tape, source, number, begin)
        if found is None:
            return  # Torn by the gap behind it, which is told there.
        yield found
        number += 1
        if isinstance(found, BadRecord) and not found.reason.startswith("larger") and not tape.seek_header():
            return


def _record(tape: _Tape, source: Source, number: int, begin: int) -> Found | None:
    """The record that begins here; a bad one leaves the tape behind its header, from where the next is searched."""
    end = _END_OF_HEADER.search(tape.held)
    if end is None:
        if tape.end is not None:
            tape.drop(len(tape.held))
            return None
        excerpt = excerpt_of(bytes(tape.held[:400]))
        tape.drop(len("WARC/1.0"))
        return BadRecord(number, begin, "header without an end", excerpt)
    head = bytes(tape.held[: end.end()])
    headers = _headers(head)
    tape.drop(len(head))
    kind, length = headers.get("warc-type", "").lower(), headers.get("content-length", "")
    if not re.fullmatch("[0-9]{1,18}", length):
        return BadRecord(number, begin, f"no Content-Length but {length!r}", excerpt_of(head))
    size = int(length)
    if kind not in _WITH_TEXT or size > source.max_file_bytes:
        return _unread(tape, source, number, begin, kind, size, head)
    if not tape.fill(size):
        if tape.end is not None:
            tape.drop(len(tape.held))
            return None
        return BadRecord(number, begin, f"record ends early: {len(tape.held)} of {size} bytes", excerpt_of(head))
    tape.fill(size + 1)
    if tape.held[size : size + 1] not in (b"", b"\r", b"\n"):
        return BadRecord(number, begin, f"Content-Length {size} ends in the middle of a line", excerpt_of(head))
    content = bytes(tape.held[:size])
    tape.drop(size)
    return _page(number, begin, headers, content, source)


def _unread(tape: _Tape, source: Source, number: int, begin: int, kind: str, size: int, head: bytes) -> Found | None:
    if not tape.drop(size):
        if tape.end is not None:
            return None
        return BadRecord(number, begin, f"record ends early: its {size} bytes are not there", excerpt_of(head))
    if kind in _WITH_TEXT:
        return BadRecord(number, begin, f"larger than max_file_bytes ({source.max_file_bytes})", excerpt_of(head))
    return Skipped(number, f"WARC records of type {kind or 'none'}")


def _page(number: int, begin: int, headers: dict[str, str], content: bytes, source: Source) -> Found:
    media = headers.get("content-type", "")
    if headers["warc-type"].lower() != "conversion" and media.lower().startswith("application/http"):
        end = _END_OF_HEADER.search(content)
        status, _, rest = (content[: end.end()] if end else content).partition(b"\n")
        words = status.split(None, 2)
        if end is None or len(words) < 2 or not words[0].startswith(b"HTTP/"):
            return BadRecord(number, begin, "no HTTP answer in a response record", excerpt_of(content[:400]))
        if words[1] != b"200":
            return Skipped(number, f"HTTP status {words[1].decode('ascii', errors='replace')[:3]}")
        answer = _headers(b"\n" + rest)
        media = answer.get("content-type", "")
        try:
            content = _body(content[end.end() :], answer, source.max_file_bytes)
        except ValueError as error:
            return BadRecord(number, begin, str(error), excerpt_of(content[:400]))
        if len(content) > source.max_file_bytes:
            return BadRecord(number, begin, f"larger than max_file_bytes ({source.max_file_bytes})")
    name, _, options = media.partition(";")
    kind = _CONTENT_OF_MEDIA.get(name.strip().lower())
    if kind is None:
        return Skipped(number, f"media type {name.strip().lower()[:60] or 'none'}")
    charset = re.search(r"""charset\s*=\s*["']?([A-Za-z0-9_:.-]+)""", options, re.IGNORECASE)
    found = decode_page(number, begin, content, charset[1] if charset else None)
    if isinstance(found, BadRecord):
        return found
    key = None if source.id_field is None else headers.get(source.id_field.lower(), "").strip("<>")
    if key == "":
        reason = f"no id in header `{source.id_field}`"
        return BadRecord(number, begin, reason, excerpt_of(found.text), setting="id_field")
    return Record(number, begin, found.text, key, kind, headers.get("warc-target-uri", "").strip("<>") or None)


def _headers(head: bytes) -> dict[str, str]:
    """Names in lower case -> values; the first line is the version or status. A line that begins blank goes on."""
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
    """The page behind transfer and content encoding, at most `limit` bytes and one of it.

    Crawls that store pages unpacked keep the old headers, so that an encoding that does not fit is taken as undone.
    """
    if "chunked" in answer.get("transfer-encoding", "").lower():
        content = _joined_chunks(content)
    encoding = answer.get("content-encoding", "identity").strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate") and content.lstrip()[:1] != b"<":
        try:
            return zlib.decompressobj(wbits=47).decompress(content, limit + 1)
        except zlib.error as error:
            raise ValueError(f"damaged {encoding} content: {error}") from error
    if encoding in ("br", "zstd") and content.lstrip()[:1] != b"<":
        raise ValueError(f"content encoded as {encoding}, which is not read")
    return content


def _joined_chunks(content: bytes) -> bytes:
    pieces: list[bytes] = []
    begin = 0
    while True:
        end = content.find(b"\r\n", begin)
        if end < 0:
            return b"".join(pieces) or content  # Without chunks at all, it was stored joined.
        try:
            size = int(content[begin:end].partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            if not pieces:
                return content  # Stored without its chunks.
            raise ValueError("damaged chunks of a page") from None
        if size == 0:
            break
        pieces.append(content[end + 2 : end + 2 + size])
        begin = end + 2 + size + 2
    return b"".join(pieces)
