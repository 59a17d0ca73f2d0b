"""An interpolated modified Kneser-Ney language model of five tokens, which scores held-out text beside a network.

Chen and Goodman 1998, section 4.1.6, with the adjusted counts of Heafield et al. 2013 (KenLM): the longest n-grams
count how often they stand in the text, shorter ones by how many different tokens they are preceded, except where they
open a document, where nothing can precede them. Lower orders are interpolated down to all ids alike.

Nothing is stored but sorted places: text to be scored is sorted together with what was read, so that each of its
n-grams stands beside the same ones of the text, and each of its contexts beside the same contexts.

Shapes: N tokens of the stream, T of them read (they come first), P places, H = N - T tokens to be scored.
"""

from dataclasses import dataclass

import numpy as np

from tasks.evaluate.discounts import discounted, discounts_of
from tasks.evaluate.ngram_order import LONGEST, reach_of, shared_with_former, sorted_by_token
from tasks.kernels import kernel


@dataclass(frozen=True)
class Stretches:
    """Stretches of tokens one behind the other."""

    tokens: np.ndarray
    """u32[N]."""
    begins: np.ndarray
    """bool[N]: where a stretch begins, so that nothing before it is known."""
    is_predicted: np.ndarray
    """bool[N]: False in padding, and for what only opens a text that is scored alone."""


@dataclass(frozen=True)
class Estimate:
    """What the model makes of a text."""

    bits: np.ndarray
    """f64[H]: code length of each token; nan where it is not predicted."""
    ngrams: tuple[int, ...]
    """Different n-grams of each order, from 1, that the model holds."""
    without_discounts: tuple[int, ...]
    """Orders of which the text has too few n-grams to find discounts, so that fixed ones stand in."""


def estimate(read: Stretches, scored: Stretches, vocab_size: int, eos: int, walls: tuple[int, ...]) -> Estimate:
    """Bits of each token of `scored` under the model of `read`; the order of stretches decides nothing.

    `eos` opens and closes documents: as a prediction it is a token like others, as a context the first. Ids of `walls`
    are neither predicted nor context.
    """
    tokens = np.concatenate([read.tokens, scored.tokens])
    is_wall = np.zeros(vocab_size, dtype=np.bool_)
    is_wall[list(walls)] = True
    reach = reach_of(tokens, np.concatenate([read.begins, scored.begins]), is_wall, eos)
    predicted = np.concatenate([read.is_predicted, scored.is_predicted]) & ~is_wall[tokens]
    by_context = np.flatnonzero(predicted).astype(np.int32)
    for back in range(LONGEST - 1, 0, -1):
        by_context = sorted_by_token(tokens, reach, by_context, back, vocab_size)
    by_ngram = sorted_by_token(tokens, reach, by_context, 0, vocab_size)
    shared_ngram = shared_with_former(tokens, reach, by_ngram, 0)
    shared_context = shared_with_former(tokens, reach, by_context, 1)

    trained = len(read.tokens)
    counts = np.zeros(len(tokens), dtype=np.int32)
    probabilities = np.full(len(scored.tokens), 1 / vocab_size)
    ngrams: list[int] = []
    without_discounts: list[int] = []
    for order in range(1, LONGEST + 1):
        _adjusted_counts(tokens, reach, by_ngram, shared_ngram, order, trained, eos, counts)
        counts_of_counts = np.bincount(np.minimum(counts[:trained], LONGEST), minlength=LONGEST + 1)
        discounts, of_formula = discounts_of(counts_of_counts[:5])
        if not of_formula:
            without_discounts.append(order)
        ngrams.append(int(counts_of_counts[1:].sum()))
        _interpolate(reach, by_context, shared_context, order, trained, counts, discounts, probabilities)
    probabilities[~predicted[trained:]] = np.nan
    return Estimate(-np.log2(probabilities), tuple(ngrams), tuple(without_discounts))


@kernel
def _adjusted_counts(
    tokens: np.ndarray,
    reach: np.ndarray,
    by_ngram: np.ndarray,
    shared: np.ndarray,
    order: int,
    trained: int,
    eos: int,
    counts: np.ndarray,
) -> None:
    """Write the adjusted count of the n-gram that ends at each place to `counts` i32[N].

    Every place to be scored has that of its n-gram, of the places read only one, so that each n-gram counts once.
    """
    counts[:] = 0
    begin = 0
    while begin < len(by_ngram):
        end = begin + 1
        while end < len(by_ngram) and shared[end] >= order:
            end += 1
        last = by_ngram[begin]
        if reach[last] >= order - 1:
            occurrences = preceded = 0
            one_read = -1
            met = False
            for nth in range(begin, end):
                if shared[nth] == order or nth == begin:
                    met = False
                place = by_ngram[nth]
                if place < trained:
                    occurrences += 1
                    one_read = place
                    if reach[place] >= order and not met:
                        preceded += 1
                        met = True
            opens_document = order > 1 and tokens[last - (order - 1)] == eos
            count = occurrences if order == LONGEST or opens_document else preceded
            for nth in range(begin, end):
                if by_ngram[nth] >= trained:
                    counts[by_ngram[nth]] = count
            if one_read >= 0:
                counts[one_read] = count
        begin = end


@kernel
def _interpolate(
    reach: np.ndarray,
    by_context: np.ndarray,
    shared: np.ndarray,
    order: int,
    trained: int,
    counts: np.ndarray,
    discounts: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    """Carry `probabilities` f64[H] from the order below to this one, where the context was read."""
    begin = 0
    while begin < len(by_context):
        end = begin + 1
        while end < len(by_context) and shared[end] >= order - 1:
            end += 1
        if reach[by_context[begin]] >= order - 1:
            total = once = twice = oftener = 0
            for nth in range(begin, end):
                place = by_context[nth]
                if place < trained and counts[place] > 0:
                    total += counts[place]
                    once += counts[place] == 1
                    twice += counts[place] == 2
                    oftener += counts[place] > 2
            left = discounts[1] * once + discounts[2] * twice + discounts[3] * oftener
            if total > 0:
                for nth in range(begin, end):
                    place = by_context[nth] - trained
                    if place >= 0:
                        kept = discounted(counts[place + trained], discounts)
                        probabilities[place] = (kept + left * probabilities[place]) / total
        begin = end
