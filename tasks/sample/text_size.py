"""How much text a source's files hold, without reading them all: bytes of text for a stored byte, from some beginnings.

Compression shrinks text and the fields around it add to it; what a stored byte yields is measured by the readers
themselves, on the first stretch of files spread evenly over the source.
"""

from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.readers import read_records
from tasks.sample.records import Record

MOST_FILES = 8
STRETCH_BYTES = 256 * 1024
"""Stored bytes looked at in each of them."""
_AS_STORED = frozenset({"text", "markdown", "html", "code"})


def text_bytes(listing: SourceFiles) -> int:
    """Estimated UTF-8 bytes of text in all files of the source; exact where files are plain text."""
    plain = sum(max(0, file.size) for file in listing.files if _is_plain(file))
    wrapped = [file for file in listing.files if not _is_plain(file) and file.size > 0]
    if not wrapped:
        return plain
    text = stored = 0
    count = min(MOST_FILES, len(wrapped))
    for file in (wrapped[number * len(wrapped) // count] for number in range(count)):
        stretch_text, stretch_stored = _stretch(file, listing)
        text += stretch_text
        stored += stretch_stored
    return plain + (round(text * sum(file.size for file in wrapped) / stored) if stored else 0)


def _is_plain(file: InputFile) -> bool:
    return file.format in _AS_STORED and file.compression is None


def _stretch(file: InputFile, listing: SourceFiles) -> tuple[int, int]:
    """(bytes of text, stored bytes they came from) at the beginning of a file.

    A reader announces a block before it gives the block's records, so that text counts up to the last announcement
    unless the file ends.
    """
    text = announced = 0
    settled = (0, 0)

    def hear(count: int) -> None:
        nonlocal announced, settled
        settled = (text, announced)
        announced += count

    for found in read_records(file, listing.source, 0, hear):
        if isinstance(found, Record):
            text += len(found.text) if found.text.isascii() else len(found.text.encode())
        if settled[1] >= STRETCH_BYTES:
            return settled
    return text, announced
