"""From a pilot to the whole: documents, bytes and tokens of every source after every stage, with 95% intervals.

The whole is what the recipe would select. Its documents and bytes are known exactly from the pilot's full reading of
the files; what each stage leaves is estimated from the pilot's documents as a simple random sample. Removal by dedup
grows with the corpus and is estimated apart (`flows.planning.duplicates`).
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flows.planning.duplicates import SeenCopies, removal_of_whole
from flows.planning.intervals import Interval, drawn_share, ratio_total, wilson
from flows.planning.pilot import Pilot
from flows.planning.pilot_shares import PilotShare
from tasks.artifact import Artifact
from tasks.decontaminate.config import DecontaminateConfig
from tasks.ledger import DROP
from tasks.tables import read_table

DOCUMENT_STAGES = ("sample", "clean", "dedup", "decontaminate")
AFTER_DEDUP = frozenset({"dedup", "decontaminate", "chunk"})
HELDOUT_CEILING = 0.2
"""No more than a fifth of a source is held out, whatever the limits say."""
F64 = npt.NDArray[np.float64]


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
