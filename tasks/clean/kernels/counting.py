"""One pass over the UTF-8 bytes of documents that counts what the rules measure.

Besides the counts it writes the hash and length of each unit (word, or character of an unsegmented script), of each
line and of each paragraph; `repetition.py` finds repetitions among them. Hashes have 64 bits, so that two different
runs of words are taken for one in less than one of 10^9 documents. Stop words of two dozen languages are found in the
same pass, by a hash table.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.kernels import kernel
from tasks.clean.kernels import text_counts as tc
from tasks.clean.kernels.characters import (
    BULLET,
    CHINESE_JAPANESE_UNIT,
    FULL_STOP,
    LETTER,
    LINE_END,
    MARK,
    PLAIN_LETTER,
    SENTENCE_CLOSER,
    UNSEGMENTED,
    UNSEGMENTED_BREAK,
    WHITESPACE,
    flags_of,
)
from tasks.common.utf8 import FNV_BASIS, GOLDEN, decode, finish_word, has_word

UNIT_ROW, LINE_ROW, PARAGRAPH_ROW = range(3)
"""Rows of `hashes`, `lengths` and `firsts`."""

SHORT_LINE = 30
"""Characters up to which a line is short (FineWeb)."""

_WIDTH_OF_UNSEGMENTED = 3
_LOREM_IPSUM = np.frombuffer(b"lorem ipsum", np.uint8).copy()

_RARE_IN_LOREM_IPSUM = 7
"""Offset of its `p`, a rarer letter than its first; the kernel looks for the phrase at each `p`."""

_SHIFT = np.uint64(32)
_HORIZONTAL_ELLIPSIS = 0x2026
_EMPTY = -1
_TO_64_BITS = (1 << 64) - 1


@kernel
def count_texts(data, begins, ends, wanted, table, stop_keys, stop_words, longest_stop_word, counts, seen, hashes,
                lengths, firsts):  # fmt: skip
    """Fill a row of `counts` for each wanted text, and mark the stop words in it in a row of `seen` (bits of uint64).

    The rows of `hashes` and `lengths` hold the units, lines and paragraphs of all texts, those of a text from
    `firsts[row, text]` on. A line counts without the whitespace around it, a blank one not at all; paragraphs are
    separated by blank lines. Dashes of dialogue (`—`, `–`, `--`) are no bullets.
    """
    units = lines = paragraphs = 0
    for text in range(len(begins)):
        firsts[UNIT_ROW, text], firsts[LINE_ROW, text], firsts[PARAGRAPH_ROW, text] = units, lines, paragraphs
        if not wanted[text]:
            continue
        for unsegmented in (False, True):
            if _count(data, begins[text], ends[text], table, stop_keys, stop_words, longest_stop_word, counts[text],
                      seen[text], hashes, lengths, firsts[:, text], unsegmented):  # fmt: skip
                break
        units += counts[text, tc.UNITS]
        lines += counts[text, tc.LINES]
        paragraphs += counts[text, tc.PARAGRAPHS]


@kernel
def _count(data, begin, end, table, stop_keys, stop_words, longest_stop_word, counts, seen, hashes, lengths, firsts,
           unsegmented):  # fmt: skip
    """Count one text; returns False at the first character of an unsegmented script unless `unsegmented`."""
    seen[:] = 0
    stop_mask = np.uint64(len(stop_keys) - 1)
    first_unit, first_line, first_paragraph = firsts[UNIT_ROW], firsts[LINE_ROW], firsts[PARAGRAPH_ROW]
    unit, line, paragraph = first_unit, first_line, first_paragraph
    chinese_japanese = south_east_asian = alphabetic = unit_characters = 0
    hash_signs = ellipses = braces = lorem = line_feeds = sentences = 0
    bullet_lines = ellipsis_lines = short_lines = finished_lines = line_characters = paragraph_characters = 0
    unit_state = line_state = paragraph_state = line_saved = paragraph_saved = FNV_BASIS
    unit_length = unit_width = line_length = line_width = line_length_saved = line_width_saved = 0
    paragraph_length = paragraph_length_saved = 0
    in_unit = is_single = has_letter = in_line = False
    first_flags = last_flags = np.int64(0)
    dots = last_dots = 0
    last_codepoint = np.int64(0)
    may_end_sentence = is_dash = False
    position = begin
    while position <= end:
        if position < end:
            codepoint, following = decode(data, position)
            flags = flags_of(codepoint, table)
        else:
            codepoint, following, flags = np.int64(10), position + 1, np.int64(WHITESPACE)
        is_unsegmented = flags & UNSEGMENTED != 0
        if is_unsegmented and not unsegmented:
            return False
        is_whitespace = flags & WHITESPACE != 0
        # Units
        if in_unit:
            if is_single:
                ends = flags & MARK == 0
            else:
                ends = is_whitespace or is_unsegmented or (unsegmented and flags & UNSEGMENTED_BREAK != 0)
            if ends:
                key = mix_hash(unit_state)
                hashes[UNIT_ROW, unit] = key
                lengths[UNIT_ROW, unit] = unit_length
                unit += 1
                unit_characters += unit_length
                alphabetic += has_letter
                in_unit = False
                if unit_length <= longest_stop_word:
                    slot = key & stop_mask
                    while stop_words[slot] >= 0:
                        if stop_keys[slot] == key:
                            seen[stop_words[slot] >> 6] |= np.uint64(1) << np.uint64(stop_words[slot] & 63)
                            break
                        slot = (slot + np.uint64(1)) & stop_mask
                line_state = line_saved = (line_state ^ key) * GOLDEN
                line_length = line_length_saved = line_length + unit_length
                line_width = line_width_saved = line_width + unit_width
                paragraph_state = paragraph_saved = (paragraph_state ^ key) * GOLDEN
                paragraph_length = paragraph_length_saved = paragraph_length + unit_length
        is_outside = False
        if not in_unit and not is_whitespace:
            if unsegmented and flags & UNSEGMENTED_BREAK != 0 and not is_unsegmented:
                is_outside = True
            else:
                in_unit = True
                is_single = is_unsegmented
                has_letter = False
                unit_state = FNV_BASIS
                unit_length = unit_width = 0
                if is_unsegmented:
                    if flags & CHINESE_JAPANESE_UNIT:
                        chinese_japanese += 1
                    else:
                        south_east_asian += 1
        if in_unit:
            unit_state = (unit_state ^ np.uint64(codepoint)) * GOLDEN
            unit_length += 1
            unit_width += _WIDTH_OF_UNSEGMENTED if is_unsegmented else 1
            has_letter |= flags & LETTER != 0
        if (flags & PLAIN_LETTER or codepoint == ord(" ")) and dots == 0 and not may_end_sentence:
            # Most characters: none of what is looked for below, and no line feed.
            if not is_whitespace and not in_line:
                in_line = True
                first_flags = flags
                is_dash = False
        else:
            # Sentences
            if flags & FULL_STOP:
                sentences += 1
            if codepoint == ord(".") or codepoint == ord("!") or codepoint == ord("?"):
                may_end_sentence = True
            elif may_end_sentence and flags & SENTENCE_CLOSER == 0:
                sentences += is_whitespace
                may_end_sentence = False
            # Single characters
            if codepoint == ord("."):
                dots += 1
            else:
                ellipses += dots // 3
                dots = 0
            if codepoint == ord("#"):
                hash_signs += 1
            elif codepoint == ord("{"):
                braces += 1
            elif codepoint == _HORIZONTAL_ELLIPSIS:
                ellipses += 1
            elif codepoint == ord("p") or codepoint == ord("P"):
                lorem += has_word(data, begin, position - _RARE_IN_LOREM_IPSUM, end, _LOREM_IPSUM)
            # Lines
            if codepoint == ord("\n"):
                line_feeds += position < end
                if line_length_saved:
                    hashes[LINE_ROW, line] = mix_hash(line_saved)
                    lengths[LINE_ROW, line] = line_length_saved
                    line += 1
                    line_characters += line_length_saved
                    short_lines += line_width_saved <= SHORT_LINE
                    bullet_lines += first_flags & BULLET != 0 and not is_dash
                    finished_lines += last_flags & LINE_END != 0
                    ellipsis_lines += last_dots >= 3 or last_codepoint == _HORIZONTAL_ELLIPSIS
                if paragraph_length_saved and (not line_length_saved or position == end):
                    hashes[PARAGRAPH_ROW, paragraph] = mix_hash(paragraph_saved)
                    lengths[PARAGRAPH_ROW, paragraph] = paragraph_length_saved
                    paragraph += 1
                    paragraph_characters += paragraph_length_saved
                    paragraph_state = FNV_BASIS
                    paragraph_length = paragraph_length_saved = 0
                line_state = FNV_BASIS
                line_length = line_width = line_length_saved = line_width_saved = 0
                in_line = False
            elif not is_whitespace and not in_line:
                in_line = True
                first_flags = flags
                is_dash = codepoint == ord("-") and following < end and data[following] == ord("-")
        if is_whitespace or is_outside:
            if codepoint != ord("\n") and in_line:
                line_state = (line_state ^ np.uint64(codepoint)) * GOLDEN
                line_length += 1
                line_width += 1
            if paragraph_length or is_outside:
                paragraph_state = (paragraph_state ^ np.uint64(codepoint)) * GOLDEN
                paragraph_length += 1
            if is_outside:
                line_saved, line_length_saved, line_width_saved = line_state, line_length, line_width
                paragraph_saved, paragraph_length_saved = paragraph_state, paragraph_length
        if not is_whitespace:
            if flags & PLAIN_LETTER and not is_single:
                # Most of a text is here: letters that only make the word longer.
                while following < end:
                    if data[following] < 0x80:
                        next_codepoint, after = np.int64(data[following]), following + 1
                    elif data[following] < 0xE0:
                        next_codepoint, after = decode(data, following)
                    else:
                        break
                    if table[next_codepoint] & PLAIN_LETTER == 0:
                        break
                    codepoint, following = next_codepoint, after
                    unit_state = (unit_state ^ np.uint64(codepoint)) * GOLDEN
                    unit_length += 1
                    unit_width += 1
            last_flags, last_dots, last_codepoint = flags, dots, codepoint
        position = following
    counts[tc.UNITS] = unit - first_unit
    counts[tc.CHINESE_JAPANESE_UNITS] = chinese_japanese
    counts[tc.SOUTH_EAST_ASIAN_UNITS] = south_east_asian
    counts[tc.UNIT_CHARACTERS] = unit_characters
    counts[tc.ALPHABETIC_UNITS] = alphabetic
    counts[tc.HASHES] = hash_signs
    counts[tc.ELLIPSES] = ellipses
    counts[tc.LINES] = line - first_line
    counts[tc.BULLET_LINES] = bullet_lines
    counts[tc.ELLIPSIS_LINES] = ellipsis_lines
    counts[tc.LINE_CHARACTERS] = line_characters
    counts[tc.SHORT_LINES] = short_lines
    counts[tc.FINISHED_LINES] = finished_lines
    counts[tc.LINE_FEEDS] = line_feeds
    counts[tc.OPENING_BRACES] = braces
    counts[tc.SENTENCES] = sentences
    counts[tc.PARAGRAPHS] = paragraph - first_paragraph
    counts[tc.PARAGRAPH_CHARACTERS] = paragraph_characters
    counts[tc.LOREM_IPSUM] = lorem
    return True


@kernel
def mix_hash(state):
    """Spread the last characters of a running hash over all 64 bits."""
    state = finish_word(state)
    return state ^ (state >> _SHIFT)


def max_units(size: int, texts: int) -> int:
    """Return the most units that so many texts of `size` bytes together may have.

    Between two units there is a byte at least, or one of them is a character of several bytes.
    """
    return size // 2 + texts + 1


@dataclass(frozen=True)
class StopWords:
    """Stop words of all languages, as a hash table.

    `keys` and `numbers` are an open-addressed table, word's hash to its number; `lists` is (languages, words) in bits
    of uint64, `rows` the row of each language in it; `longest` is the characters of the longest word.
    """

    keys: np.ndarray
    numbers: np.ndarray
    lists: np.ndarray
    rows: dict[str, int]
    longest: int


@functools.cache
def stop_words() -> StopWords:
    """Load the lists of `stop_words.tsv`; a word counts in lower case, capitalised, or in upper case."""
    lines = Path(__file__).with_name("stop_words.tsv").read_text("utf-8").splitlines()
    by_language = {language: words.split() for language, words in (line.split("\t") for line in lines if line)}
    numbers = {word: 0 for words in by_language.values() for word in words}
    numbers = {word: number for number, word in enumerate(numbers)}
    lists = np.zeros((len(by_language), -(-len(numbers) // 64)), np.uint64)
    for row, words in enumerate(by_language.values()):
        for word in words:
            lists[row, numbers[word] >> 6] |= np.uint64(1 << (numbers[word] & 63))
    size = 1 << (8 * len(numbers)).bit_length()
    keys = np.zeros(size, np.uint64)
    table = np.full(size, _EMPTY, np.int16)
    for word, number in numbers.items():
        for form in dict.fromkeys((word, word.capitalize(), word.upper())):
            key = word_hash(form)
            slot = key & (size - 1)
            while table[slot] != _EMPTY and int(keys[slot]) != key:
                slot = (slot + 1) & (size - 1)
            keys[slot], table[slot] = key, number
    rows = {language: row for row, language in enumerate(by_language)}
    return StopWords(keys, table, lists, rows, max(map(len, numbers)))


def word_hash(word: str) -> int:
    """Return the hash that `count_texts` gives to a unit."""
    state = int(FNV_BASIS)
    for character in word:
        state = ((state ^ ord(character)) * int(GOLDEN)) & _TO_64_BITS
    return int(mix_hash(np.uint64(state)))
