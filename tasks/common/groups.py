"""Sorted arrays: where each group of neighbouring entries begins, which entries are its first, and where values are."""

from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def begins_of(sizes: I64) -> I64:
    """Return how many entries are before each group, by the sizes of the groups."""
    return np.cumsum(sizes) - sizes


def places_within(sizes: I64) -> I64:
    """Return the place of each entry in its group, from 0, by the sizes of the groups."""
    return np.arange(sizes.sum()) - np.repeat(begins_of(sizes), sizes)


def begins_group(*columns: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Return which entries differ in some column from the one before; the first of all does."""
    begins = np.ones(len(columns[0]), np.bool_)
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return begins


def first_of_group(begins: npt.NDArray[np.bool_]) -> I64:
    """Return the first entry of the group of each entry, by which entries begin one."""
    return np.flatnonzero(begins)[np.cumsum(begins) - 1]


def find_sorted(values: npt.NDArray[Any], sought: npt.NDArray[Any]) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return the first place of each of `sought` in ascending `values`, and which are there; the place of another is
    that of the next larger value, or the end."""
    places = np.searchsorted(values, sought)
    is_there = places < values.size
    is_there[is_there] = values[places[is_there]] == sought[is_there]
    return places, is_there
