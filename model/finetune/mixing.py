"""In which order examples of one or more tasks are read: a function of seed and epoch alone."""

from collections.abc import Sequence

import blake3
import numpy as np


def epoch_order(counts: Sequence[int], cap: int, seed: int, epoch: int) -> np.ndarray:
    """Numbers of the examples that an epoch reads, i64, where those of task i follow those of the tasks before it.

    Of each task as many as it has, and at most `cap`: examples-proportional mixing (Raffel et al. 2020, section 3.5.2)
    with exact shares in place of expected ones. A task that is capped goes on in the next epoch where it was, and
    comes round once all its examples were read.
    """
    first = np.cumsum([0, *counts])
    parts = []
    for task, count in enumerate(counts):
        take = min(count, cap)
        rounds = range(epoch * take // count, -(-(epoch + 1) * take // count))
        stream = np.concatenate([_generator(seed, "task", task, turn).permutation(count) for turn in rounds])
        begin = epoch * take - rounds.start * count
        parts.append(first[task] + stream[begin : begin + take])
    read = np.concatenate(parts)
    return read[_generator(seed, "epoch", epoch).permutation(len(read))]


def _generator(*key: object) -> np.random.Generator:
    digest = blake3.blake3("\x1f".join(map(str, ("mixing", *key))).encode()).digest(length=16)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
