"""Counter-based random numbers are those of NumPy's Philox."""

import numpy as np
import pytest

from model.data.philox import philox_key
from model.data.rng import below, fill, high_product

TOP = 2**64 - 1


@pytest.mark.parametrize(("first", "second", "third"), [(0, 0, 0), (7, 3, 1), (2**40 + 5, 2**63, TOP)])
def test_a_stream_is_numpys_from_its_counter_on(first: int, second: int, third: int) -> None:
    key = philox_key(11, "test")
    numbers = np.empty(11, dtype=np.uint64)
    fill(numbers, key, np.uint64(first), np.uint64(second), np.uint64(third))
    # NumPy counts up before it draws, so its generator is one block earlier.
    counter = (first << 64 | second << 128 | third << 192) - 1
    expected = np.random.Philox(key=key, counter=counter % 2**256).random_raw(11)
    assert numbers.tolist() == expected.tolist()


@pytest.mark.parametrize(("a", "b"), [(TOP, TOP), (2**63, 2), (2**32, 2**32), (0x9E3779B97F4A7C15, 0xD2E7470EE14C6C93)])
def test_upper_halves_of_products_are_those_of_long_multiplication(a: int, b: int) -> None:
    assert int(high_product(np.uint64(a), np.uint64(b))) == a * b >> 64


def test_scaled_numbers_reach_both_ends_and_no_further() -> None:
    assert [below(np.uint64(n), 10) for n in (0, TOP // 10, TOP // 10 + 1, TOP)] == [0, 0, 1, 9]


def test_purposes_and_seeds_have_keys_of_their_own() -> None:
    keys = {tuple(philox_key(seed, purpose)) for seed in (1, 2, 11) for purpose in ("masking", "spans", "1masking")}
    assert len(keys) == 9
