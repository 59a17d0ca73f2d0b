"""Recall, measured in every run: near-copies made from the run's own documents are looked up in the finished index.

Words of kept documents are replaced, dropped and doubled at random until the copy's true Jaccard similarity with its
original is near a target; targets are spread evenly over .5 to 1. A copy is found when the search would have compared
it with its original: in at least one band, among the kept documents of the bucket that are compared, and with enough
agreement of the signatures to be verified. The copies never compete with documents and never reach the output.
Precision needs no measurement: no document is removed without a verified similarity at or above the threshold.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.artifacts.results import InjectedCopies
from tasks.artifacts.tables.columns import text_buffers
from tasks.artifacts.tables.files import read_table, table_file_name
from tasks.artifacts.tables.map_parts import unit_name
from tasks.artifacts.workspace import Workspace
from tasks.common.groups import begins_group, first_of_group
from tasks.common.numeric import seed64, wilson_interval
from tasks.common.text import replace_places
from tasks.common.utf8 import GOLDEN
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.exact_lines import CutPlan
from tasks.dedup.index import find_in_index, index_signatures
from tasks.dedup.minhash import CHARACTER_WORD, I64, U32, fold_table, shingle_sets, signatures_of
from tasks.dedup.near_duplicates import DuplicateDecisions, min_agreement, set_similarity

MIN_BYTES, MAX_BYTES = 400, 12_000
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True)
class InjectedCopy:
    """A near-copy and its original."""

    row: int
    """Global row of the original."""
    text: str
    jaccard: float


def _inject_copies(corpus: Corpus, is_kept: npt.NDArray[np.bool_], config: DedupConfig) -> list[InjectedCopy]:
    """Make at most `config.planted_pairs` near-copies of kept documents of ordinary length, one per document."""
    kept = np.flatnonzero(is_kept[corpus.earlier :]) + corpus.earlier
    eligible = kept[(corpus.sizes[kept] >= MIN_BYTES) & (corpus.sizes[kept] <= MAX_BYTES)]
    ids = np.ascontiguousarray(corpus.doc_ids[eligible]).view(np.uint64).reshape(-1, 2)[:, 0]
    draw = (ids ^ np.uint64(seed64(config.seed, "dedup", "planted"))) * GOLDEN
    chosen = np.sort(eligible[np.argsort(draw, kind="stable")[: config.planted_pairs]])
    parts = np.searchsorted(corpus.first_row, chosen, side="right") - 1
    copies: list[InjectedCopy] = []
    for part in sorted(set(parts.tolist())):
        texts = corpus.texts_of_part(part)
        for row in chosen[parts == part].tolist():
            original = texts[row - int(corpus.first_row[part])].as_py()
            target = 0.5 + 0.5 * ((len(copies) * _GOLDEN_RATIO) % 1.0)
            key = corpus.doc_ids[row].tobytes().hex()
            generator = np.random.Generator(np.random.PCG64(seed64(config.seed, "dedup", "planted-edit", key)))
            copies.append(InjectedCopy(row, *near_copy(original, target, config.shingle_words, generator)))
    return copies


def near_copy(text: str, target: float, width: int, generator: np.random.Generator) -> tuple[str, float]:
    """Replace, drop or double so many words of `text` that its true Jaccard similarity comes nearest `target`.

    Returns (the copy, its true similarity). Edits are drawn once in a random order; their number is found by bisection.
    """
    spans = word_spans(text)
    order = generator.permutation(len(spans))
    kinds = generator.integers(3, size=len(spans))
    others = generator.integers(max(1, len(spans)), size=len(spans))
    best, best_jaccard = text, 1.0
    few, many = 0, len(spans) + 1
    while many - few > 1:
        edits = (few + many) // 2
        copy = _edited(text, spans, np.sort(order[:edits]).tolist(), kinds, others)
        jaccard = _jaccard_of(text, copy, width)
        if abs(jaccard - target) < abs(best_jaccard - target):
            best, best_jaccard = copy, jaccard
        if jaccard >= target:
            few = edits
        else:
            many = edits
    return best, best_jaccard


def _edited(text: str, spans: list[tuple[int, int]], touched: list[int], kinds: I64, others: I64) -> str:
    places: list[tuple[int, int, str]] = []
    for index in touched:
        start, end = spans[index]
        other = text[slice(*spans[int(others[index])])]
        places.append((start, end, (other, "", f"{text[start:end]} {other}")[int(kinds[index])]))
    return replace_places(text, places)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where each word of `text` begins and ends, in characters."""
    table = fold_table()
    spans: list[tuple[int, int]] = []
    begin = -1
    for position, character in enumerate(text):
        codepoint = ord(character)
        folded = int(table[codepoint]) if codepoint < table.size else CHARACTER_WORD
        if 0 < folded < CHARACTER_WORD:
            begin = position if begin < 0 else begin
            continue
        if begin >= 0:
            spans.append((begin, position))
            begin = -1
        if folded:
            spans.append((position, position + 1))
    return [*spans, (begin, len(text))] if begin >= 0 else spans


def _jaccard_of(first: str, second: str, width: int) -> float:
    data, offsets = text_buffers(pa.array([first, second], pa.large_string()))
    flat, lengths = shingle_sets(data, offsets, np.arange(2), width)
    return set_similarity(flat, 0, lengths[0], lengths[0], flat.size)


def measure_recall(
    corpus: Corpus,
    decisions: DuplicateDecisions,
    plan: CutPlan,
    workspace: Workspace,
    config: DedupConfig,
) -> InjectedCopies:
    """Inject copies and return pairs at or above the threshold, how many were found, Wilson's 95% interval, and bins.

    Each bin is [from, to, pairs, found, expected share by the S-curve at the pairs' own similarities].
    """
    is_kept = (decisions.representative < 0) & ~plan.emptied
    copies = _inject_copies(corpus, is_kept, config)
    found = _found(corpus, decisions.rank, is_kept, copies, workspace, config)
    at_threshold = [hit for injected, hit in zip(copies, found, strict=True) if injected.jaccard >= config.threshold]
    low, high = wilson_interval(sum(at_threshold), len(at_threshold))
    bins = []
    for low_edge, high_edge in itertools.pairwise(BINS):
        inside = [
            (injected.jaccard, hit)
            for injected, hit in zip(copies, found, strict=True)
            if low_edge <= injected.jaccard < high_edge or (high_edge == 1.0 and injected.jaccard == 1.0)
        ]
        chance = sum(1 - (1 - jaccard**config.rows_per_band) ** config.bands for jaccard, _ in inside)
        expected = round(chance / len(inside), 4) if inside else None
        bins.append([low_edge, high_edge, len(inside), sum(hit for _, hit in inside), expected])
    return {
        "pairs": len(at_threshold),
        "found": sum(at_threshold),
        "recall": sum(at_threshold) / len(at_threshold) if at_threshold else None,
        "low": low,
        "high": high,
        "threshold": config.threshold,
        "planted": len(copies),
        "bins": bins,
    }


def _found(
    corpus: Corpus,
    rank: U32,
    is_kept: npt.NDArray[np.bool_],
    copies: list[InjectedCopy],
    workspace: Workspace,
    config: DedupConfig,
) -> list[bool]:
    if not copies:
        return []
    data, offsets = text_buffers(pa.array([injected.text for injected in copies], pa.large_string()))
    queries = signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)
    kept = [np.flatnonzero(is_kept[begin:end]) + begin for begin, end in itertools.pairwise(corpus.first_row.tolist())]
    pairs = [np.empty((4, 0), np.int64)]
    for part, band, rows, numbers in find_in_index(
        _index_parts(corpus, workspace, kept), queries, config.bands, config.rows_per_band
    ):
        # Parts of earlier runs are indexed whole, also where they are copies of one another.
        place = rows + corpus.first_row[part] if part < corpus.earlier_parts else kept[part][rows]
        pairs.append(np.stack([numbers, np.full(numbers.size, band), rank[place], place]))
    queried, bands, ranks, places = np.concatenate(pairs, axis=1)
    order = np.lexsort((ranks, bands, queried))
    queried, bands, places = queried[order], bands[order], places[order]
    within = np.arange(queried.size) - first_of_group(begins_group(queried, bands))
    originals = np.array([injected.row for injected in copies], np.int64)
    compared = queried[(within < config.survivors_per_bucket) & (places == originals[queried])]
    agreement = (corpus.signature_rows(originals) == queries).sum(axis=1)
    enough = agreement >= min_agreement(config.threshold, config.signature_length)
    found = np.zeros(len(copies), np.bool_)
    found[compared] = True
    # Copies under the threshold would be compared and then be kept; for the curve, being compared is what counts.
    below = np.array([injected.jaccard < config.threshold for injected in copies])
    return (found & (enough | below)).tolist()


def _index_parts(corpus: Corpus, workspace: Workspace, kept: Sequence[I64]) -> Iterator[U32]:
    """Yield the signatures of kept documents (global rows by part): those of earlier runs, then this run's finished
    INDEX; for those that it leaves out, the ones it would have."""
    for part, signatures in enumerate(corpus.signatures):
        if part < corpus.earlier_parts:
            yield signatures
        else:
            name = table_file_name("index", unit_name(part - corpus.earlier_parts))
            found, is_stored = index_signatures(read_table(workspace.file(name), ["signature"]))
            found[~is_stored] = signatures[kept[part][~is_stored] - corpus.first_row[part]]
            yield found
