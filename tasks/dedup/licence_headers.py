"""Where a text begins behind its licence header, which says nothing about whether two source files are copies.

Dozens of short files of one project share a header that is longer than they are. So the header is set aside where texts
are compared; the documents keep it. It is found in the text alone: comments at the beginning, up to the last run of
comment lines or block comment that names a copyright or a licence. Where no word follows, the whole text counts.
"""

import numpy as np

from model.kernels import kernel

_LINE_COMMENTS = ("#", "//", "--", ";", "%", "!", "<?")
_BLOCK_COMMENTS = (
    ("--[[", "]]"), ("/*", "*/"), ("<!--", "-->"), ("(*", "*)"), ("{-", "-}"), ('"""', '"""'), ("'''", "'''"),
    ("<#", "#>"),
)  # fmt: skip
_LICENCE_WORDS = ("copyright", "license", "licence", "spdx")

_NO_COMMENT = -1


def _padded(words: tuple[str, ...]) -> np.ndarray:
    """Return words as a (words, longest) matrix of bytes, zeros behind their ends."""
    rows = np.zeros((len(words), max(map(len, words)) + 1), np.uint8)
    for row, word in zip(rows, words, strict=True):
        row[: len(word)] = np.frombuffer(word.encode(), np.uint8)
    return rows


_LINES = _padded(_LINE_COMMENTS)
_OPENINGS = _padded(tuple(opening for opening, _ in _BLOCK_COMMENTS))
_CLOSINGS = _padded(tuple(closing for _, closing in _BLOCK_COMMENTS))
_WORDS = _padded(_LICENCE_WORDS)


@kernel
def body_start(data, start, end):
    """Return where the text data[start:end] begins behind its licence header; `start` where it has none."""
    position = body = start
    # Openings without a closing in the rest of the text, which is searched once for each.
    is_unclosed = np.zeros(len(_OPENINGS), np.bool_)
    while True:
        while position < end and _is_blank(data[position]):
            position += 1
        block_end = _end_of_comments(data, position, end, is_unclosed)
        if block_end == _NO_COMMENT:
            break
        if _has_licence_word(data, position, block_end):
            body = block_end
        position = block_end
    for index in range(body, end):
        byte = data[index] | 0x20
        if data[index] >= 0x80 or ord("a") <= byte <= ord("z") or ord("0") <= data[index] <= ord("9"):
            return body
    return start


@kernel
def _end_of_comments(data, position, end, is_unclosed):
    """Return where the block comment, or the run of comment lines, at a position ends; _NO_COMMENT for none."""
    for kind in range(len(_OPENINGS)):
        size = _match(data, position, end, _OPENINGS[kind])
        if size and not is_unclosed[kind]:
            index = position + size
            while index < end:
                closing = _match(data, index, end, _CLOSINGS[kind])
                if closing:
                    return index + closing
                index += 1
            is_unclosed[kind] = True
    found = _NO_COMMENT
    while _is_comment_line(data, position, end):
        while position < end and data[position] != ord("\n"):
            position += 1
        found = position
        position += 1
        while position < end and (data[position] == ord(" ") or data[position] == ord("\t")):
            position += 1
    return found


@kernel
def _is_comment_line(data, position, end):
    is_comment = False
    for kind in range(len(_LINES)):
        is_comment |= _match(data, position, end, _LINES[kind]) > 0
    return is_comment


@kernel
def _has_licence_word(data, position, end):
    for index in range(position, end):
        for word in range(len(_WORDS)):
            if data[index] | 0x20 == _WORDS[word, 0] and _match(data, index, end, _WORDS[word]):
                return True
    return False


@kernel
def _match(data, position, end, word):
    """Return the size of a word (zeros behind it) that is at a position, in any case; 0 where it is not."""
    size = 0
    while word[size] != 0:
        if position + size >= end:
            return 0
        byte = data[position + size]
        if ord("A") <= byte <= ord("Z"):
            byte |= 0x20
        if byte != word[size]:
            return 0
        size += 1
    return size


@kernel
def _is_blank(byte):
    return byte == ord(" ") or ord("\t") <= byte <= ord("\r")
