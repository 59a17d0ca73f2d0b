"""Where sentences end, in UTF-8 bytes: rules that need no model and no knowledge of the language.

A sentence ends behind . ! ? … (and the signs of Arabic, Devanagari, Armenian and Ethiopic) with the quotes and brackets
that close it, where a blank or the text's end follows; behind 。！？ and their half-width forms at once, since Chinese
and Japanese write no blanks; and at a line end, unless a small letter begins the next line, as in a wrapped paragraph.
A full stop does not end one before a small letter or a digit's continuation, behind a single letter ("J. R."), behind a
number that begins its line ("1. "), and behind common abbreviations. Blanks belong to the sentence that they precede.
"""

import numpy as np

from tasks.common.kernels import kernel

_ABBREVIATIONS = (
    "mr mrs ms dr prof st jr sr vs etc cf eg ie fig vol pp al inc ltd corp gen col lt sgt capt rev hon"
    " bzw usw nr bd hrsg str sog ca evtl ggf sig sigg dott ing avv mme mlle"
    " гг ул руб тыс млн млрд см др пр напр св акад проф"
)
_LONGEST_WORD = 16
"""Bytes of the longest word that is looked for among the abbreviations."""


def _packed(word: bytes) -> int:
    """A word as one number, FNV-1a of 64 bits."""
    number = 0xCBF29CE484222325
    for byte in word:
        number = ((number ^ byte) * 0x100000001B3) % 2**64
    return number


ABBREVIATIONS = np.sort(np.array([_packed(word.encode()) for word in _ABBREVIATIONS.split()], dtype=np.uint64))


_MAY_END = np.isin(np.arange(256), [0x0A, 0x21, 0x2E, 0x3F, 0xD6, 0xD8, 0xDB, 0xE0, 0xE1, 0xE2, 0xE3, 0xEF])
"""First bytes of signs that end sentences: asked at these alone, English books take 2 ns a byte, and at all 26."""


def sentence_borders(
    text: np.ndarray, offsets: np.ndarray, begins: np.ndarray, lengths: np.ndarray, borders: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(ends i64[sentences], sentences of each document i64[D]) of D documents, as places in a block's tokens.

    `text` u8 holds the documents' bytes, document d from offsets[d] to offsets[d + 1]; its tokens are
    [begins[d], begins[d] + lengths[d]), token i covering bytes [borders[i], borders[i + 1]) counted through the block.
    A token that stands on both sides of an end belongs to the sentence that ends. The last end is the document's.
    """
    ends = np.empty(int(lengths.sum()), dtype=np.int64)
    counts = np.zeros(len(lengths), dtype=np.int64)
    found = _find(text, offsets, begins, lengths, borders, ABBREVIATIONS, ends, counts, _MAY_END)
    return ends[:found].copy(), counts


@kernel
def _find(
    text: np.ndarray,
    offsets: np.ndarray,
    begins: np.ndarray,
    lengths: np.ndarray,
    borders: np.ndarray,
    abbreviations: np.ndarray,
    ends: np.ndarray,
    counts: np.ndarray,
    may_end: np.ndarray,
) -> int:
    found = 0
    for document in range(len(lengths)):
        if not lengths[document]:
            continue
        first, last = begins[document], begins[document] + lengths[document]
        begin, stop = offsets[document], offsets[document + 1]
        zero = borders[first]
        token = previous = first
        place = begin
        inked = False  # whether anything but blanks stands behind the last end
        while place < stop:
            inked = inked or text[place] > 32
            end = _end_at(text, begin, stop, place, abbreviations) if may_end[text[place]] else 0
            if not end or not inked:
                place += 1
                continue
            while token < last and borders[token] - zero < end - begin:
                token += 1
            if previous < token < last:
                ends[found] = token
                found += 1
                counts[document] += 1
                previous = token
                inked = False
            place = end if end > place else place + 1
        if counts[document] and not inked:
            ends[found - 1] = last  # blanks at the end are no sentence of their own
            continue
        ends[found] = last
        found += 1
        counts[document] += 1
    return found


@kernel
def _end_at(text: np.ndarray, begin: int, stop: int, place: int, abbreviations: np.ndarray) -> int:
    """Where the sentence ends that the sign at `place` ends, 0 where none ends here."""
    sign = text[place]
    if sign == 10:  # a line end
        after = place + 1
        while after < stop and (text[after] == 32 or text[after] == 9 or text[after] == 13):
            after += 1
        return 0 if _goes_on(text, after, stop) else place
    if sign == 46 or sign == 33 or sign == 63:  # . ! ?
        after = place + 1
        while after < stop and (text[after] == 46 or text[after] == 33 or text[after] == 63):
            after += 1
        if sign == 46 and after == place + 1 and _abbreviates(text, begin, place, abbreviations):
            return 0
        after = _behind_closers(text, after, stop)
        if after == stop:
            return after
        if not _is_blank(text, after, stop):
            return 0
        follows = after
        while follows < stop and text[follows] == 32:
            follows += 1
        return 0 if sign == 46 and _goes_on(text, follows, stop) else after
    if sign < 0xC3:
        return 0
    size = _unspaced_terminal(text, place, stop)
    if size:
        after = place + size
        while after < stop:
            more = _unspaced_terminal(text, after, stop)
            if not more:
                break
            after += more
        return _behind_closers(text, after, stop)
    size = _spaced_terminal(text, place, stop)
    if size:
        after = _behind_closers(text, place + size, stop)
        follows = after
        while follows < stop and text[follows] == 32:
            follows += 1
        if after == stop or (_is_blank(text, after, stop) and not _goes_on(text, follows, stop)):
            return after
    return 0


@kernel
def _unspaced_terminal(text: np.ndarray, place: int, stop: int) -> int:
    """Bytes of 。！？｡ or of the full-width ． at `place`, 0 where another sign stands."""
    if place + 3 > stop:
        return 0
    a, b, c = text[place], text[place + 1], text[place + 2]
    if a == 0xE3 and b == 0x80 and c == 0x82:
        return 3
    if a == 0xEF and ((b == 0xBC and (c == 0x81 or c == 0x9F or c == 0x8E)) or (b == 0xBD and c == 0xA1)):
        return 3
    return 0


@kernel
def _spaced_terminal(text: np.ndarray, place: int, stop: int) -> int:
    """Bytes of … ؟ ۔ । ॥ ։ ። at `place`, 0 where another sign stands."""
    a = text[place]
    b = text[place + 1] if place + 1 < stop else 0
    c = text[place + 2] if place + 2 < stop else 0
    if (a == 0xD8 and b == 0x9F) or (a == 0xDB and b == 0x94) or (a == 0xD6 and b == 0x89):
        return 2
    if a == 0xE2 and b == 0x80 and c == 0xA6:
        return 3
    if (a == 0xE0 and b == 0xA5 and (c == 0xA4 or c == 0xA5)) or (a == 0xE1 and b == 0x8D and c == 0xA2):
        return 3
    return 0


@kernel
def _behind_closers(text: np.ndarray, place: int, stop: int) -> int:
    """Behind the quotes, brackets and signs of emphasis that close at `place`."""
    while place < stop:
        a = text[place]
        if a == 34 or a == 39 or a == 41 or a == 93 or a == 125 or a == 42 or a == 95:  # " ' ) ] } * _
            place += 1
            continue
        b = text[place + 1] if place + 1 < stop else 0
        c = text[place + 2] if place + 2 < stop else 0
        quote = a == 0xE2 and b == 0x80 and (c == 0x99 or c == 0x9C or c == 0x9D or c == 0xBA)  # ’ “ ” ›
        corner = (
            a == 0xE3 and b == 0x80 and (c == 0x8D or c == 0x8F or c == 0x8B or c == 0x91 or c == 0x89)
        )  # 」』》】〉
        wide = a == 0xEF and b == 0xBC and (c == 0x89 or c == 0x82 or c == 0x87)  # ） ＂ ＇
        if a == 0xC2 and b == 0xBB:  # »
            place += 2
        elif quote or corner or wide:
            place += 3
        else:
            return place
    return place


@kernel
def _is_blank(text: np.ndarray, place: int, stop: int) -> bool:
    """A blank, a tab, a line end, a no-break or an ideographic blank."""
    a = text[place]
    b = text[place + 1] if place + 1 < stop else 0
    c = text[place + 2] if place + 2 < stop else 0
    return a == 32 or (9 <= a <= 13) or (a == 0xC2 and b == 0xA0) or (a == 0xE3 and b == 0x80 and c == 0x80)


@kernel
def _goes_on(text: np.ndarray, place: int, stop: int) -> bool:
    """Whether a small letter follows: a to z, those of Latin-1, а to я and ё, α to ω."""
    if place >= stop:
        return False
    a = text[place]
    b = text[place + 1] if place + 1 < stop else 0
    if 97 <= a <= 122:
        return True
    if a == 0xC3:
        return b >= 0x9F
    if a == 0xD0:
        return b >= 0xB0
    if a == 0xD1:
        return b <= 0x9F
    return (a == 0xCE and b >= 0xAC) or (a == 0xCF and b <= 0x8E)


@kernel
def _abbreviates(text: np.ndarray, begin: int, place: int, abbreviations: np.ndarray) -> bool:
    """Whether the full stop at `place` follows a single letter, an abbreviation, or a number that begins its line."""
    first = place
    while first > begin and (text[first - 1] >= 0x80 or _is_ascii_letter(text[first - 1])):
        first -= 1
        if place - first > _LONGEST_WORD:
            return False
    if first == place:
        while first > begin and 48 <= text[first - 1] <= 57:
            first -= 1
        if first == place:
            return False
        while first > begin and (text[first - 1] == 32 or text[first - 1] == 9):
            first -= 1
        return first == begin or text[first - 1] == 10
    size = place - first
    # One letter: one byte, or two of which the first begins a letter of two bytes. "I" ends sentences more often.
    if size == 1:
        return text[first] != 73
    if size == 2 and 0xC3 <= text[first] < 0xE0:
        return True
    number = np.uint64(0xCBF29CE484222325)
    at = first
    while at < place:
        byte = np.uint64(text[at])
        if 65 <= text[at] <= 90:
            byte = np.uint64(text[at] + 32)
        elif text[at] == 0xD0 and at + 1 < place and 0x90 <= text[at + 1] <= 0x9F:  # А to П: one letter on
            number = (number ^ np.uint64(0xD0)) * np.uint64(0x100000001B3)
            at += 1
            byte = np.uint64(text[at] + 0x20)
        number = (number ^ byte) * np.uint64(0x100000001B3)
        at += 1
    found = np.searchsorted(abbreviations, number)
    return bool(found < len(abbreviations) and abbreviations[found] == number)


@kernel
def _is_ascii_letter(byte: int) -> bool:
    return 65 <= byte <= 90 or 97 <= byte <= 122
