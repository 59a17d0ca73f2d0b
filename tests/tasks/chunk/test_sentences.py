"""Where sentences end."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.chunk.sentences import sentence_borders


def sentences(text: str, token_bytes: int = 1) -> list[str]:
    """The sentences of a text whose tokens hold as many bytes each."""
    raw = text.encode()
    borders = np.array([*range(0, len(raw), token_bytes), len(raw)], dtype=np.int64)
    ends, counts = sentence_borders(
        np.frombuffer(raw, dtype=np.uint8),
        np.array([0, len(raw)]),
        np.array([0]),
        np.array([len(borders) - 1]),
        borders,
    )
    assert counts.tolist() == [len(ends)]
    places = [0, *borders[ends].tolist()]
    return [raw[one:two].decode(errors="replace") for one, two in pairwise(places)]


@pytest.mark.parametrize(
    "reported",
    [
        ["Hello there.", " How are you?", " Fine!"],
        ["Mr. Smith met J. R. Tolkien, e.g. at 5 p.m. on a walk.", " Then he left."],
        ['He said "No."', " She (the other) left."],
        ["What?!", " Yes...", " Well… no."],
        ["一。", "二！", "「三？」", "四。", "「五。」"],
        ["Version 1.2.3 is out.", " See example.com for it."],
        ["A wrapped line\ngoes on here.", "\nAnother line", "\n\nA title", "\n1. First", "\n2. Second\n"],
        ["Он приехал в 1984 г. на ул. Ленина.", " Ушёл!"],
        ["Храм Св. Николая.", " См. Приложение.", " СМ. ДАЛЕЕ."],
        ["«Да.»", " «Нет»."],
        ["क्या हाल है।", " ठीक।"],
        ["no end at all"],
        ["It was I.", " So it was."],
    ],
)
def test_by_hand(reported: list[str]):
    assert sentences("".join(reported)) == reported


def test_a_token_on_both_sides_belongs_to_the_sentence_that_ends():
    assert sentences("One. Two.", token_bytes=3) == ["One. T", "wo."]


@settings(deadline=None)
@given(text=st.text(alphabet="aB. \n。!\"'»x1é你", max_size=80), token_bytes=st.integers(1, 4))
def test_nothing_is_lost_and_no_sentence_is_blank(text: str, token_bytes: int):
    if not text:
        return
    found = sentences(text, token_bytes)
    assert sum(len(one.encode()) for one in found) >= len(text.encode())  # characters cut in two are shown as longer
    assert all(found)
    if token_bytes == 1 and text.strip(" \n"):
        assert all(one.strip(" \n") for one in found)


def test_a_megabyte_of_line_ends_or_marks_takes_no_time():
    assert len(sentences("\n" * 1_000_000)) == 1
    assert len(sentences("No" + "!" * 1_000_000 + "x")) == 1
    assert len(sentences("No" + "." * 1_000_000 + " x")) == 1
    assert len(sentences("No" + "." * 1_000_000 + "? x")) == 2
    assert len(sentences(". " * 500_000)) == 500_000
