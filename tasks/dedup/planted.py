"""Recall measured in every run: near-copies made from the run's own documents, looked up in the finished index.

Words of kept documents are replaced, dropped and added at random until the copy's true Jaccard similarity with its
original is spread over .5 to 1; more than half of the copies aim at .8 and above. A copy is found when the index gives
its original as a candidate in at least one band. The copies never compete with documents and never reach the output.
Precision needs no measurement: a removal without a verified similarity at or above the threshold cannot happen.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.artifact import read_table
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus, text_column
from tasks.dedup.index import find_in_index
from tasks.dedup.minhash import s_curve, signatures_of, text_buffers
from tasks.dedup.shingles import I64, fold_table, shingle_sets, true_jaccard
from tasks.seed import seed64

LEAST_BYTES, MOST_BYTES = 400, 12_000
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
WILSON_Z = 1.959963984540054
_ODD = np.uint64(0x9E3779B97F4A7C15)
_OWN_WORD = 1 << 31


@dataclass(frozen=True)
class Plant:
    """A near-copy and its original."""

    doc_id: bytes
    text: str
    jaccard: float


def make_plants(corpus: Corpus, kept: I64, config: DedupConfig) -> list[Plant]:
    """At most `config.planted_pairs` near-copies of kept documents of ordinary length, one per document."""
    fit = kept[(corpus.sizes[kept] >= LEAST_BYTES) & (corpus.sizes[kept] <= MOST_BYTES)]
    ids = np.ascontiguousarray(corpus.doc_ids[fit]).view(np.uint64).reshape(-1, 2)[:, 0]
    draw = (ids ^ np.uint64(seed64(config.seed, "dedup", "planted"))) * _ODD
    chosen = np.sort(fit[np.argsort(draw, kind="stable")[: config.planted_pairs]])
    parts = np.searchsorted(corpus.first_row, chosen, side="right") - 1
    plants: list[Plant] = []
    for part in sorted(set(parts.tolist())):
        texts = text_column(read_table(corpus.paths[part]))
        for row in chosen[parts == part].tolist():
            doc_id = corpus.doc_ids[row].tobytes()
            original = texts[row - int(corpus.first_row[part])].as_py()
            target = _target_jaccard(len(plants))
            generator = np.random.Generator(np.random.PCG64(seed64(config.seed, "dedup", "planted-edit", doc_id.hex())))
            copy = near_copy(original, target, config.shingle_words, generator)
            plants.append(Plant(doc_id, copy, _jaccard_of(original, copy, config.shingle_words)))
    return plants


def _target_jaccard(number: int) -> float:
    """Targets spread evenly by the golden ratio: three of five copies over .8 to 1, the others over .5 to .8."""
    spread = (number * 0.6180339887498949) % 1.0
    return 0.8 + 0.2 * spread if number % 5 < 3 else 0.5 + 0.3 * spread


def near_copy(text: str, target: float, width: int, generator: np.random.Generator) -> str:
    """`text` with so many words replaced, dropped or doubled that about `target` of Jaccard similarity remains.

    A share p of touched words leaves s = (1 - p)^width of the shingles, and J = s / (2 - s).
    """
    rate = 1 - (2 * target / (1 + target)) ** (1 / width)
    spans = word_spans(text)
    pieces: list[str] = []
    position = 0
    for index in np.flatnonzero(generator.random(len(spans)) < rate).tolist():
        start, end = spans[index]
        other_start, other_end = spans[int(generator.integers(len(spans)))]
        kind = int(generator.integers(3))
        if kind == 0:
            edit = text[other_start:other_end]
        elif kind == 1:
            edit = ""
        else:
            edit = f"{text[start:end]} {text[other_start:other_end]}"
        pieces += [text[position:start], edit]
        position = end
    return "".join([*pieces, text[position:]])


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where each word of `text` begins and ends, in characters."""
    table = fold_table()
    spans: list[tuple[int, int]] = []
    begin = -1
    for position, character in enumerate(text):
        codepoint = ord(character)
        folded = int(table[codepoint]) if codepoint < table.size else _OWN_WORD
        if 0 < folded < _OWN_WORD:
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
    return true_jaccard(flat[: lengths[0]], flat[lengths[0] :])


def measure_recall(plants: list[Plant], index: Iterable[pa.Table], config: DedupConfig) -> dict[str, object]:
    """Facts of the run: pairs at or above the threshold, how many were found, Wilson's 95% interval, and bins.

    Each bin is [from, to, pairs, found, expected share by the S-curve at the pairs' own similarities].
    """
    found = _found(plants, index, config)
    at_threshold = [hit for plant, hit in zip(plants, found, strict=True) if plant.jaccard >= config.threshold]
    low, high = wilson_interval(sum(at_threshold), len(at_threshold))
    bins = []
    for low_edge, high_edge in itertools.pairwise(BINS):
        inside = [
            (plant.jaccard, hit)
            for plant, hit in zip(plants, found, strict=True)
            if low_edge <= plant.jaccard < high_edge or (high_edge == 1.0 and plant.jaccard == 1.0)
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
        "planted": len(plants),
        "bins": bins,
    }


def _found(plants: list[Plant], index: Iterable[pa.Table], config: DedupConfig) -> list[bool]:
    if not plants:
        return []
    data, offsets = text_buffers(pa.array([plant.text for plant in plants], pa.large_string()))
    queries = signatures_of(data, offsets, config.shingle_words, config.signature_length, config.permutation_seed)
    originals = np.frombuffer(b"".join(plant.doc_id for plant in plants), np.uint8).reshape(-1, 16)
    found = np.zeros(len(plants), np.bool_)
    for doc_ids, numbers in find_in_index(index, queries, config.bands, config.rows_per_band):
        found[numbers[(doc_ids == originals[numbers]).all(axis=1)]] = True
    return found.tolist()


def wilson_interval(successes: int, trials: int) -> tuple[float | None, float | None]:
    """Wilson's 95% score interval of a proportion; (None, None) without trials."""
    if trials == 0:
        return None, None
    share, z2 = successes / trials, WILSON_Z**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = WILSON_Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    # At the ends the formula's exact value is 0 or 1; rounding would show .9999999999999999.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half


def curve_facts(config: DedupConfig) -> list[list[float]]:
    """The S-curve of the settings, for the run page."""
    return s_curve(config.bands, config.rows_per_band)
