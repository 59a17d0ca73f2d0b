"""Held-out tokens that training read too: found by hand, and bits of both parts add up to those of the whole."""

import math

import numpy as np
import pytest

from tasks.evaluate.repeated_passages import PASSAGE_TOKENS, add_parts, passage_hashes, repeated_tokens
from tasks.evaluate.scores import HeldoutRows

LENGTH = 3 * PASSAGE_TOKENS


def distinct(count: int, seed: int) -> np.ndarray:
    """Return ids of which no two are equal, drawn from a million."""
    return np.random.default_rng(seed).choice(1_000_000, count, replace=False).astype(np.uint32)


def with_passage(text: np.ndarray, begin: int, passage: np.ndarray) -> np.ndarray:
    changed = text.copy()
    changed[begin : begin + len(passage)] = passage
    return changed


def test_a_passage_that_a_row_holds_is_repeated_and_nothing_around_it_is():
    read = distinct(2 * LENGTH, seed=1).reshape(2, LENGTH)
    passage = read[1, 5 : 5 + PASSAGE_TOKENS + 3]
    (found,) = repeated_tokens([with_passage(distinct(LENGTH, seed=2), 7, passage)], [read])
    assert np.flatnonzero(found).tolist() == list(range(7, 7 + PASSAGE_TOKENS + 3))


def test_one_token_fewer_is_new_and_a_passage_does_not_go_on_in_the_next_row():
    read = distinct(2 * LENGTH, seed=1).reshape(2, LENGTH)
    short = read[0, : PASSAGE_TOKENS - 1]
    across = read.reshape(-1)[LENGTH - 8 : LENGTH - 8 + PASSAGE_TOKENS]
    held = [with_passage(distinct(LENGTH, seed=2), 7, part) for part in (short, across)]
    assert not any(one.any() for one in repeated_tokens(held, [read]))


def test_parts_of_the_rows_are_read_one_after_the_other_and_short_documents_are_new():
    read = distinct(2 * LENGTH, seed=1).reshape(2, LENGTH)
    held = [read[0, :PASSAGE_TOKENS], read[0, 1:PASSAGE_TOKENS], read[1], np.zeros(0, dtype=np.uint32)]
    found = repeated_tokens(held, iter([read[:1], read[1:]]))
    assert [one.tolist() for one in found] == [
        [True] * PASSAGE_TOKENS,
        [False] * (PASSAGE_TOKENS - 1),
        [True] * LENGTH,
        [],
    ]


def test_hashes_depend_on_the_order_of_tokens():
    forwards = distinct(PASSAGE_TOKENS, seed=3)
    swapped = forwards.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    rows = np.stack([forwards, forwards[::-1], swapped])
    assert len(set(passage_hashes(rows).reshape(-1).tolist())) == 3


def test_ids_of_a_small_vocabulary_do_not_collide():
    """All passages over two ids that differ: no two of 2^16 have the same hash."""
    number = np.arange(2**16)
    rows = (number[:, None] >> np.arange(PASSAGE_TOKENS)) & 1
    assert len(np.unique(passage_hashes(rows))) == 2**16


def test_bits_of_both_parts_are_those_of_their_tokens_over_their_bytes():
    bits = [np.array([4.0, 2.0, 6.0]), np.array([1.0])]
    lengths = [np.array([2, 2, 2]), np.array([1])]
    repeated = [np.array([False, True, True]), np.array([False])]
    scores = HeldoutRows(rounds=50, seed=1)
    add_parts(scores, "en", "5gram_", bits, lengths, repeated)
    found = {(row["task"], row["metric"]): row for row in scores.scores().rows}
    new, old = (found["heldout/en", f"5gram_{part}_bits_per_byte"] for part in ("new", "repeated"))
    assert (new["value"], new["n"]) == (pytest.approx((4 + 1) / (2 + 1)), 2)
    assert (old["value"], old["n"]) == ((2 + 6) / (2 + 2), 1)
    assert new["note"].startswith("3 of 7 bytes, outside of passages of 16 tokens")
    assert found["heldout/all", "5gram_new_bits_per_byte"]["value"] == new["value"]
    assert math.isclose(new["value"] * 3 + old["value"] * 4, 13)


def test_a_part_without_text_has_no_row():
    scores = HeldoutRows(rounds=50, seed=1)
    add_parts(scores, "en", "", [np.ones(2)], [np.ones(2, dtype=np.int64)], [np.zeros(2, dtype=bool)])
    assert {row["metric"] for row in scores.scores().rows} == {"new_bits_per_byte"}
