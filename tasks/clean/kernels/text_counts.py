"""Names of what `counting.count_texts` counts, columns of its counts."""

import numpy as np

UNITS = 0
CHINESE_JAPANESE_UNITS = 1
SOUTH_EAST_ASIAN_UNITS = 2
UNIT_CHARACTERS = 3
ALPHABETIC_UNITS = 4
HASHES = 5
ELLIPSES = 6
LINES = 7
BULLET_LINES = 8
ELLIPSIS_LINES = 9
LINE_CHARACTERS = 10
SHORT_LINES = 11
FINISHED_LINES = 12
LINE_FEEDS = 13
OPENING_BRACES = 14
SENTENCES = 15
PARAGRAPHS = 16
PARAGRAPH_CHARACTERS = 17
LOREM_IPSUM = 18
COUNTS = 19


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return `part` over `whole`, NaN where `whole` is 0."""
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole != 0)
