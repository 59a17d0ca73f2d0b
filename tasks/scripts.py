"""Scripts written without blanks between words, where one character counts as one word.

Word counts, shingles and n-grams need this in every stage: a Chinese page has no blanks, and a rule that splits at
blanks sees it as one giant word. Ranges are of the Unicode blocks; letters, digits and marks in them count.
"""

UNSPACED_RANGES: tuple[tuple[int, int], ...] = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic repetition and closing marks, zero
    (0x3041, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # CJK extension A
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x1B000, 0x1B16F),  # Kana supplements
    (0x20000, 0x3FFFD),  # CJK extensions B and later
)


def is_unspaced(codepoint: int) -> bool:
    """Whether a letter, digit or mark at this code point is a word of its own."""
    return any(first <= codepoint <= last for first, last in UNSPACED_RANGES)
