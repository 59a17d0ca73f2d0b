"""The held-out split: a share of each source's clean documents, set aside to measure bits per byte.

A document's number in [0, 1) is a function of its id and the run's seed, so the same documents are held out however the
input is sharded, and a larger share only adds documents. Documents with a leak are never held out, since a score on
them would measure memory too; so the split is free of every benchmark item that can be matched.
"""

import numpy as np
import numpy.typing as npt

from tasks.common.numeric import seed64, unit_interval
from tasks.decontaminate.config import DecontaminateConfig

LARGEST_SHARE = 0.2


def draw_number(doc_id: bytes, source: str, seed: int) -> float:
    """Return the document's number in the held-out draw of its source."""
    return unit_interval(doc_id, draw_seed(source, seed))


def draw_seed(source: str, seed: int) -> int:
    """Return the seed of a source's held-out draw."""
    return seed64(seed, "decontaminate", "heldout", source)


def choose_heldout(
    doc_ids: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int64],
    source: str,
    eligible: npt.NDArray[np.bool_],
    config: DecontaminateConfig,
) -> npt.NDArray[np.int64]:
    """Choose which of one source's documents are held out (ascending indexes).

    In order of their numbers: all under the share, and at least `heldout_min_documents`, but at most a fifth of the
    source's documents and bytes and never more than the limits. A document that would exceed the byte limit is skipped.
    """
    documents = sizes.size
    allowed_documents = min(config.heldout_max_documents, int(documents * LARGEST_SHARE))
    allowed_bytes = min(config.heldout_max_bytes, int(sizes.sum() * LARGEST_SHARE))
    if config.heldout_share == 0.0 or not allowed_documents:
        return np.empty(0, np.int64)
    candidates = np.flatnonzero(eligible & (sizes > 0) & (sizes <= allowed_bytes))
    seed = draw_seed(source, config.seed)
    draws = (unit_interval(doc_ids[index].tobytes(), seed) for index in candidates.tolist())
    numbers = np.fromiter(draws, np.float64, candidates.size)
    halves = np.ascontiguousarray(doc_ids[candidates]).view(">u8").reshape(-1, 2)
    chosen: list[int] = []
    taken = 0
    for place in np.lexsort((halves[:, 1], halves[:, 0], numbers)).tolist():
        index = int(candidates[place])
        enough = len(chosen) >= config.heldout_min_documents
        if len(chosen) == allowed_documents or (enough and numbers[place] >= config.heldout_share):
            break
        if taken + int(sizes[index]) <= allowed_bytes:
            chosen.append(index)
            taken += int(sizes[index])
    return np.array(sorted(chosen), np.int64)
