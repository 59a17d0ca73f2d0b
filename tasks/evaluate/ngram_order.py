"""Places of a stream of tokens in the order of the n-grams that end there, so that equal n-grams stand side by side.

An n-gram is read backwards: its last token first, then the tokens before it, as far as the place reaches. One sort
by five tokens serves all orders, since n-grams that share their last tokens stand together; and before its last pass,
over the tokens themselves, places stand in the order of what precedes them, which serves all contexts.

Shapes: N tokens of the stream, P places, in a sort by keys that are tokens (0 where a place does not reach so far).
"""

import numpy as np

from tasks.kernels import kernel

LONGEST = 5
"""Tokens of the longest n-grams."""


@kernel
def reach_of(tokens: np.ndarray, begins: np.ndarray, is_wall: np.ndarray, eos: int) -> np.ndarray:
    """How many tokens before each place belong to its n-grams, u8[N], at most LONGEST - 1.

    None where the stretch begins (`begins` bool[N]) or behind a wall (`is_wall` bool[vocabulary]); a document's n-grams
    reach back to the end-of-text token that opens it, and no further.
    """
    reach = np.zeros(len(tokens), dtype=np.uint8)
    for place in range(1, len(tokens)):
        before = tokens[place - 1]
        if begins[place] or is_wall[before]:
            continue
        reach[place] = 1 if before == eos else min(np.int64(reach[place - 1]) + 1, LONGEST - 1)
    return reach


@kernel
def key_of(tokens: np.ndarray, reach: np.ndarray, place: int, back: int) -> np.int64:
    """The token `back` places before `place`, from 1; 0 where the place does not reach so far."""
    return np.int64(0) if back > reach[place] else np.int64(tokens[place - back]) + 1


@kernel
def sorted_by_token(
    tokens: np.ndarray, reach: np.ndarray, places: np.ndarray, back: int, vocab_size: int
) -> np.ndarray:
    """Places i32[P] in the order of the token `back` places before each; equal ones stay in the order they had."""
    begin = np.zeros(vocab_size + 2, dtype=np.int64)
    for place in places:
        begin[key_of(tokens, reach, place, back) + 1] += 1
    for key in range(1, len(begin)):
        begin[key] += begin[key - 1]
    ordered = np.empty_like(places)
    for place in places:
        key = key_of(tokens, reach, place, back)
        ordered[begin[key]] = place
        begin[key] += 1
    return ordered


@kernel
def shared_with_former(tokens: np.ndarray, reach: np.ndarray, ordered: np.ndarray, first: int) -> np.ndarray:
    """How many keys, from `first` places back on, each place shares with the one before it in the order, u8[P]."""
    shared = np.zeros(len(ordered), dtype=np.uint8)
    for nth in range(1, len(ordered)):
        for back in range(first, LONGEST):
            mine = key_of(tokens, reach, ordered[nth], back)
            if mine != key_of(tokens, reach, ordered[nth - 1], back):
                break
            shared[nth] += 1
    return shared
