"""The 5-gram beside the network: a strong baseline that reads the rows that training read, and scores the same text.

Each row counts once, however often ORDER reads it. What is read twice is no new evidence, and Kneser-Ney would take it
for some: its discounts come from n-grams that stand in the text once and twice, and where everything is read twice
nothing stands there once. A model that overfits repeated text is measured against one that does not.

Documents have the borders that they have for the network: n-grams reach back to the end-of-text token that opens a
document, never across the beginning of a row, and held-out documents are scored alone behind that token.

An interpolated modified Kneser-Ney language model of five tokens, which scores held-out text beside a network.

Chen and Goodman 1998, section 4.1.6, with the adjusted counts of Heafield et al. 2013 (KenLM): the longest n-grams
count how often they stand in the text, shorter ones by how many different tokens they are preceded, except where they
open a document, where nothing can precede them. Lower orders are interpolated down to all ids alike.

Nothing is stored but sorted places: text to be scored is sorted together with what was read, so that each of its
n-grams stands beside the same ones of the text, and each of its contexts beside the same contexts.

Shapes: N tokens of the stream, T of them read (they come first), P places, H = N - T tokens to be scored.

What modified Kneser-Ney smoothing takes from each count (Chen and Goodman 1998, equation 26).

Places of a stream of tokens in the order of the n-grams that end there, so that equal n-grams stand side by side.

An n-gram is read backwards: its last token first, then the tokens before it, as far as the place reaches. One sort
by five tokens serves all orders, since n-grams that share their last tokens stand together; and before its last pass,
over the tokens themselves, places stand in the order of what precedes them, which serves all contexts.

Shapes: N tokens of the stream, P places, in a sort by keys that are tokens (0 where a place does not reach so far).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from model.data.row_format import RowFormat
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables import read_table
from tasks.common.kernels import kernel
from tasks.common.numeric import seed64
from tasks.evaluate.scores import NOTHING, HeldoutRows, ratio
from tasks.tokenizer.base import Tokenizer

METRIC = "5gram_bits_per_byte"


def ngram_scores(
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    sequences: Artifact,
    *,
    most_tokens: int,
    rounds: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Rows of SCORES: bits per byte of held-out texts by source and as their plain mean, counted on `sequences`.

    Of more than `most_tokens` the rows that ORDER reads first are counted: every stretch of it holds the mixture.
    """
    if not texts:
        return []
    tables = [read_table(path) for path in sequences.files("sequences")]
    read, left_out = read_rows(tables, sequences.table("order"), tokenizer, most_tokens)
    ids = {source: list(tokenizer.encode_batch(documents)) for source, documents in texts.items()}
    scored = documents_alone([row for rows in ids.values() for row in rows], tokenizer.eos)
    found = estimate(read, scored, tokenizer.vocab_size, tokenizer.eos, _walls(tables, tokenizer))
    bits = np.add.reduceat(np.nan_to_num(found.bits), np.flatnonzero(scored.begins))
    note = _note(int(read.is_predicted.sum()), left_out, found)
    scores = HeldoutRows()
    done = 0
    for source, documents in texts.items():
        sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)
        measured = ratio(
            bits[done : done + len(documents)], sizes, rounds, seed64(seed, "evaluate", "bootstrap", source)
        )
        unknown = sum(int((row == tokenizer.unk).sum()) for row in ids[source])
        told = f"{int(sizes.sum())} bytes, {sum(map(len, ids[source]))} tokens"
        if unknown:
            measured = NOTHING
            told += f", {unknown} of them unknown: no figure, for what they stand for is lost"
        scores.add(source, METRIC, measured, len(documents), f"{told}; {note}")
        done += len(documents)
    return scores.rows()


@dataclass(frozen=True)
class Stretches:
    """Stretches of tokens one behind the other."""

    tokens: np.ndarray
    """u32[N]."""
    begins: np.ndarray
    """bool[N]: where a stretch begins, so that nothing before it is known."""
    is_predicted: np.ndarray
    """bool[N]: False in padding, and for what only opens a text that is scored alone."""


def read_rows(
    tables: Sequence[pa.Table], order: pa.Table, tokenizer: Tokenizer, most_tokens: int
) -> tuple[Stretches, int]:
    """The rows of SEQUENCES that ORDER reads, each once, and how many rows more than `most_tokens` are left out."""
    first_reads = order.column("row").to_numpy()[order.column("epoch").to_numpy() == 0]
    length = tables[0].schema.field("tokens").type.list_size
    wanted = np.sort(first_reads[: max(1, most_tokens // length)])
    parts = [np.zeros((0, length), dtype=np.uint32)]
    for table in tables:
        for batch in table.to_batches():
            rows = batch.column("row").to_numpy()
            mine = wanted[np.searchsorted(wanted, rows[0]) : np.searchsorted(wanted, rows[-1], side="right")] - rows[0]
            parts.append(batch.column("tokens").flatten().to_numpy().reshape(-1, length)[mine].astype(np.uint32))
    tokens = np.concatenate(parts)
    begins = np.zeros(tokens.shape, dtype=np.bool_)
    begins[:, 0] = True
    stretches = Stretches(tokens.reshape(-1), begins.reshape(-1), ~_padding(tokens, tokenizer).reshape(-1))
    return stretches, len(first_reads) - len(wanted)


def _padding(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """bool of the tokens' shape: what fills the end of rows. Where padding is the end-of-text token, the first one of
    a row's last run closes a document."""
    padding = np.logical_and.accumulate((tokens == tokenizer.pad)[:, ::-1], axis=1)[:, ::-1].copy()
    if tokenizer.pad == tokenizer.eos:
        padding[:, 1:] &= padding[:, :-1]
    return padding


def documents_alone(documents: Sequence[np.ndarray], eos: int) -> Stretches:
    """Each document behind the end-of-text token, which is read and not scored."""
    lengths = np.array([len(document) + 1 for document in documents], dtype=np.int64)
    begins = np.zeros(int(lengths.sum()), dtype=np.bool_)
    begins[np.cumsum(lengths) - lengths] = True
    tokens = np.full(len(begins), eos, dtype=np.uint32)
    tokens[~begins] = np.concatenate([np.zeros(0, dtype=np.uint32), *documents])
    return Stretches(tokens, begins, ~begins)


def _walls(tables: Sequence[pa.Table], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that end a context and are no prediction: those that frame BERT's pairs."""
    row_format = RowFormat.of(tables[0].schema)
    if row_format is None or row_format.objective != "masked_lm":
        return ()
    return tuple(sorted({tokenizer.cls, tokenizer.sep}))


@dataclass(frozen=True)
class Estimate:
    """What the model makes of a text."""

    bits: np.ndarray
    """f64[H]: code length of each token; nan where it is not predicted."""
    ngrams: tuple[int, ...]
    """Different n-grams of each order, from 1, that the model holds."""
    without_discounts: tuple[int, ...]
    """Orders of which the text has too few n-grams to find discounts, so that fixed ones stand in."""


def _note(tokens: int, left_out: int, found: Estimate) -> str:
    told = f"interpolated modified Kneser-Ney, {found.ngrams[-1]} different 5-grams of {tokens} tokens, each row once"
    if left_out:
        told += f", {left_out} rows left out"
    if found.without_discounts:
        orders = ", ".join(str(order) for order in found.without_discounts)
        told += f"; too few n-grams of order {orders} for discounts of their own"
    return told


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


FALLBACK = (0.0, 0.5, 1.0, 1.5)
"""Taken from n-grams counted once, twice, more often, where their own counts give no discounts: KenLM's fallback."""


def discounts_of(counts_of_counts: np.ndarray) -> tuple[np.ndarray, bool]:
    """Discounts f64[4] of counts 0, 1, 2 and more, and whether they are those of the formula.

    `counts_of_counts` i64[5]: how many n-grams have each count, up to 4 (what stands at 0 is not looked at). The
    formula needs some of each, and discounts between nothing and the count; a small text may give neither.
    """
    _, once, twice, thrice, four_times = counts_of_counts.tolist()
    if min(once, twice, thrice) == 0:
        return np.array(FALLBACK), False
    share = once / (once + 2 * twice)
    found = (
        0.0,
        1 - 2 * share * twice / once,
        2 - 3 * share * thrice / twice,
        3 - 4 * share * four_times / thrice,
    )
    if all(0 <= discount <= count for count, discount in enumerate(found)):
        return np.array(found), True
    return np.array(FALLBACK), False


@kernel
def discounted(count: int, discounts: np.ndarray) -> float:
    """What is left of a count; a count of 3 or more loses the last discount."""
    return count - discounts[min(count, 3)]


LONGEST = 5
"""Tokens of the longest n-grams."""


@kernel
def reach_of(tokens: np.ndarray, begins: np.ndarray, is_wall: np.ndarray, eos: int) -> np.ndarray:
    """How many tokens before each place belong to its n-grams, u8[N], at most LONGEST - 1.

    None where the stretch begins (`begins` bool[N]) or behind a wall (`is_wall` bool[vocabulary]); a document's n-grams
    reach back to the end-of-text token that opens it, and no further.
    """
    reach = np.zeros(len(tokens), dtype=np.uint8)
    for place in range(1, len(tokens)):
        before = tokens[place - 1]
        if begins[place] or is_wall[before]:
            continue
        reach[place] = 1 if before == eos else min(np.int64(reach[place - 1]) + 1, LONGEST - 1)
    return reach


@kernel
def key_of(tokens: np.ndarray, reach: np.ndarray, place: int, back: int) -> np.int64:
    """The token `back` places before `place`, from 1; 0 where the place does not reach so far."""
    return np.int64(0) if back > reach[place] else np.int64(tokens[place - back]) + 1


@kernel
def sorted_by_token(
    tokens: np.ndarray, reach: np.ndarray, places: np.ndarray, back: int, vocab_size: int
) -> np.ndarray:
    """Places i32[P] in the order of the token `back` places before each; equal ones stay in the order they had."""
    begin = np.zeros(vocab_size + 2, dtype=np.int64)
    for place in places:
        begin[key_of(tokens, reach, place, back) + 1] += 1
    for key in range(1, len(begin)):
        begin[key] += begin[key - 1]
    ordered = np.empty_like(places)
    for place in places:
        key = key_of(tokens, reach, place, back)
        ordered[begin[key]] = place
        begin[key] += 1
    return ordered


@kernel
def shared_with_former(tokens: np.ndarray, reach: np.ndarray, ordered: np.ndarray, first: int) -> np.ndarray:
    """How many keys, from `first` places back on, each place shares with the one before it in the order, u8[P]."""
    shared = np.zeros(len(ordered), dtype=np.uint8)
    for nth in range(1, len(ordered)):
        for back in range(first, LONGEST):
            mine = key_of(tokens, reach, ordered[nth], back)
            if mine != key_of(tokens, reach, ordered[nth - 1], back):
                break
            shared[nth] += 1
    return shared
