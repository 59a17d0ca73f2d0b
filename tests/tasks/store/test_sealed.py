"""What is sealed is read back as it was, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.store.sealed import BrokenSeal, seal, unseal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_a_value_comes_back(value: object) -> None:
    assert unseal(seal(value)) == value


@given(VALUES, st.data())
def test_cut_anywhere_it_is_refused(value: object, data: st.DataObject) -> None:
    sealed = seal(value)
    with pytest.raises(BrokenSeal):
        unseal(sealed[: data.draw(st.integers(0, len(sealed) - 1))])


def test_every_flipped_bit_is_refused_or_changes_nothing() -> None:
    value = {"rows": 100, "name": "part-00001.arrow", "exact": True}
    sealed = seal(value)
    for at in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[at // 8] ^= 1 << at % 8
        try:
            assert unseal(bytes(flipped)) == value, "only blanks between values may change"
        except BrokenSeal:
            continue
