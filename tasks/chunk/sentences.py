"""Sentence boundaries in UTF-8 bytes: rules that need no model and no knowledge of the language.

A sentence ends after . ! ? … (and the marks of Arabic, Devanagari, Armenian and Ethiopic) with the quotes and brackets
that close it, where whitespace or the text's end follows; after 。！？ and their half-width forms at once, since
Chinese and Japanese have no spaces; and at a line end, unless a lowercase letter begins the next line, as in a wrapped
paragraph. A full stop does not end a sentence before a lowercase letter or more digits, after a single letter ("J.
R."), after a number that begins its line ("1. "), and after common abbreviations. Whitespace belongs to the sentence
that it precedes.
"""

import numpy as np

from model.kernels import kernel
from tasks.common.utf8 import byte_set

_CLOSERS = byte_set("\"')]}*_")

_ABBREVIATED_WORDS = (
    "mr mrs ms dr prof st jr sr vs etc cf eg ie fig vol pp al inc ltd corp gen col lt sgt capt rev hon"
    " bzw usw nr bd hrsg str sog ca evtl ggf sig sigg dott ing avv mme mlle"
    " гг ул руб тыс млн млрд см др пр напр св акад проф"
)
_MAX_WORD_BYTES = 16
"""Bytes of the longest word that is looked up among the abbreviations."""


def _hash_word(word: bytes) -> int:
    """Return a word as one number, FNV-1a of 64 bits."""
    number = 0xCBF29CE484222325
    for byte in word:
        number = ((number ^ byte) * 0x100000001B3) % 2**64
    return number


ABBREVIATION_HASHES = np.sort(
    np.array([_hash_word(word.encode()) for word in _ABBREVIATED_WORDS.split()], dtype=np.uint64)
)


_MAY_END = np.isin(np.arange(256), [0x0A, 0x21, 0x2E, 0x3F, 0xD6, 0xD8, 0xDB, 0xE0, 0xE1, 0xE2, 0xE3, 0xEF])
"""First bytes of marks that end sentences: English books take 2 ns a byte if only these are examined, 26 if all are."""


def sentence_borders(
    text: np.ndarray, offsets: np.ndarray, begins: np.ndarray, lengths: np.ndarray, borders: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (ends i64[sentences], sentences of each document i64[D]) of D documents, as positions in a block's tokens.

    `text` u8 are the documents' bytes, document d from offsets[d] to offsets[d + 1]; its tokens are [begins[d],
    begins[d] + lengths[d]), token i covering bytes [borders[i], borders[i + 1]) counted through the block. A token on
    both sides of an end belongs to the sentence that ends. The last end is the document's.
    """
    ends = np.empty(int(lengths.sum()), dtype=np.int64)
    counts = np.zeros(len(lengths), dtype=np.int64)
    found = _find_ends(text, offsets, begins, lengths, borders, ABBREVIATION_HASHES, ends, counts, _MAY_END)
    return ends[:found].copy(), counts


@kernel
def _find_ends(text, offsets, begins, lengths, borders, abbreviations, ends, counts, may_end):
    found = 0
    for document in range(len(lengths)):
        if not lengths[document]:
            continue
        first, last = begins[document], begins[document] + lengths[document]
        begin, stop = offsets[document], offsets[document + 1]
        base = borders[first]
        token = previous = first
        position = begin
        has_text = False  # whether anything but whitespace follows the last end
        while position < stop:
            has_text = has_text or text[position] > ord(" ")
            end = _sentence_end(text, begin, stop, position, abbreviations) if may_end[text[position]] else 0
            if end <= 0 or not has_text:
                position = max(position + 1, -end)
                continue
            while token < last and borders[token] - base < end - begin:
                token += 1
            if previous < token < last:
                ends[found] = token
                found += 1
                counts[document] += 1
                previous = token
                has_text = False
            position = end if end > position else position + 1
        if counts[document] and not has_text:
            ends[found - 1] = last  # whitespace at the end is no sentence of its own
            continue
        ends[found] = last
        found += 1
        counts[document] += 1
    return found


@kernel
def _sentence_end(text: np.ndarray, begin: int, stop: int, position: int, abbreviations: np.ndarray) -> int:
    """Return where the sentence ends that the mark at `position` ends; 0 where none ends here, or minus the position
    before which none ends."""
    sign = text[position]
    if sign == ord("\n"):
        after = position + 1
        while after < stop and (text[after] == ord(" ") or text[after] == ord("\t") or text[after] == ord("\r")):
            after += 1
        return 0 if _starts_lowercase(text, after, stop) else position
    if sign == ord(".") or sign == ord("!") or sign == ord("?"):
        after = position + 1
        while after < stop and (text[after] == ord(".") or text[after] == ord("!") or text[after] == ord("?")):
            after += 1
        if sign == ord(".") and after == position + 1 and _is_abbreviation(text, begin, position, abbreviations):
            return 0
        same = position + 1
        while same < after and text[same] == sign:
            same += 1
        after = _skip_closers(text, after, stop)
        if after == stop:
            return after
        if not _is_blank(text, after, stop):
            return -after
        follows = after
        while follows < stop and text[follows] == ord(" "):
            follows += 1
        return -same if sign == ord(".") and _starts_lowercase(text, follows, stop) else after
    if sign < 0xC3:
        return 0
    size = _unspaced_terminal(text, position, stop)
    if size:
        after = position + size
        while after < stop:
            more = _unspaced_terminal(text, after, stop)
            if not more:
                break
            after += more
        return _skip_closers(text, after, stop)
    size = _spaced_terminal(text, position, stop)
    if size:
        after = _skip_closers(text, position + size, stop)
        follows = after
        while follows < stop and text[follows] == ord(" "):
            follows += 1
        if after == stop or (_is_blank(text, after, stop) and not _starts_lowercase(text, follows, stop)):
            return after
    return 0


@kernel
def _unspaced_terminal(text: np.ndarray, position: int, stop: int) -> int:
    """Return the bytes of 。！？｡ or of the full-width ． at `position`, 0 for any other character."""
    if position + 3 > stop:
        return 0
    a, b, c = text[position], text[position + 1], text[position + 2]
    if a == 0xE3 and b == 0x80 and c == 0x82:
        return 3
    if a == 0xEF and ((b == 0xBC and (c == 0x81 or c == 0x9F or c == 0x8E)) or (b == 0xBD and c == 0xA1)):
        return 3
    return 0


@kernel
def _spaced_terminal(text: np.ndarray, position: int, stop: int) -> int:
    """Return the bytes of … ؟ ۔ । ॥ ։ ። at `position`, 0 for any other character."""
    a = text[position]
    b = text[position + 1] if position + 1 < stop else 0
    c = text[position + 2] if position + 2 < stop else 0
    if (a == 0xD8 and b == 0x9F) or (a == 0xDB and b == 0x94) or (a == 0xD6 and b == 0x89):
        return 2
    if a == 0xE2 and b == 0x80 and c == 0xA6:
        return 3
    if (a == 0xE0 and b == 0xA5 and (c == 0xA4 or c == 0xA5)) or (a == 0xE1 and b == 0x8D and c == 0xA2):
        return 3
    return 0


@kernel
def _skip_closers(text: np.ndarray, position: int, stop: int) -> int:
    """Return the position after the quotes, brackets and emphasis marks that close at `position`."""
    while position < stop:
        a = text[position]
        if _CLOSERS[a]:
            position += 1
            continue
        b = text[position + 1] if position + 1 < stop else 0
        c = text[position + 2] if position + 2 < stop else 0
        quote = a == 0xE2 and b == 0x80 and (c == 0x99 or c == 0x9C or c == 0x9D or c == 0xBA)  # ’ “ ” ›
        corner = (
            a == 0xE3 and b == 0x80 and (c == 0x8D or c == 0x8F or c == 0x8B or c == 0x91 or c == 0x89)
        )  # 」』》】〉
        wide = a == 0xEF and b == 0xBC and (c == 0x89 or c == 0x82 or c == 0x87)  # ） ＂ ＇
        if a == 0xC2 and b == 0xBB:  # »
            position += 2
        elif quote or corner or wide:
            position += 3
        else:
            return position
    return position


@kernel
def _is_blank(text: np.ndarray, position: int, stop: int) -> bool:
    """Return whether there is a space, a tab, a line end, a no-break or an ideographic space at `position`."""
    a = text[position]
    b = text[position + 1] if position + 1 < stop else 0
    c = text[position + 2] if position + 2 < stop else 0
    return (
        a == ord(" ")
        or (ord("\t") <= a <= ord("\r"))
        or (a == 0xC2 and b == 0xA0)
        or (a == 0xE3 and b == 0x80 and c == 0x80)
    )


@kernel
def _starts_lowercase(text: np.ndarray, position: int, stop: int) -> bool:
    """Return whether a lowercase letter follows: a to z, those of Latin-1, а to я and ё, α to ω."""
    if position >= stop:
        return False
    a = text[position]
    b = text[position + 1] if position + 1 < stop else 0
    if ord("a") <= a <= ord("z"):
        return True
    if a == 0xC3:
        return b >= 0x9F
    if a == 0xD0:
        return b >= 0xB0
    if a == 0xD1:
        return b <= 0x9F
    return (a == 0xCE and b >= 0xAC) or (a == 0xCF and b <= 0x8E)


@kernel
def _is_abbreviation(text: np.ndarray, begin: int, position: int, abbreviations: np.ndarray) -> bool:
    """Return whether the full stop at `position` follows a single letter, an abbreviation, or a number that begins its
    line."""
    first = position
    while first > begin and (text[first - 1] >= 0x80 or _is_ascii_letter(text[first - 1])):
        first -= 1
        if position - first > _MAX_WORD_BYTES:
            return False
    if first == position:
        while first > begin and ord("0") <= text[first - 1] <= ord("9"):
            first -= 1
        if first == position:
            return False
        while first > begin and (text[first - 1] == ord(" ") or text[first - 1] == ord("\t")):
            first -= 1
        return first == begin or text[first - 1] == ord("\n")
    size = position - first
    # A single letter has one byte, or two. "I" is excluded, since it ends sentences more often.
    if size == 1:
        return text[first] != ord("I")
    if size == 2 and 0xC3 <= text[first] < 0xE0:
        return True
    number = np.uint64(0xCBF29CE484222325)
    at = first
    while at < position:
        byte = np.uint64(text[at])
        if ord("A") <= text[at] <= ord("Z"):
            byte = np.uint64(text[at] + 32)
        elif text[at] == 0xD0 and at + 1 < position and 0x90 <= text[at + 1] <= 0xAF:
            # The lowercase letters of А to П have the same first byte, those of Р to Я the next.
            in_same = text[at + 1] <= 0x9F
            number = (number ^ np.uint64(0xD0 if in_same else 0xD1)) * np.uint64(0x100000001B3)
            at += 1
            byte = np.uint64(text[at] + 0x20 if in_same else text[at] - 0x20)
        number = (number ^ byte) * np.uint64(0x100000001B3)
        at += 1
    found = np.searchsorted(abbreviations, number)
    return bool(found < len(abbreviations) and abbreviations[found] == number)


@kernel
def _is_ascii_letter(byte: int) -> bool:
    return ord("A") <= byte <= ord("Z") or ord("a") <= byte <= ord("z")
