"""How much text a source's files hold, without reading them all: bytes of text for a stored byte, from some beginnings.

Compression shrinks text and the fields around it add to it; what a stored byte yields is measured by the readers
themselves, on the first stretch of files spread evenly over the source.
"""

from tasks.sample.config import Source
from tasks.sample.discovery import InputFile, SourceFiles
from tasks.sample.readers import read_records
from tasks.sample.records import Record

MOST_FILES = 8
STRETCH_BYTES = 256 * 1024
"""Stored bytes looked at in each of them."""
LONGEST_LOOK = 256 * 1024**2
"""Stored bytes without a record, and unpacked bytes, after which a look at a file ends."""
_AS_STORED = frozenset({"text", "markdown", "html", "code"})


def text_bytes(listing: SourceFiles) -> int:
    """Estimated UTF-8 bytes of text in all files of the source; exact where files are plain text.

    Files that will be rejected hold none: the largest are looked at one by one, so that none of them is taken for as
    full as the others.
    """
    most = listing.source.max_file_bytes
    plain = sum(max(0, file.size) for file in listing.files if _is_plain(file) and file.size <= most)
    wrapped = [file for file in listing.files if not _is_plain(file) and file.size > 0]
    by_size = sorted(wrapped, key=lambda file: file.size, reverse=True)
    largest = {id(file) for file in by_size[:MOST_FILES]}
    text = sum(_text_of([file], listing) for file in wrapped if id(file) in largest)
    return plain + text + _text_of([file for file in wrapped if id(file) not in largest], listing)


def _text_of(files: list[InputFile], listing: SourceFiles) -> int:
    """Text in all of `files`, from the beginnings of some."""
    text = stored = 0
    count = min(MOST_FILES, len(files))
    for file in (files[number * len(files) // count] for number in range(count)):
        stretch_text, stretch_stored = _stretch(file, listing.source)
        text += stretch_text
        stored += stretch_stored
    return round(text * sum(file.size for file in files) / stored) if stored else 0


def _is_plain(file: InputFile) -> bool:
    return file.format in _AS_STORED and file.compression is None


class _Enough(Exception):
    """No record for so long that the file counts as it was read."""


def _stretch(file: InputFile, source: Source) -> tuple[int, int]:
    """(bytes of text, stored bytes they came from) at the beginning of a file.

    A reader announces a block before it gives the block's records, so that text counts up to the last announcement
    unless the file ends.
    """
    text = announced = found_at = 0
    settled = (0, 0)
    if file.compression is not None:
        source = source.model_copy(update={"max_unpacked_bytes": min(LONGEST_LOOK, source.max_unpacked_bytes)})

    def hear(count: int) -> None:
        nonlocal announced, settled
        settled = (text, announced)
        announced += count
        if announced - found_at > LONGEST_LOOK:
            raise _Enough

    try:
        for found in read_records(file, source, 0, hear):
            found_at = announced
            if isinstance(found, Record):
                text += len(found.text) if found.text.isascii() else len(found.text.encode())
            if settled[1] >= STRETCH_BYTES:
                return settled
    except _Enough:
        pass
    return text, announced
