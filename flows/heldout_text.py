"""Held-out figures of two runs whose data differ: over the documents that both held out, and of which neither was
trained on a copy.

A change of the data changes what is held out. Where near-duplicates stay, a held-out document's own copy is in the
training text, and bits per byte look better than the model is (Lee et al. 2022, section 6: copies of held-out text).
"""

import functools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flows.lineage import parts_of
from tasks.artifact import Artifact

DOCUMENT_SCORES = "document_scores"
Document = tuple[str, bytes, int, int]
"""(source, doc_id, piece, bytes)."""


@dataclass(frozen=True)
class HeldOut:
    """What a run held out: its figures' parts, and where copies of a document would stand."""

    bits: Mapping[str, Mapping[Document, float]] = field(default_factory=dict)
    """Metric of SCORES -> held-out document -> its bits."""
    dedup: Artifact | None = None
    decontaminate: Artifact | None = None

    def documents(self, metric: str) -> frozenset[Document]:
        """The documents that a metric was measured on."""
        return frozenset(self.bits.get(metric, {}))


def held_out(artifacts: Mapping[str, Artifact]) -> HeldOut:
    """What a run held out, from its artifacts; nothing where evaluation kept no bits of single documents."""
    scores = artifacts.get("evaluate")
    bits: dict[str, dict[Document, float]] = defaultdict(dict)
    if scores is not None and scores.files(DOCUMENT_SCORES):
        for row in scores.table(DOCUMENT_SCORES).to_pylist():
            if row["bytes"]:
                bits[row["metric"]][row["source"], row["doc_id"], row["piece"], row["bytes"]] = row["bits"]
    return HeldOut(dict(bits), artifacts.get("dedup"), artifacts.get("decontaminate"))


def is_same_text(one: HeldOut, other: HeldOut) -> bool:
    """Whether both were measured on the same documents, with the same copies left in what they were trained on."""
    same = one.bits.keys() == other.bits.keys() and all(
        one.documents(metric) == other.documents(metric) for metric in one.bits
    )
    return same and _content(one.dedup) == _content(other.dedup)


def fair_documents(one: HeldOut, other: HeldOut, metric: str) -> frozenset[Document]:
    """The documents that both held out and of which neither was trained on a copy that either's dedup knows."""
    both = one.documents(metric) & other.documents(metric)
    trained = [_trained(run.decontaminate.path) for run in (one, other) if run.decontaminate is not None]
    copies = [_copies(run.dedup.path) for run in (one, other) if run.dedup is not None]

    def is_seen(doc_id: bytes) -> bool:
        return any(known.get(doc_id, set()) & of_run for known in copies for of_run in trained)

    return frozenset(document for document in both if not is_seen(document[1]))


def mean_of_sources(run: HeldOut, metric: str, documents: frozenset[Document]) -> float:
    """Bits over bytes of each source's documents, and of these the plain mean, as `heldout/all` has it."""
    by_source: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_source[document[0]].append(document)
    bits = run.bits[metric]
    return statistics.fmean(
        math.fsum(bits[one] for one in of_source) / sum(one[3] for one in of_source) for of_source in by_source.values()
    )


def _content(artifact: Artifact | None) -> str | None:
    return None if artifact is None else artifact.content


@functools.lru_cache(maxsize=8)
def _trained(decontaminate: Path) -> frozenset[bytes]:
    """Ids of the documents that went on to training."""
    parts = parts_of(Artifact.open(decontaminate), "documents", ["doc_id"])
    return frozenset(doc_id for part in parts for doc_id in part.column("doc_id").to_pylist())


@functools.lru_cache(maxsize=8)
def _copies(dedup: Path) -> dict[bytes, set[bytes]]:
    """Survivor -> the documents that were dropped as its copies."""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    for part in parts_of(Artifact.open(dedup), "ledger", ["doc_id", "evidence"]):
        for row in part.to_pylist():
            survivor = json.loads(row["evidence"] or "{}").get("survivor")
            if survivor is not None:
                found[bytes.fromhex(survivor)].add(row["doc_id"])
    return dict(found)
