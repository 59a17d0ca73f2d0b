"""The structure of the texts of a batch: what their lines are, and which lines repeat."""

import numpy as np

from tasks.clean.batch import Texts
from tasks.clean.kernels import structure_counts as st
from tasks.clean.kernels.structure import scan_structure

_NEVER = -1


class Structure:
    """Counts of the structure of texts, as `kernels.structure_counts` names them.

    `scan` counts texts that are new or have changed since they were counted.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._bounds = np.full((2, len(texts)), _NEVER, np.int64)
        self._counts = np.zeros((len(texts), st.COUNTS), np.int64)
        self.hashes = np.empty(0, np.uint64)
        self.lengths = np.empty(0, np.int64)
        self.firsts = np.zeros(len(texts), np.int64)
        self._used = 0

    def scan(self, wanted: np.ndarray) -> "Structure":
        """Count the texts that are `wanted` (bool) and are not counted as they are now; returns itself."""
        texts = self._texts
        changed = wanted & (self._bounds != texts.bounds).any(axis=0)
        if changed.any():
            self._reserve(int(texts.sizes[changed].sum()) // 2 + int(changed.sum()))
            self._counts[changed] = 0
            self._used = scan_structure(
                texts.data, texts.begins, texts.ends, changed, self._counts, self.hashes, self.lengths, self.firsts,
                self._used,
            )  # fmt: skip
            self._bounds[:, changed] = texts.bounds[:, changed]
        return self

    def _reserve(self, lines: int) -> None:
        needed = self._used + lines
        if needed > len(self.hashes):
            hashes, lengths = np.empty(needed, np.uint64), np.empty(needed, np.int64)
            hashes[: self._used], lengths[: self._used] = self.hashes[: self._used], self.lengths[: self._used]
            self.hashes, self.lengths = hashes, lengths

    def count_of(self, what: int) -> np.ndarray:
        """Return one of the counts that `kernels.structure_counts` names (int64, a value for each text)."""
        return self._counts[:, what]

    def lines(self, *kinds: int) -> np.ndarray:
        """Return the number of lines of some line kinds; of all that are not blank where none is named."""
        return self._sum(st.LINES, kinds)

    def characters(self, *kinds: int) -> np.ndarray:
        """Return the characters in lines of some line kinds; in all lines where none is named."""
        return self._sum(st.CHARACTERS, kinds)

    def _sum(self, first: int, kinds: tuple[int, ...]) -> np.ndarray:
        return self._counts[:, [first + kind for kind in kinds or range(st.BLANK + 1, st.LINE_KINDS)]].sum(axis=1)
