"""Extrapolate from a pilot: documents, bytes and tokens of every source after every stage, with 95% intervals.

The population is what the recipe would select. Its documents and bytes are known exactly, because the pilot reads all
files; what each stage keeps is estimated from the pilot's documents as a simple random sample without replacement.

The share that dedup removes grows with the corpus and is estimated separately. A pilot undercounts duplicates: a
document and its copy are both in a pilot of share q only with probability q squared. A document of a group of K copies
meets j - 1 of its copies in the pilot with the binomial probability B(j - 1; K - 1, q). The share of documents in
groups of each size is the mixture with the highest likelihood of the observed counts, found by expectation-maximisation
(the nonparametric maximum likelihood of Norris and Pollock 1998, over documents instead of species); of a group of K,
one document is kept. A pilot cannot know how many of the documents that it met once have a single copy elsewhere. The
interval of the removed share is therefore from the share that the pilot removed, to the share if all groups were pairs,
which are the hardest to observe.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from flows.metrics.statistics import Interval, wilson
from flows.planning.pilot import Pilot
from flows.runs.run_documents import dropped_copies, parts_of
from tasks.artifacts.artifact import Artifact
from tasks.common.numeric import Z_95
from tasks.decontaminate.config import DecontaminateConfig

DOCUMENT_STAGES = ("sample", "clean", "dedup", "decontaminate")

AFTER_DEDUP = frozenset({"dedup", "decontaminate", "chunk"})

HELDOUT_CEILING = 0.2
"""Largest share of a source that is held out, whatever the limits say."""

F64 = npt.NDArray[np.float64]

EM_ITERATIONS = 2000

LARGEST_GROUP = 1_000_000

PAIR_REMOVAL = 0.5
"""Share removed from a pair of copies."""


@dataclass(frozen=True)
class SourceEstimate:
    """Estimates of one source: documents and UTF-8 bytes after each stage, and packed tokens."""

    documents: dict[str, Interval]
    bytes: dict[str, Interval]
    tokens: Interval
    removal_in_pilot: float
    """Share of documents that dedup removed in the pilot."""
    removal: Interval
    """Share of documents that dedup would remove from the whole source."""
    held_out: float
    """Largest share of documents that would be held out."""


def estimate_sources(pilot: Pilot, config: DecontaminateConfig) -> dict[str, SourceEstimate]:
    """Return the estimate of each source; `config` determines how much is held out."""
    ids: dict[str, list[bytes]] = {}
    for doc_id, source in _sources(pilot.artifacts["sample"]):
        ids.setdefault(source, []).append(doc_id)
    after = {stage: _bytes_by_document(pilot.artifacts[stage]) for stage in DOCUMENT_STAGES}
    tokens = _tokens_by_document(pilot.artifacts["chunk"])
    copies = _seen_copies(pilot)
    return {
        name: _estimate(name, pilot, ids.get(name, []), after, tokens, copies[name], config) for name in pilot.shares
    }


def _sources(artifact: Artifact) -> Iterable[tuple[bytes, str]]:
    for table in parts_of(artifact, "documents", ["doc_id", "source"]):
        yield from zip(table.column("doc_id").to_pylist(), table.column("source").to_pylist(), strict=True)


def _bytes_by_document(artifact: Artifact) -> dict[bytes, int]:
    """Return the UTF-8 bytes of each document, over all its segments."""
    found: Counter[bytes] = Counter()
    for table in parts_of(artifact, "documents", ["doc_id", "text"]):
        sizes = pc.binary_length(table.column("text")).to_pylist()
        for doc_id, size in zip(table.column("doc_id").to_pylist(), sizes, strict=True):
            found[doc_id] += size
    return found


def _tokens_by_document(chunk: Artifact) -> dict[bytes, int]:
    """Return the packed tokens of each document, including the end-of-text token of each segment."""
    found: Counter[bytes] = Counter()
    for table in parts_of(chunk, "spans", ["doc_id", "tok_len"]):
        for row in table.group_by("doc_id").aggregate([("tok_len", "sum")]).to_pylist():
            found[row["doc_id"]] += row["tok_len_sum"]
    return found


@dataclass(frozen=True)
class ObservedCopies:
    """Duplicates of one source in a pilot."""

    documents_by_group: Mapping[int, int]
    """Observed group size (1: no copy) -> documents of this source in such groups."""
    removed: int
    """Documents that the pilot removed."""

    @property
    def documents(self) -> int:
        """All documents of the source in the pilot."""
        return sum(self.documents_by_group.values())


def _seen_copies(pilot: Pilot) -> dict[str, ObservedCopies]:
    """Return the duplicates that dedup found in each source; a group is a kept document and its copies."""
    source_of = dict(_sources(pilot.artifacts["clean"]))
    survivor_of = dict(dropped_copies(pilot.artifacts["dedup"]))
    copies = Counter(survivor_of.values())
    by_group: dict[str, Counter[int]] = {name: Counter() for name in pilot.shares}
    removed: Counter[str] = Counter()
    for doc_id, source in source_of.items():
        by_group[source][1 + copies[survivor_of.get(doc_id, doc_id)]] += 1
        removed[source] += doc_id in survivor_of
    return {name: ObservedCopies(by_group[name], removed[name]) for name in pilot.shares}


def _estimate(
    name: str,
    pilot: Pilot,
    ids: list[bytes],
    after: dict[str, dict[bytes, int]],
    tokens: dict[bytes, int],
    copies: ObservedCopies,
    config: DecontaminateConfig,
) -> SourceEstimate:
    share = pilot.shares[name]
    read = pilot.artifacts["sample"].report.sources[name]
    available = read.documents_in - read.rejected
    whole_documents = available * share.recipe_rate
    whole_bytes = read.bytes_in * share.recipe_rate
    taken = min(1.0, len(ids) / whole_documents) if whole_documents else 1.0
    before = _column(ids, after["sample"])
    removal = estimate_removal(copies, taken)
    seen = copies.removed / copies.documents if copies.documents else 0.0
    staying = 1 - seen
    growth = Interval(*((1 - share) / staying if staying else 0.0 for share in (removal.high, removal.value, seen)))
    drawn = drawn_share(np.ones(len(ids)), available, share.recipe_rate)
    drawn_bytes = drawn_share(before, available, share.recipe_rate)
    documents: dict[str, Interval] = {"sample": drawn.scaled(whole_documents)}
    sizes: dict[str, Interval] = {"sample": drawn_bytes.scaled(whole_bytes)}
    for stage in DOCUMENT_STAGES[1:]:
        left = _column(ids, after[stage])
        kept = wilson(int(np.count_nonzero(left)), len(ids), taken)
        documents[stage] = kept.times_independent(documents["sample"])
        sizes[stage] = ratio_total(before, left, whole_bytes, taken).times_independent(drawn_bytes)
        if stage in AFTER_DEDUP:
            documents[stage], sizes[stage] = documents[stage].times(growth), sizes[stage].times(growth)
    trained = kept_share(documents["dedup"].value, sizes["dedup"].value, config)
    for table in (documents, sizes):
        table["decontaminate"] = table["decontaminate"].times(trained)
    counted = ratio_total(before, _column(ids, tokens), whole_bytes, taken).times_independent(drawn_bytes)
    packed = counted.times(growth).times(trained)
    return SourceEstimate(documents, sizes, packed, seen, removal, 1 - trained.value)


def _column(ids: list[bytes], values: dict[bytes, int]) -> F64:
    return np.array([values.get(doc_id, 0) for doc_id in ids], np.float64)


def estimate_removal(seen: ObservedCopies, pilot_share: float) -> Interval:
    """Return the share of a source's documents (0 to 1) that dedup would remove, from a pilot of `pilot_share`."""
    documents = seen.documents
    if not documents:
        return Interval(0.0, 0.0, 0.0)
    observed = seen.removed / documents
    if pilot_share >= 1:
        return Interval(observed, observed, observed)
    sampled = wilson(seen.removed, documents, pilot_share)
    sizes, shares = group_sizes(seen.documents_by_group, pilot_share)
    evenly = sum(count * (1 - 1 / size) for size, count in seen.documents_by_group.items()) / documents
    # Above 1 where copies of other sources are kept rather than this source's own.
    excess = observed / evenly if evenly else 1.0
    value = min(1.0, excess * float((shares * (1 - 1 / sizes)).sum()))
    if_pairs = min(sampled.high / pilot_share, PAIR_REMOVAL * max(1.0, excess))
    value = max(value, observed)
    return Interval(min(sampled.low, value), value, max(min(1.0, if_pairs), value))


def group_sizes(documents_by_group: Mapping[int, int], pilot_share: float) -> tuple[F64, F64]:
    """Return (group sizes in the population, share of documents in groups of each size) by maximum likelihood."""
    seen = np.array(sorted(documents_by_group), np.int64)
    counts = np.array([documents_by_group[int(size)] for size in seen], np.float64)
    sizes = _candidate_sizes(int(seen.max()), pilot_share)
    likelihood = np.exp(_log_binomial(sizes[None, :] - 1, seen[:, None] - 1, pilot_share))
    shares = 1.0 / sizes**2
    shares /= shares.sum()
    for _ in range(EM_ITERATIONS):
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


def kept_share(documents: float, size: float, config: DecontaminateConfig) -> Interval:
    """Return the share of a source (0 to 1) that is not held out, by the recipe's limits on documents and bytes."""
    held_out = heldout_share(documents, size, config)
    if held_out <= config.heldout_share:
        return Interval(1 - held_out, 1 - held_out, 1 - held_out)
    # A few held-out documents may be long or short, so their share of the text is known only between bounds.
    return Interval(1 - HELDOUT_CEILING, 1 - held_out, 1.0)


def heldout_share(documents: float, size: float, config: DecontaminateConfig) -> float:
    """Return the share of a source (0 to 1) that is held out, by the recipe's limits on documents and bytes."""
    if not documents or not size or config.heldout_share == 0:
        return 0.0
    wanted = max(config.heldout_share, config.heldout_min_documents / documents)
    return min(wanted, HELDOUT_CEILING, config.heldout_max_documents / documents, config.heldout_max_bytes / size)


def total(parts: Iterable[Interval]) -> Interval:
    """Return the sum of independent quantities: half-widths add in quadrature on each side."""
    parts = list(parts)
    value = sum(part.value for part in parts)
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Interval(max(0.0, value - below), value, value + above)


def drawn_share(sizes: F64, count: float, rate: float) -> Interval:
    """Return the drawn amount relative to its expectation, where each of `count` documents is drawn at `rate`.

    `sizes` are those of a sample of the documents, in any unit; ones count documents. A sum of independent draws has
    the variance rate (1 - rate) times the sum of squared sizes; the interval is its normal approximation.
    """
    if rate >= 1 or count <= 0 or not sizes.size or not sizes.sum():
        return Interval(1.0, 1.0, 1.0)
    uneven = float((sizes**2).mean()) / float(sizes.mean()) ** 2
    half = Z_95 * math.sqrt((1 - rate) / rate * uneven / count)
    return Interval(max(0.0, 1 - half), 1.0, 1 + half)


def ratio_total(before: F64, after: F64, whole_before: float, share_taken: float) -> Interval:
    """Return the population total of `after` by the ratio estimator (Cochran 1977, chapter 6).

    The estimator uses sampled pairs and the known total of `before`, so that the interval depends on how the ratio
    varies between documents, not on how their lengths vary.
    """
    if not before.size or not before.sum():
        return Interval(0.0, 0.0, 0.0)
    ratio = float(after.sum() / before.sum())
    value = whole_before * ratio
    if share_taken >= 1 or before.size < 2:
        return Interval(value, value, value)
    residual = after - ratio * before
    deviation = math.sqrt(float((residual**2).sum()) / (before.size - 1))
    error = math.sqrt((1 - share_taken) / before.size) * deviation / float(before.mean())
    half = Z_95 * error * whole_before
    return Interval(max(0.0, value - half), value, value + half)
