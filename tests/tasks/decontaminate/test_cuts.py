"""Cutting: windows in characters up to the ends of words, short remainders, too many pieces, tiling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decontaminate.config import DecontaminateConfig
from tasks.decontaminate.leaks import Region
from tasks.decontaminate.rewrite import cut_text

BORDERS = frozenset(" \n中")
"""Of the signs that texts are drawn from, those that end a word."""
CONFIG = DecontaminateConfig(window_chars=2, min_piece_chars=3, max_pieces=3)


def region(start: int, end: int) -> Region:
    return Region(item=0, start=start, end=end, matched=1, total=1, form="ngram")


def test_the_window_goes_with_the_leak_on_both_sides() -> None:
    plan = cut_text(b"0123456789ABCDEF", [region(6, 8)], CONFIG)
    assert plan.pieces == ((0, 4), (10, 16))
    assert [(cut.start, cut.end) for cut in plan.cuts] == [(4, 10)]
    assert plan.drop_rule is None


def test_windows_count_characters_not_bytes() -> None:
    text = "яяяяяяLEAKяяяяяя".encode()
    assert cut_text(text, [region(12, 16)], CONFIG).pieces == ((0, 8), (20, 28))


def test_a_window_grows_to_the_end_of_the_word_it_would_cut() -> None:
    text = b"we ask the_smith for LEAK bellows=3 of iron"
    plan = cut_text(text, [region(21, 25)], CONFIG.model_copy(update={"window_chars": 6}))
    assert [text[start:end] for start, end in plan.pieces] == [b"we ask ", b" of iron"]
    assert [text[cut.start : cut.end] for cut in plan.cuts] == [b"the_smith for LEAK bellows=3"]


def test_a_window_that_ends_between_words_stays() -> None:
    text = b"lit the fire LEAK and struck"
    pieces = cut_text(text, [region(13, 17)], CONFIG.model_copy(update={"window_chars": 5})).pieces
    assert [text[start:end] for start, end in pieces] == [b"lit the ", b"struck"]


def test_a_character_of_a_script_without_spaces_is_a_word() -> None:
    text = "炉子已经点着了LEAK铁水流进沙模之中"
    pieces = cut_text(text.encode(), [region(21, 25)], CONFIG).pieces
    assert [text.encode()[start:end].decode() for start, end in pieces] == ["炉子已经点", "流进沙模之中"]


@pytest.mark.parametrize(("letters", "grown"), [(39, 39), (40, 0)])
def test_a_run_without_whitespace_for_forty_characters_has_no_words(letters: int, grown: int) -> None:
    text = b"LEAK" + b"x" * (2 + letters) + b" and so on"
    assert cut_text(text, [region(0, 4)], CONFIG).pieces == ((6 + grown, len(text)),)


def test_a_remainder_under_the_limit_is_cut_and_recorded() -> None:
    plan = cut_text(b"0123456789ABCDEF", [region(4, 8)], CONFIG)
    assert plan.pieces == ((10, 16),)
    assert [(cut.start, cut.end, bool(cut.regions)) for cut in plan.cuts] == [(0, 2, False), (2, 10, True)]


def test_overlapping_windows_become_one_cut() -> None:
    plan = cut_text(bytes(40), [region(10, 12), region(11, 13), region(16, 18)], CONFIG)
    assert plan.pieces == ((0, 8), (20, 40))
    assert [len(cut.regions) for cut in plan.cuts] == [3]


def test_nothing_left_and_too_many_pieces_drop_the_document() -> None:
    assert cut_text(b"01234567", [region(3, 5)], CONFIG).drop_rule == "no_piece_left"
    many = [region(start, start + 1) for start in range(10, 90, 10)]
    assert cut_text(bytes(100), many, CONFIG).drop_rule == "too_many_pieces"
    assert cut_text(bytes(100), many[:2], CONFIG).drop_rule is None


@given(st.text(st.sampled_from("aя中😀 \n"), min_size=1, max_size=120), st.data())
def test_pieces_and_cuts_tile_the_text_and_no_piece_touches_a_window_or_halves_a_word(
    text: str, data: st.DataObject
) -> None:
    borders = [len(text[:index].encode()) for index in range(len(text) + 1)]
    spans = data.draw(st.lists(st.tuples(*[st.integers(0, len(text) - 1)] * 2).map(sorted), min_size=1, max_size=5))
    regions = sorted((region(borders[a], borders[b + 1]) for a, b in spans), key=lambda r: (r.start, r.end))
    plan = cut_text(text.encode(), regions, CONFIG)
    tiles = sorted([*plan.pieces, *((cut.start, cut.end) for cut in plan.cuts)])
    assert [start for start, _ in tiles] == [0, *(end for _, end in tiles[:-1])]
    assert tiles[-1][1] == len(text.encode())
    removed = {index for a, b in spans for index in range(max(0, a - 2), min(len(text), b + 3))}
    for start, end in plan.pieces:
        piece = range(borders.index(start), borders.index(end))
        assert len(piece) >= 3
        assert not removed & set(piece)
        if piece.start > 0 and not BORDERS & set(text[piece.start - 1 : piece.start + 1]):
            assert not BORDERS & set(text[piece.start : piece.start + 40])
        if piece.stop < len(text) and not BORDERS & set(text[piece.stop - 1 : piece.stop + 1]):
            assert not BORDERS & set(text[max(0, piece.stop - 40) : piece.stop])
        text.encode()[start:end].decode()


@pytest.mark.parametrize("end", [0, 5])
def test_a_leak_at_the_edge_of_the_text_stays_within_it(end: int) -> None:
    text = b"0123456789"
    plan = cut_text(text, [region(0, 2) if end == 0 else region(8, 10)], CONFIG)
    assert plan.pieces == (((4, 10),) if end == 0 else ((0, 6),))
