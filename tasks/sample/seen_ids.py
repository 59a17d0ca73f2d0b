"""Ids of documents that were read: which of them occur again."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tasks.artifacts.tables.rows import DOC_ID_BYTES
from tasks.common.groups import find_sorted

IDS_IN_A_RUN = 1 << 16

_KIND = f"S{DOC_ID_BYTES}"

Ids = npt.NDArray[np.bytes_]


def id_array(doc_ids: Iterable[bytes]) -> Ids:
    # numpy drops zero bytes at the end as padding; ids have one length, so none become equal.
    return np.array(list(doc_ids), _KIND)


class SeenIds:
    """A growing set of document ids with 16 bytes an id.

    New ids are collected in a set; full sets become sorted runs, and runs of similar size are merged, so that there are
    never more than a few dozen.
    """

    def __init__(self) -> None:
        self._waiting: set[bytes] = set()
        self._runs: list[Ids] = []

    def __contains__(self, doc_id: bytes) -> bool:
        if doc_id in self._waiting:
            return True
        wanted = np.array(doc_id, _KIND)
        for run in self._runs:
            place = np.searchsorted(run, wanted)
            if place < len(run) and run[place] == wanted:
                return True
        return False

    def add(self, doc_id: bytes) -> None:
        self._waiting.add(doc_id)
        if len(self._waiting) >= IDS_IN_A_RUN:
            self._flush()

    def extend(self, doc_ids: Ids) -> Ids:
        """Add many different ids, and return those that were contained."""
        self._flush()
        is_known = np.zeros(doc_ids.size, np.bool_)
        for run in self._runs:
            is_known |= find_sorted(run, doc_ids)[1]
        self._append(doc_ids[~is_known])
        return doc_ids[is_known]

    def _flush(self) -> None:
        self._append(id_array(self._waiting))
        self._waiting.clear()

    def _append(self, doc_ids: Ids) -> None:
        if not doc_ids.size:
            return
        self._runs.append(np.sort(doc_ids))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]
