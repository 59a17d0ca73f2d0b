"""Long texts in stretches that a network can read at once."""


def even_cuts(tokens: int, most: int) -> list[tuple[int, int]]:
    """(begin, end) of as few stretches as hold at most `most` tokens each, of lengths that differ by one at most; none
    for no tokens."""
    count = -(-tokens // most)
    return [(tokens * nth // count, tokens * (nth + 1) // count) for nth in range(count)]
