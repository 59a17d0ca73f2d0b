"""Which document ids have been seen: 16 bytes an id however many there are.

New ids wait in a set; full sets become sorted runs, and runs of like size are merged, so that there are never more
than some dozens of them.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tasks.schema import DOC_ID_BYTES

IDS_IN_A_RUN = 1 << 16
_KIND = f"S{DOC_ID_BYTES}"


class SeenIds:
    """A set of document ids that only grows."""

    def __init__(self) -> None:
        self._waiting: set[bytes] = set()
        self._runs: list[npt.NDArray[np.bytes_]] = []

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
        """Take an id in."""
        self._waiting.add(doc_id)
        if len(self._waiting) >= IDS_IN_A_RUN:
            self._sort_away()

    def update(self, doc_ids: Iterable[bytes]) -> None:
        """Take many ids in."""
        for doc_id in doc_ids:
            self.add(doc_id)

    def _sort_away(self) -> None:
        # numpy takes zero bytes at the end of a text for padding; ids are all of one length, so none become equal.
        self._runs.append(np.sort(np.array(list(self._waiting), _KIND)))
        self._waiting.clear()
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]
