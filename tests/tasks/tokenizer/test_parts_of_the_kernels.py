"""The kernels' parts against plain Python: merges, the trie, borders, the margin that rules rounding out."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.tokenizer.bpe_kernel import SHORT, Merges, build_merges, merge_long, merge_short, score_ranks
from tasks.tokenizer.pieces import Pieces, border_bits, cut, joined, read_pieces
from tasks.tokenizer.unigram_kernel import (
    UNIT,
    allocate_paths,
    build_lattice,
    build_trie,
    is_safe,
    safe_exponent,
    segment,
    write_path,
)

BYTES = np.arange(3, 259, dtype=np.int32)


def merged_plainly(pieces: Pieces, text: str) -> list[int]:
    """BPE as its definition says: the best pair of all, the leftmost of the best, again and again."""
    symbols = list(text)
    while True:
        pairs = ["".join(pair) for pair in itertools.pairwise(symbols)]
        known = [(-pieces.scores[pieces.ids[pair]], at) for at, pair in enumerate(pairs) if pair in pieces.ids]
        if not known:
            break
        at = min(known)[1]
        symbols[at : at + 2] = [pairs[at]]
    ids: list[int] = []
    for symbol in symbols:
        known = symbol in pieces.ids
        ids += [pieces.ids[symbol]] if known else [int(pieces.byte_ids[byte]) for byte in symbol.encode()]
    return ids


def merged(merges: Merges, text: str, long: bool) -> list[int]:
    data = np.frombuffer(text.encode() or b"\0", np.uint8)
    target = np.zeros(3 * data.size + 3, np.uint32)
    if long:
        filled = merge_long(merges, data, 0, data.size, target, 0)
    else:
        filled = merge_short(merges, data, 0, data.size, np.empty((4, SHORT), np.int32), target, 0)
    return target[:filled].tolist()


@st.composite
def vocabularies(draw: st.DrawFn) -> Pieces:
    """Pieces over few letters with few scores, so that ties are many."""
    letters = st.one_of(st.text("ab", min_size=2, max_size=4), st.text("ab é日", min_size=1, max_size=5))
    texts = draw(st.lists(letters, unique=True, min_size=1, max_size=25))
    scores = draw(st.lists(st.sampled_from([0.0, -1.0, -2.0, -3.5]), min_size=len(texts), max_size=len(texts)))
    all_scores = np.array([0.0] * 259 + scores, np.float32)
    return Pieces("bpe", {text: 259 + number for number, text in enumerate(texts)}, all_scores, BYTES, False)


@settings(max_examples=300, deadline=None)
@given(
    pieces=vocabularies(),
    text=st.one_of(st.text("ab", min_size=3, max_size=30), st.text("ab é日x", min_size=1, max_size=12)),
)
def test_merges_are_those_of_the_definition(pieces: Pieces, text: str) -> None:
    merges = build_merges(pieces)
    expected = merged_plainly(pieces, text)
    assert merged(merges, text, long=False) == expected
    assert merged(merges, text, long=True) == expected


def test_the_best_score_has_rank_0_and_minus_nothing_is_below_nothing() -> None:
    scores = np.array([-2.0, 0.0, -0.0, 3.0, -2.0, -1e9], np.float32)
    assert score_ranks(scores).tolist() == [3, 1, 2, 0, 3, 4]


KEYS = st.text("ab é日本\U0001f642", min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(keys=st.dictionaries(KEYS, st.integers(0, 1000), min_size=1, max_size=60), others=st.lists(KEYS, max_size=20))
def test_the_trie_holds_its_keys_and_no_others(keys: dict[str, int], others: list[str]) -> None:
    units, numbers = build_trie(keys)
    units = units.reshape(-1, UNIT)
    for key in [*keys, *others]:
        node, found = 0, True
        for letter in key:
            child = units[node, 0] + numbers[ord(letter)]
            found = found and units[node, 0] >= 0 and units[child, 1] == node
            node = child if found else node
        assert (units[node, 2] if found else -1) == keys.get(key, -1)


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.sets(st.tuples(st.characters(exclude_categories=["Cs"]), st.characters(exclude_categories=["Cs"]))),
    text=st.text(min_size=1, max_size=60),
    space=st.integers(1, 70),
)
def test_stretches_tile_a_text_and_keep_neighbours_together(pairs: set[tuple[str, str]], text: str, space: int) -> None:
    pairs |= set(itertools.islice(itertools.pairwise(text.replace("\u2581", "x")), 0, 30, 2))
    bits = border_bits(pairs)
    data = np.frombuffer(text.encode(), np.uint8)
    position, found = 0, []
    while position < data.size:
        borders, alone = np.zeros(space + 1, np.int64), np.zeros(space, np.int32)
        count, position = cut(data, position, data.size, bits, borders, alone)
        assert 1 <= count <= space
        stretches = [bytes(data[start:end]).decode() for start, end in itertools.pairwise(borders[: count + 1])]
        assert [ord(some) if len(some) == 1 else -1 for some in stretches] == alone[:count].tolist()
        found += stretches
    assert "".join(found) == text
    inside = [pair for some in found for pair in itertools.pairwise(some)]
    assert all(joined(bits, ord(left), ord(right)) for left, right in inside)
    torn = [(left[-1], right[0]) for left, right in itertools.pairwise(found)]
    # A full block ends a call, not a stretch, so only pairs that are in no piece, or hold the mark, are torn.
    assert not [pair for pair in torn if pair in pairs and "\u2581" not in pair]


def test_ascii_pairs_share_no_bit() -> None:
    bits = border_bits({("a", "b")})
    held = [(left, right) for left in range(128) for right in range(128) if joined(bits, left, right)]
    assert held == [(ord("a"), ord("b"))]


@settings(max_examples=300, deadline=None)
@given(
    scores=st.lists(st.floats(-8.0, -4.0, width=32), min_size=5, max_size=5),
    total=st.floats(-99_000.0, 0.0, width=32),
    text=st.text("ab", min_size=1, max_size=10),
)
def test_a_margin_that_is_safe_holds_at_any_sum(
    assembled: Callable[..., bytes], scores: list[float], total: float, text: str
) -> None:
    pieces = read_pieces(assembled(1, dict(zip(["a", "b", "ab", "ba", "aba"], scores, strict=True))))
    lattice = build_lattice(pieces)
    data = np.frombuffer(text.encode(), np.uint8)

    def path(start: float) -> tuple[list[int], float]:
        paths, target = allocate_paths(data.size), np.zeros(64, np.uint32)
        characters, _, margin = segment(lattice, data, 0, data.size, np.float32(start), paths)
        return target[: write_path(lattice, data, 0, characters, paths, target, 0)].tolist(), margin

    ids, margin = path(0.0)
    if is_safe(lattice.largest, safe_exponent(margin, data.size), np.float32(total), data.size):
        assert path(total) == (ids, margin)


def test_the_margin_is_the_distance_to_the_second_best_path(assembled: Callable[..., bytes]) -> None:
    """`ab` + `a` -3, `a` + `ba` -4.5, `a` + `b` + `a` -6."""
    lattice = build_lattice(read_pieces(assembled(1, {"a": -2.0, "b": -2.0, "ab": -1.0, "ba": -2.5})))
    data = np.frombuffer(b"aba", np.uint8)
    assert segment(lattice, data, 0, 3, np.float32(0), allocate_paths(3)) == (3, -3.0, 1.5)
    assert segment(lattice, data, 0, 3, np.float32(-100), allocate_paths(3)) == (3, -103.0, 1.5)


@pytest.mark.parametrize(("margin", "exponent"), [(0.0, 0), (1.0, 17), (0.25, 17), (0.03, 17), (4.0 / 2**10, 14)])
def test_a_smaller_margin_is_safe_for_smaller_sums(margin: float, exponent: int) -> None:
    """One byte: an error of 4 * 2^e / 2^25 at most, 1/64 at 2^17."""
    assert safe_exponent(margin, 1) == exponent
