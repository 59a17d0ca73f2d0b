"""What is truncated is counted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from model.finetune.data import Truncation, fit_together


def one_by_one(lengths: list[int], max_tokens: int) -> list[int]:
    """As BERT's program does it: a token of the longest text at a time, of equals of the later one."""
    kept = list(lengths)
    while sum(kept) > max_tokens:
        longest = max(range(len(kept)), key=lambda place: (kept[place], place))
        kept[longest] -= 1
    return kept


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3), max_tokens=st.integers(0, 60))
def test_the_longest_is_cut_first(lengths: list[int], max_tokens: int) -> None:
    kept = fit_together(lengths, max_tokens)
    assert sum(kept) == min(sum(lengths), max_tokens)
    assert all(0 <= after <= before for after, before in zip(kept, lengths, strict=True))
    # Equal texts may be cut in another order, by one token each.
    slow = one_by_one(lengths, max_tokens)
    assert sorted(kept) == sorted(slow) or max(abs(a - b) for a, b in zip(sorted(kept), sorted(slow), strict=True)) <= 1


def test_what_is_cut_is_reported() -> None:
    truncation = Truncation()
    for tokens, kept in ((10, 10), (30, 20), (60, 20), (100, 50)):
        truncation.count(tokens, kept)
    assert truncation.describe() == "3 of 4 examples cut (75.0%), 100 tokens lost (50.0%)"
    truncation.leave_out("without their answer in the passage")
    assert truncation.describe().endswith("; 1 without their answer in the passage")
