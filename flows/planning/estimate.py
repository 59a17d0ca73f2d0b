"""From a pilot to the whole: documents, bytes and tokens of every source after every stage, with 95% intervals.

The whole is what the recipe would select. Its documents and bytes are known exactly from the pilot's full reading of
the files; what each stage leaves is estimated from the pilot's documents as a simple random sample. Removal by dedup
grows with the corpus and is estimated apart (`flows.planning.estimate`).

Estimates with their 95% intervals, from a simple random sample of documents without replacement.

How many duplicates the whole holds, when a pilot saw some of them.

A pilot under-counts: a document and its copy are both in a pilot of share q only with probability q squared. What it
saw still tells the sizes of the groups of copies. A document of a group of K meets j - 1 of its copies in the pilot
with the binomial probability B(j - 1; K - 1, q); the share of documents in groups of each size is the mixture that
makes the observed counts likeliest, found by expectation-maximisation (the nonparametric maximum likelihood of Norris
and Pollock 1998, over documents instead of species). Of a group of K, one document stays.

Groups of copies of one size would be told exactly; what no pilot can tell is how much of the text it met only once has
a single copy elsewhere. So an interval comes with it: at least the share that the pilot removed, at most what it would
be if all copies came in pairs, which is the arrangement that hides best.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flows.planning.pilot import Pilot, PilotShare
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.ledger import DROP
from tasks.artifacts.tables import read_table
from tasks.decontaminate.config import DecontaminateConfig

DOCUMENT_STAGES = ("sample", "clean", "dedup", "decontaminate")

AFTER_DEDUP = frozenset({"dedup", "decontaminate", "chunk"})

HELDOUT_CEILING = 0.2
"""No more than a fifth of a source is held out, whatever the limits say."""

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% interval."""

    low: float
    value: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The interval of `factor` times the quantity."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def times(self, other: "Interval") -> "Interval":
        """The product of two quantities that are not negative; the widest interval, as if they erred together."""
        return Interval(self.low * other.low, self.value * other.value, self.high * other.high)

    def times_independent(self, other: "Interval") -> "Interval":
        """The product of two quantities that err apart: half-widths add in quadrature, below and above apart."""
        value = self.value * other.value
        below = math.hypot((self.value - self.low) * other.value, (other.value - other.low) * self.value)
        above = math.hypot((self.high - self.value) * other.value, (other.high - other.value) * self.value)
        return Interval(max(0.0, value - below), value, value + above)

    def to_json(self) -> dict[str, float]:
        """Plain values."""
        return {"low": self.low, "value": self.value, "high": self.high}


@dataclass(frozen=True)
class SourceEstimate:
    """One source of the whole: after each stage its documents and UTF-8 bytes, and the tokens that are packed."""

    documents: dict[str, Interval]
    bytes: dict[str, Interval]
    tokens: Interval
    removal_in_pilot: float
    """Share of documents that dedup removed in the pilot."""
    removal: Interval
    """The same for the whole."""
    held_out: float
    """Share of documents that the whole holds out at most."""


def estimate_sources(pilot: Pilot, config: DecontaminateConfig) -> dict[str, SourceEstimate]:
    """Source -> estimate; `config` is the recipe's, which says how much is held out."""
    ids = _source_rows(pilot.artifacts["sample"])
    after = {stage: _bytes_by_document(pilot.artifacts[stage]) for stage in DOCUMENT_STAGES}
    tokens = _tokens_by_document(pilot.artifacts["chunk"])
    copies = _seen_copies(pilot)
    return {
        name: _estimate(name, pilot, ids.get(name, []), after, tokens, copies[name], config) for name in pilot.shares
    }


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


def _estimate(
    name: str,
    pilot: Pilot,
    ids: list[bytes],
    after: dict[str, dict[bytes, int]],
    tokens: dict[bytes, int],
    copies: SeenCopies,
    config: DecontaminateConfig,
) -> SourceEstimate:
    share: PilotShare = pilot.shares[name]
    read = pilot.artifacts["sample"].report.sources[name]
    available = read.documents_in - read.rejected
    whole_documents = available * share.recipe_rate
    whole_bytes = read.bytes_in * share.recipe_rate
    taken = min(1.0, len(ids) / whole_documents) if whole_documents else 1.0
    before = _column(ids, after["sample"])
    removal = removal_of_whole(copies, taken)
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
    trained = trained_share(documents["dedup"].value, sizes["dedup"].value, config)
    for table in (documents, sizes):
        table["decontaminate"] = table["decontaminate"].times(trained)
    counted = ratio_total(before, _column(ids, tokens), whole_bytes, taken).times_independent(drawn_bytes)
    packed = counted.times(growth).times(trained)
    return SourceEstimate(documents, sizes, packed, seen, removal, 1 - trained.value)


def trained_share(documents: float, size: float, config: DecontaminateConfig) -> Interval:
    """Return the share of a source (0 to 1) that is not held out, by the recipe's limits on documents and bytes."""
    held_out = heldout_share(documents, size, config)
    if held_out <= config.heldout_share:
        return Interval(1 - held_out, 1 - held_out, 1 - held_out)
    # A few documents may be long or short, so that their share of the text is known only between bounds.
    return Interval(1 - HELDOUT_CEILING, 1 - held_out, 1.0)


def heldout_share(documents: float, size: float, config: DecontaminateConfig) -> float:
    """Share of a source (0 to 1) that is held out, by the limits on documents and bytes of the recipe."""
    if not documents or not size or config.heldout_share == 0:
        return 0.0
    wanted = max(config.heldout_share, config.heldout_min_documents / documents)
    return min(wanted, HELDOUT_CEILING, config.heldout_max_documents / documents, config.heldout_max_bytes / size)


def _column(ids: list[bytes], values: dict[bytes, int]) -> F64:
    return np.array([values.get(doc_id, 0) for doc_id in ids], np.float64)


def _tables(artifact: Artifact, table: str, columns: Iterable[str]) -> Iterable[pa.Table]:
    return (read_table(path).select(list(columns)) for path in artifact.files(table))


def _source_rows(sample: Artifact) -> dict[str, list[bytes]]:
    """Source -> ids of its documents in the pilot."""
    found: dict[str, list[bytes]] = {}
    for table in _tables(sample, "documents", ("doc_id", "source")):
        for doc_id, source in zip(*(table.column(name).to_pylist() for name in ("doc_id", "source")), strict=True):
            found.setdefault(source, []).append(doc_id)
    return found


def _bytes_by_document(artifact: Artifact) -> dict[bytes, int]:
    """Document -> UTF-8 bytes of all its pieces."""
    found: Counter[bytes] = Counter()
    for table in _tables(artifact, "documents", ("doc_id", "text")):
        for doc_id, size in zip(
            table.column("doc_id").to_pylist(), pc.binary_length(table.column("text")).to_pylist(), strict=True
        ):
            found[doc_id] += size
    return found


def _tokens_by_document(chunk: Artifact) -> dict[bytes, int]:
    """Document -> tokens packed, the end-of-text token of each piece included."""
    found: Counter[bytes] = Counter()
    for table in _tables(chunk, "spans", ("doc_id", "tok_len")):
        sums = table.group_by("doc_id").aggregate([("tok_len", "sum")])
        for doc_id, count in zip(*(sums.column(name).to_pylist() for name in ("doc_id", "tok_len_sum")), strict=True):
            found[doc_id] += count
    return found


def _seen_copies(pilot: Pilot) -> dict[str, SeenCopies]:
    """Source -> how many of its documents dedup saw in groups of each size; a group is a survivor and its copies."""
    source_of: dict[bytes, str] = {
        doc_id: source
        for table in _tables(pilot.artifacts["clean"], "documents", ("doc_id", "source"))
        for doc_id, source in zip(*(table.column(name).to_pylist() for name in ("doc_id", "source")), strict=True)
    }
    survivor_of: dict[bytes, bytes] = {}
    for table in _tables(pilot.artifacts["dedup"], "ledger", ("doc_id", "action", "evidence")):
        for row in table.filter(pc.equal(table.column("action"), DROP)).to_pylist():
            survivor_of[row["doc_id"]] = bytes.fromhex(json.loads(row["evidence"])["survivor"])
    copies = Counter(survivor_of.values())
    by_group: dict[str, Counter[int]] = {name: Counter() for name in pilot.shares}
    removed: Counter[str] = Counter()
    for doc_id, source in source_of.items():
        by_group[source][1 + copies[survivor_of.get(doc_id, doc_id)]] += 1
        removed[source] += doc_id in survivor_of
    return {name: SeenCopies(by_group[name], removed[name]) for name in pilot.shares}


Z = 1.959964
"""Two-sided 95% of the normal distribution."""


def total(parts: Iterable[Interval]) -> Interval:
    """The sum of independent quantities: half-widths add in quadrature, below and above apart."""
    parts = list(parts)
    value = sum(part.value for part in parts)
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts))
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts))
    return Interval(max(0.0, value - below), value, value + above)


def wilson(successes: int, sampled: int, share_taken: float) -> Interval:
    """A share and its interval (Wilson 1927); a sample that is `share_taken` of the whole counts as 1 / (1 - share)
    times as large, which is the finite population correction, and the whole itself is exact."""
    if not sampled:
        return Interval(0.0, 0.0, 1.0)
    share = successes / sampled
    if share_taken >= 1:
        return Interval(share, share, share)
    size = sampled / (1 - share_taken)
    centre = (share + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * math.sqrt(share * (1 - share) / size + Z**2 / (4 * size**2))
    return Interval(max(0.0, min(centre - half, share)), share, min(1.0, max(centre + half, share)))


def drawn_share(sizes: npt.NDArray[np.float64], count: float, rate: float) -> Interval:
    """How much of what is expected is drawn where each of `count` documents is drawn by itself at `rate`, around 1.

    `sizes` are those of a sample of them, in any unit; ones count documents. A sum of independent draws has the
    variance rate (1 - rate) sum of squared sizes; its normal approximation is taken.
    """
    if rate >= 1 or count <= 0 or not sizes.size or not sizes.sum():
        return Interval(1.0, 1.0, 1.0)
    uneven = float((sizes**2).mean()) / float(sizes.mean()) ** 2
    half = Z * math.sqrt((1 - rate) / rate * uneven / count)
    return Interval(max(0.0, 1 - half), 1.0, 1 + half)


def ratio_total(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], whole_before: float, share_taken: float
) -> Interval:
    """The whole's total of `after`, from sampled pairs and the known total of `before` (Cochran 1977, chapter 6).

    The ratio estimator: long documents weigh as much as they are long, so that the interval comes from how differently
    documents fare and not from how long they are.
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
    half = Z * error * whole_before
    return Interval(max(0.0, value - half), value, value + half)


ROUNDS = 2000

LARGEST_GROUP = 1_000_000

PAIR_REMOVAL = 0.5
"""Of a pair one stays."""


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
