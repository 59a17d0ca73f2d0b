"""The 5-gram against a slow one that follows the formulas, and against sums that must be one."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluate.ngram_baseline import (
    FALLBACK_DISCOUNTS,
    MAX_ORDER,
    Estimate,
    TokenStream,
    discounted,
    estimate,
    estimate_discounts,
)

EOS, WALL = 0, 1
Gram = tuple[int, ...]


def stretches(texts: Sequence[Sequence[int]], opened: bool = False) -> TokenStream:
    """Texts as stretches; `opened`: the first token of each is only context."""
    begins = [place == 0 for text in texts for place in range(len(text))]
    tokens = [token for text in texts for token in text]
    first = np.array(begins, dtype=np.bool_)
    return TokenStream(np.array(tokens, dtype=np.uint32), first, ~first if opened else np.ones(len(tokens), np.bool_))


def bits(read: Sequence[Sequence[int]], scored: Sequence[Sequence[int]], vocab_size: int) -> Estimate:
    return estimate(stretches(read), stretches(scored, opened=True), vocab_size, EOS, (WALL,))


class Reference:
    """Modified Kneser-Ney as it is written down, in dictionaries."""

    def __init__(self, read: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        occurrences: Counter[Gram] = Counter()
        before: dict[Gram, set[int]] = defaultdict(set)
        for text in read:
            for end in range(1, len(text) + 1):
                for order in range(1, min(MAX_ORDER, end) + 1):
                    gram = tuple(text[end - order : end])
                    if WALL in gram or EOS in gram[1:-1]:
                        break
                    occurrences[gram] += 1
                    prepends_eos = order > 1 and gram[0] == EOS
                    if end > order and not prepends_eos and text[end - order - 1] != WALL:
                        before[gram].add(text[end - order - 1])
        self.counts: dict[Gram, int] = {}
        for gram, count in occurrences.items():
            raw = len(gram) == MAX_ORDER or (len(gram) > 1 and gram[0] == EOS)
            if raw or before[gram]:
                self.counts[gram] = count if raw else len(before[gram])
        self.discounts = {}
        for order in range(1, MAX_ORDER + 1):
            of_counts = Counter(count for gram, count in self.counts.items() if len(gram) == order)
            self.discounts[order], _ = estimate_discounts(np.array([of_counts[n] for n in range(5)]))
        self.followers: dict[Gram, list[Gram]] = defaultdict(list)
        for gram in self.counts:
            self.followers[gram[:-1]].append(gram)

    def probability(self, context: Gram, token: int) -> float:
        lower = self.probability(context[1:], token) if context else 1 / self.vocab_size
        followers = self.followers.get(context, [])
        total = sum(self.counts[gram] for gram in followers)
        if not total:
            return lower
        taken = self.discounts[len(context) + 1]
        left = sum(taken[min(self.counts[gram], 3)] for gram in followers)
        count = self.counts.get((*context, token), 0)
        return (count - taken[min(count, 3)] + left * lower) / total

    def bits(self, text: Sequence[int]) -> list[float]:
        """Of all tokens but the first, each after what is before it in its document."""
        found = []
        for place in range(1, len(text)):
            context: Gram = ()
            for back in range(1, MAX_ORDER):
                if place < back or text[place - back] == WALL:
                    break
                context = (text[place - back], *context)
                if text[place - back] == EOS:
                    break
            found.append(-np.log2(self.probability(context, text[place])))
        return found


def drawn(seed: int, length: int, vocab_size: int) -> list[int]:
    """Tokens of which some follow others more often than not, with ends of documents and walls among them."""
    generator = np.random.default_rng(seed)
    text = [0]
    while len(text) < length:
        likely = (text[-1] * 3 + 2) % vocab_size
        text.append(int(likely if generator.random() < 0.5 else generator.integers(vocab_size)))
    return text


def test_five_tokens_of_one_text_by_hand():
    """A text `2 3` read once: two ids follow others once each, the rest is shared evenly."""
    found = bits([[EOS, 2, 3, EOS]], [[EOS, 2]], vocab_size=4)
    # Each of 2, 3, EOS is preceded by one other token: counts 1, 1, 1; the fallback takes a half of each.
    unigram = 0.5 / 3 + 0.5 * (1 / 4)
    # After EOS comes 2, once: half of it, and half of what the unigram gives.
    assert found.bits[1] == pytest.approx(-np.log2(0.5 + 0.5 * unigram))
    assert np.isnan(found.bits[0])
    assert found.ngrams == (3, 3, 2, 1, 0)
    assert found.without_discounts == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("vocab_size", [4, 12, 60])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_token_costs_what_the_formulas_say(vocab_size: int, seed: int):
    read = [drawn(seed, 300, vocab_size) for _ in range(8)] + [drawn(seed + 50, 700, vocab_size), [2]]
    scored = [[EOS, *drawn(seed + 7, 80, vocab_size)], [EOS, *read[0][3:40]], [EOS, 2]]
    reference = Reference(read, vocab_size)
    found = bits(read, scored, vocab_size)
    expected = [value for text in scored for value in (np.nan, *reference.bits(text))]
    boundary_ids = np.array([token == WALL for text in scored for token in text])
    np.testing.assert_allclose(found.bits[~boundary_ids], np.array(expected)[~boundary_ids], rtol=1e-12)
    assert np.isnan(found.bits[boundary_ids]).all()
    assert found.ngrams == tuple(Counter(map(len, reference.counts))[order] for order in range(1, MAX_ORDER + 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=25), max_size=6),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_probabilities_of_all_ids_sum_to_one(read: list[list[int]], context: list[int]):
    """Walls are ids too: what they can never be is what the even share of all ids gives them."""
    candidates = [[EOS, *context, token] for token in range(6)]
    found = estimate(stretches(read), stretches(candidates, opened=True), 6, EOS, ())
    last = np.cumsum([len(text) for text in candidates]) - 1
    assert np.exp2(-found.bits[last]).sum() == pytest.approx(1.0, abs=1e-12)


def test_the_order_of_stretches_and_what_else_is_scored_change_nothing():
    read, scored = [drawn(n, 200, 20) for n in range(6)], [[EOS, *drawn(9, 50, 20)], [EOS, *drawn(10, 50, 20)]]
    together = bits(read, scored, 20).bits
    np.testing.assert_array_equal(bits(read[::-1], scored, 20).bits, together)
    np.testing.assert_array_equal(bits(read, scored[1:], 20).bits, together[51:])


def test_without_text_all_ids_are_alike():
    assert bits([], [[EOS, 2, 3]], 16).bits[1:].tolist() == [4.0, 4.0]


def test_discounts_are_those_of_the_formula_or_the_fallback():
    """Four once, two twice, one thrice, one four times: Y = 4 / (4 + 2 x 2) = 1/2."""
    found, of_formula = estimate_discounts(np.array([0, 4, 2, 1, 1]))
    assert of_formula
    assert found.tolist() == [0, 1 - 2 * 0.5 * 2 / 4, 2 - 3 * 0.5 * 1 / 2, 3 - 4 * 0.5 * 1 / 1]
    for counts in ([9, 4, 2, 0, 1], [0, 0, 2, 1, 1], [0, 4, 1, 9, 1]):
        fallback, of_formula = estimate_discounts(np.array(counts))
        assert (fallback.tolist(), of_formula) == (list(FALLBACK_DISCOUNTS), False)
    assert [float(discounted(count, found)) for count in (0, 1, 3, 9)] == [0, 0.5, 2, 8]
