"""Which documents are kept: exact duplicates by digest, then near duplicates of kept documents.

Documents are visited in order of their rank (documents of earlier runs, then source priority, then longer, then smaller
doc_id). Each is compared with the documents already kept in the same LSH buckets, and removed only where the true
Jaccard similarity with one of them reaches the threshold. So a chain A~B~C of near copies can never remove C on account
of a B that is itself removed, and buckets are stars around kept documents, never joined with each other.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from model.kernels import kernel
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, write_shingle_sets, write_signatures
from tasks.dedup.lsh import NO_BUCKET, Buckets, exact_representatives, find_buckets
from tasks.dedup.minhash import I64, U32, U64

ESTIMATE_SIGMAS = 5.0
NO_REPRESENTATIVE = np.uint32(0xFFFFFFFF)
NO_NODE = -1
CANDIDATES_PER_BLOCK = 1 << 20


@dataclass(frozen=True)
class DuplicateDecisions:
    """For each document, by global row: representative, similarity, and whether the two are byte for byte equal."""

    representative: I64
    """Global row of the document that is kept instead; -1 for a document that is kept."""
    jaccard: npt.NDArray[np.float32]
    exact: npt.NDArray[np.bool_]
    rank: U32
    """Place of each document in the order in which documents are kept."""

    def kept_rows(self, corpus: Corpus, part: int) -> I64:
        """Return the rows of the documents of a part that are kept, from its first on, ascending."""
        return np.flatnonzero(self.representative[corpus.first_row[part] : corpus.first_row[part + 1]] < 0)


def find_duplicates(corpus: Corpus, config: DedupConfig, scratch: Path) -> DuplicateDecisions:
    """Find exact duplicates, then near duplicates of kept documents, each with its most similar kept candidate."""
    order = keep_order(corpus, config)
    rank = np.empty(order.size, np.uint32)
    rank[order] = np.arange(order.size, dtype=np.uint32)
    first_copy = order[exact_representatives(corpus, order)][rank].astype(np.int64)
    is_first = first_copy == np.arange(len(corpus))
    representative = np.where(is_first, -1, first_copy)
    jaccard = np.where(is_first, np.float32(0), np.float32(1))
    buckets = find_buckets(corpus, rank, is_first, config, scratch)
    if buckets.candidates.size:
        rows = np.sort(order[buckets.candidates].astype(np.int64))
        slot = np.searchsorted(rows, order[buckets.candidates]).astype(np.uint32)
        sets, starts = write_shingle_sets(corpus, rows, config, scratch / "shingle-sets.u64")
        signatures = write_signatures(corpus, rows, scratch / "candidates.u32")
        near, similarity = _near_duplicates(corpus.earlier, config, buckets, slot, signatures, sets, starts)
        removed = near != NO_REPRESENTATIVE
        removed_rows = order[buckets.candidates[removed]]
        representative[removed_rows] = order[buckets.candidates[near[removed]]]
        jaccard[removed_rows] = similarity[removed]
    exact = ~is_first
    # A copy of a text that was itself removed as a near duplicate has that text's representative: it is the same text.
    inherited = exact & (representative[first_copy] >= 0)
    representative[inherited] = representative[first_copy[inherited]]
    jaccard[inherited] = jaccard[first_copy[inherited]]
    return DuplicateDecisions(representative, jaccard, exact & ~inherited, rank)


def keep_order(corpus: Corpus, config: DedupConfig) -> U32:
    """Return global rows in the order in which to keep them: earlier runs, source rank, longer, smaller doc_id."""
    last = max(config.priorities.values(), default=-1) + 1
    ranks = [config.priorities.get(name, last) for name in corpus.source_names]
    places = np.array([sorted(set(ranks)).index(rank) for rank in ranks], np.int64)
    own = slice(corpus.earlier, None)
    longest = int(corpus.sizes.max(initial=0))
    place = places[corpus.sources[own]] * (longest + 1) + (longest - corpus.sizes[own])
    ids = np.ascontiguousarray(corpus.doc_ids[own]).view(">u8").astype(np.uint64).reshape(-1, 2)
    order = np.arange(len(corpus), dtype=np.uint32)
    order[own] = np.lexsort((ids[:, 1], ids[:, 0], place)) + corpus.earlier
    return order


def _near_duplicates(
    earlier: int, config: DedupConfig, buckets: Buckets, slot: U32, signatures: U32, sets: U64, starts: I64
) -> tuple[U32, npt.NDArray[np.float64]]:
    """Return, by rank among the candidates, (representative or NO_REPRESENTATIVE, similarity) of each."""
    count = buckets.candidates.size
    representative, similarity = np.full(count, NO_REPRESENTATIVE), np.zeros(count, np.float64)
    last_node, fill = np.full(buckets.count, NO_NODE), np.zeros(buckets.count, np.uint16)
    # The pool is sized for the worst case; its pages are only allocated when written, and most buckets keep one member.
    member, following = np.empty(buckets.memberships, np.uint32), np.empty(buckets.memberships, np.int64)
    compared_with = np.full(count, NO_REPRESENTATIVE)
    earlier_candidates = int(np.searchsorted(buckets.candidates, earlier))
    agreement = min_agreement(config.threshold, config.signature_length)
    used = 0
    for begin in range(0, count, CANDIDATES_PER_BLOCK):
        ranks = buckets.candidates[begin : begin + CANDIDATES_PER_BLOCK]
        table = np.empty((ranks.size, config.bands), np.uint32)
        for band, of_rank in enumerate(buckets.of_band):
            table[:, band] = of_rank[ranks]
        used = _resolve_block(
            begin, table, slot, earlier_candidates, signatures, sets, starts, config.threshold, agreement,
            config.survivors_per_bucket, last_node, fill, member, following, used, compared_with, representative,
            similarity,
        )  # fmt: skip
    assert used <= buckets.memberships
    return representative, similarity


@kernel
def _resolve_block(
    block_begin, buckets, slot, earlier, signatures, sets, starts, threshold, min_agreement,
    max_members, last_node, fill, member, following, used, compared_with, representative,
    jaccard,
):  # fmt: skip
    """Decide greedily about a block of candidates in order of rank; see the module's docstring.

    A bucket's kept members are a ring of nodes, of which `last_node` is the youngest. Returns the nodes used.
    """
    bands = buckets.shape[1]
    for index in range(buckets.shape[0]):
        candidate = block_begin + index
        mine = slot[candidate]
        size = starts[mine + 1] - starts[mine]
        if candidate >= earlier:
            for band in range(bands):
                bucket = buckets[index, band]
                if bucket == NO_BUCKET or last_node[bucket] == NO_NODE:
                    continue
                node = last_node[bucket]
                for _ in range(fill[bucket]):
                    node = following[node]
                    kept = member[node]
                    if compared_with[kept] == candidate:
                        continue
                    compared_with[kept] = candidate
                    theirs = slot[kept]
                    other = starts[theirs + 1] - starts[theirs]
                    # A quotient, like the similarity: a product may be rounded to above what equals the threshold.
                    if min(size, other) / max(size, other) < threshold:
                        continue
                    agreement = 0
                    for value in range(signatures.shape[1]):
                        agreement += signatures[mine, value] == signatures[theirs, value]
                    if agreement < min_agreement:
                        continue
                    similarity = set_similarity(
                        sets, starts[mine], starts[mine + 1], starts[theirs], starts[theirs + 1]
                    )
                    if similarity >= threshold and similarity > jaccard[candidate]:
                        representative[candidate], jaccard[candidate] = kept, similarity
            if representative[candidate] != NO_REPRESENTATIVE:
                continue
        for band in range(bands):
            bucket = buckets[index, band]
            if bucket == NO_BUCKET or fill[bucket] >= max_members:
                continue
            member[used] = candidate
            if last_node[bucket] == NO_NODE:
                following[used] = used
            else:
                following[used] = following[last_node[bucket]]
                following[last_node[bucket]] = used
            last_node[bucket] = used
            fill[bucket] += 1
            used += 1
    return used


@kernel
def set_similarity(sets, first, first_end, second, second_end):
    """Return the Jaccard similarity of the sorted sets sets[first:first_end] and sets[second:second_end]."""
    total = first_end - first + second_end - second
    common = 0
    while first < first_end and second < second_end:
        if sets[first] == sets[second]:
            common += 1
            first += 1
            second += 1
        elif sets[first] < sets[second]:
            first += 1
        else:
            second += 1
    return common / (total - common)


def min_agreement(threshold: float, length: int) -> int:
    """Return the equal signature values needed for verification: five standard errors under the threshold."""
    error = (threshold * (1 - threshold) / length) ** 0.5
    return max(0, int(np.floor((threshold - ESTIMATE_SIGMAS * error) * length)))
