"""How many duplicates the whole holds, when a pilot saw some of them.

A pilot under-counts: a document and its copy are both in a pilot of share q only with probability q squared. What it
saw still tells the sizes of the groups of copies. A document of a group of K meets j - 1 of its copies in the pilot
with the binomial probability B(j - 1; K - 1, q); the share of documents in groups of each size is the mixture that
makes the observed counts likeliest, found by expectation-maximisation (the nonparametric maximum likelihood of Norris
and Pollock 1998, over documents instead of species). Of a group of K, one document stays.

Groups of copies of one size would be told exactly; what no pilot can tell is how much of the text it met only once has
a single copy elsewhere. So an interval comes with it: at least the share that the pilot removed, at most what it would
be if all copies came in pairs, which is the arrangement that hides best.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flows.planning.intervals import Interval, wilson

ROUNDS = 2000
LARGEST_GROUP = 1_000_000
PAIR_REMOVAL = 0.5
"""Of a pair one stays."""
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SeenCopies:
    """One source's documents in a pilot: how many of them stood in groups of each size seen, and how many went."""

    documents_by_group: Mapping[int, int]
    """Documents of the group seen (1: no copy met) -> documents of this source in such groups."""
    removed: int
    """Documents that the pilot removed."""

    @property
    def documents(self) -> int:
        """All documents of the source in the pilot."""
        return sum(self.documents_by_group.values())


def removal_of_whole(seen: SeenCopies, pilot_share: float) -> Interval:
    """Share of a source's documents (0 to 1) that dedup would remove from the whole, of which a pilot took a share."""
    documents = seen.documents
    if not documents:
        return Interval(0.0, 0.0, 0.0)
    observed = seen.removed / documents
    if pilot_share >= 1:
        return Interval(observed, observed, observed)
    sampled = wilson(seen.removed, documents, pilot_share)
    sizes, shares = group_sizes(seen.documents_by_group, pilot_share)
    evenly = sum(count * (1 - 1 / size) for size, count in seen.documents_by_group.items()) / documents
    # Above 1 where copies of other sources stay rather than this source's own.
    loses_more = observed / evenly if evenly else 1.0
    value = min(1.0, loses_more * float((shares * (1 - 1 / sizes)).sum()))
    if_pairs = min(sampled.high / pilot_share, PAIR_REMOVAL * max(1.0, loses_more))
    value = max(value, observed)
    return Interval(min(sampled.low, value), value, max(min(1.0, if_pairs), value))


def group_sizes(documents_by_group: Mapping[int, int], pilot_share: float) -> tuple[F64, F64]:
    """(sizes of groups of copies in the whole, share of documents in groups of each), the likeliest by EM."""
    seen = np.array(sorted(documents_by_group), np.int64)
    counts = np.array([documents_by_group[int(size)] for size in seen], np.float64)
    sizes = _candidate_sizes(int(seen.max()), pilot_share)
    likelihood = np.exp(_log_binomial(sizes[None, :] - 1, seen[:, None] - 1, pilot_share))
    shares = 1.0 / sizes**2
    shares /= shares.sum()
    for _ in range(ROUNDS):
        joint = likelihood * shares
        shares = (counts[:, None] * joint / joint.sum(axis=1, keepdims=True)).sum(axis=0) / counts.sum()
    return sizes, shares


def _candidate_sizes(largest_seen: int, pilot_share: float) -> F64:
    last = min(LARGEST_GROUP, max(largest_seen, math.ceil(4 * largest_seen / pilot_share)))
    spread = np.unique(np.geomspace(1, last, num=48).round())
    return np.union1d(spread, [1.0, 2.0, 3.0, 4.0, float(largest_seen)])


def _log_binomial(trials: F64, successes: npt.NDArray[np.int64], probability: float) -> F64:
    log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    possible = trials >= successes
    failures = np.where(possible, trials - successes, 0)
    ways = log_gamma(trials + 1) - log_gamma(successes + 1) - log_gamma(failures + 1)
    logs = ways + successes * math.log(probability) + failures * math.log1p(-probability)
    return np.where(possible, logs, -np.inf)
