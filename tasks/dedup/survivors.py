"""Which documents stay: exact duplicates by digest, then near duplicates against documents that stay.

Documents are visited in order of their rank (source priority, then longer, then smaller doc_id). Each is compared with
the documents already kept in the same LSH buckets, and removed only where the true Jaccard similarity with one of them
reaches the threshold. So a chain A~B~C of near copies can never remove C on account of a B that is itself gone, and
buckets are stars around kept documents, never joined with themselves.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, write_shingle_sets
from tasks.dedup.minhash import band_keys
from tasks.dedup.shingles import I64, U64
from tasks.kernels import kernel

ESTIMATE_SIGMAS = 5.0
NO_BUCKET = -1

Verdicts = tuple[I64, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Fates:
    """For each document in input order: who stays in its place, how alike they are, and whether byte for byte."""

    survivor: I64
    """Global row of the document that stays instead; -1 for a document that stays."""
    jaccard: npt.NDArray[np.float64]
    exact: npt.NDArray[np.bool_]


def keep_order(corpus: Corpus, config: DedupConfig) -> I64:
    """Global rows from the document to keep first to the last: source rank, longer text, smaller doc_id."""
    last = max(config.priorities.values(), default=-1) + 1
    ranks = np.array([config.priorities.get(name, last) for name in corpus.source_names], np.int64)
    ids = np.ascontiguousarray(corpus.doc_ids).view(">u8").astype(np.uint64).reshape(-1, 2)
    return np.lexsort((ids[:, 1], ids[:, 0], -corpus.sizes, ranks[corpus.sources]))


def exact_representatives(corpus: Corpus, order: I64) -> I64:
    """For each document the first document in `order` with the same text digest (itself where it is the first)."""
    digests = np.ascontiguousarray(corpus.digests[order]).view(np.uint64).reshape(-1, 2)
    by_digest = np.lexsort((np.arange(order.size), digests[:, 1], digests[:, 0]))
    sorted_digests = digests[by_digest]
    opens = np.ones(order.size, np.bool_)
    opens[1:] = (sorted_digests[1:] != sorted_digests[:-1]).any(axis=1)
    firsts = by_digest[opens][np.cumsum(opens) - 1] if order.size else by_digest
    representatives = np.empty(order.size, np.int64)
    representatives[order[by_digest]] = order[firsts]
    return representatives


def shared_buckets(corpus: Corpus, rows: I64, config: DedupConfig) -> tuple[I64, I64]:
    """Documents that share a bucket with another: (their global rows, ascending; their bucket in each band or -1).

    A band is sorted by its keys and equal neighbours form a bucket; one band's keys are in memory at a time.
    """
    found: list[tuple[I64, I64]] = []
    buckets = 0
    in_any = np.zeros(len(corpus), np.bool_)
    if not rows.size:
        return np.empty(0, np.int64), np.empty((0, config.bands), np.int64)
    for band in range(config.bands):
        keys = np.concatenate(
            [np.empty(0, np.uint64), *(band_keys(part, band, config.rows_per_band) for part in corpus.signatures)]
        )[rows]
        order = np.argsort(keys, kind="stable")
        equal = keys[order][1:] == keys[order][:-1]
        shared = np.concatenate([equal, [False]]) | np.concatenate([[False], equal])
        opens = shared & ~np.concatenate([[False], equal])
        members = rows[order[shared]]
        found.append((members, buckets + np.cumsum(opens)[shared] - 1))
        buckets += int(opens.sum())
        in_any[members] = True
    candidates = np.flatnonzero(in_any)
    table = np.full((candidates.size, config.bands), NO_BUCKET, np.int64)
    for band, (members, numbers) in enumerate(found):
        table[np.searchsorted(candidates, members), band] = numbers
    return candidates, table


@kernel
def _jaccard(sets, first, first_end, second, second_end):
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


@kernel
def _visit(order, buckets, bucket_count, signatures, sets, starts, threshold, least_agreement, centres):
    """Greedy pass in order of rank; see the module's docstring. Returns (survivor or -1, jaccard) per candidate."""
    documents, bands = buckets.shape
    head = np.full(bucket_count, -1, np.int64)
    tail = np.full(bucket_count, -1, np.int64)
    fill = np.zeros(bucket_count, np.int64)
    member = np.empty(documents * bands, np.int64)
    following = np.full(documents * bands, -1, np.int64)
    used = 0
    compared_with = np.full(documents, -1, np.int64)
    survivor = np.full(documents, -1, np.int64)
    jaccard = np.zeros(documents, np.float64)
    for rank in range(order.size):
        document = order[rank]
        size = starts[document + 1] - starts[document]
        for band in range(bands):
            bucket = buckets[document, band]
            node = head[bucket] if bucket >= 0 else -1
            while node >= 0:
                kept = member[node]
                node = following[node]
                if compared_with[kept] == document:
                    continue
                compared_with[kept] = document
                other = starts[kept + 1] - starts[kept]
                if min(size, other) < threshold * max(size, other):
                    continue
                agreement = 0
                for value in range(signatures.shape[1]):
                    agreement += signatures[document, value] == signatures[kept, value]
                if agreement < least_agreement:
                    continue
                similarity = _jaccard(sets, starts[document], starts[document + 1], starts[kept], starts[kept + 1])
                if similarity >= threshold and similarity > jaccard[document]:
                    survivor[document], jaccard[document] = kept, similarity
        if survivor[document] >= 0:
            continue
        for band in range(bands):
            bucket = buckets[document, band]
            if bucket < 0 or fill[bucket] >= centres:
                continue
            member[used] = document
            if head[bucket] < 0:
                head[bucket] = used
            else:
                following[tail[bucket]] = used
            tail[bucket] = used
            fill[bucket] += 1
            used += 1
    return survivor, jaccard


def least_agreement(threshold: float, length: int) -> int:
    """Equal signature values below which a pair is not worth verifying: five standard errors under the threshold."""
    error = (threshold * (1 - threshold) / length) ** 0.5
    return max(0, int(np.floor((threshold - ESTIMATE_SIGMAS * error) * length)))


def decide_fates(corpus: Corpus, config: DedupConfig, scratch: Path) -> Fates:
    """Exact duplicates, then near duplicates of kept documents. Of several kept candidates the most alike is named."""
    order = keep_order(corpus, config)
    representatives = exact_representatives(corpus, order)
    is_first = representatives == np.arange(len(corpus))
    candidates, buckets = shared_buckets(corpus, np.flatnonzero(is_first), config)
    survivor = np.where(is_first, -1, representatives)
    jaccard = np.where(is_first, 0.0, 1.0)
    if candidates.size:
        sets, starts = write_shingle_sets(
            corpus, candidates, config.shingle_words, config.threads, scratch / "shingle-sets.u64"
        )
        rank = np.empty(len(corpus), np.int64)
        rank[order] = np.arange(len(corpus))
        near, similarity = _near_duplicates(corpus, config, candidates, buckets, sets, starts, rank)
        removed = near >= 0
        survivor[candidates[removed]] = candidates[near[removed]]
        jaccard[candidates[removed]] = similarity[removed]
    exact = ~is_first
    # A copy of a text that was itself removed as a near duplicate takes that text's survivor: it is the same text.
    passed_on = exact & (survivor[representatives] >= 0)
    survivor[passed_on] = survivor[representatives[passed_on]]
    jaccard[passed_on] = jaccard[representatives[passed_on]]
    return Fates(survivor, jaccard, exact & ~passed_on)


def _near_duplicates(
    corpus: Corpus, config: DedupConfig, candidates: I64, buckets: I64, sets: U64, starts: I64, rank: I64
) -> Verdicts:
    return _visit(
        np.argsort(rank[candidates], kind="stable"),
        buckets,
        int(buckets.max(initial=-1)) + 1,
        corpus.signature_rows(candidates),
        sets,
        starts,
        config.threshold,
        least_agreement(config.threshold, config.signature_length),
        config.survivors_per_bucket,
    )
