"""Names of what `counting.count_texts` counts, columns of its counts."""

import numpy as np

(
    UNITS, CHINESE_JAPANESE_UNITS, SOUTH_EAST_ASIAN_UNITS, UNIT_CHARACTERS, ALPHABETIC_UNITS, HASHES, ELLIPSES, LINES,
    BULLET_LINES, ELLIPSIS_LINES, LINE_CHARACTERS, SHORT_LINES, FINISHED_LINES, LINE_FEEDS, OPENING_BRACES, SENTENCES,
    PARAGRAPHS, PARAGRAPH_CHARACTERS, LOREM_IPSUM, COUNTS,
) = range(20)  # fmt: skip


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return `part` over `whole`, NaN where `whole` is 0."""
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole != 0)
