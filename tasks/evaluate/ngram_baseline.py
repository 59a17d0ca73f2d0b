"""5-gram baseline: an interpolated modified Kneser-Ney model of the training sequences, scored on the same held-out
text.

Chen and Goodman 1998, section 4.1.6, with the adjusted counts of Heafield et al. 2013 (KenLM): n-grams of the highest
order count their occurrences, lower ones the number of different tokens that precede them, except where they open a
document, where nothing can precede them. Lower orders are interpolated down to the uniform distribution over all ids.

Each sequence counts once, however often ORDER reads it. A repetition is no new evidence, and Kneser-Ney would take it
for some: its discounts come from n-grams that occur once and twice, and where everything is read twice nothing occurs
once. A model that overfits repeated text is compared with one that does not.

Documents have the boundaries that they have for the network: n-grams reach back to the end-of-text token that opens a
document, never across the beginning of a row, and held-out documents are scored alone after that token.

Only sorted positions are stored. The text to be scored is sorted together with the text read, so that each of its
n-grams is next to its occurrences there, and each of its contexts next to the same contexts. An n-gram is read
backwards: its last token first, then the tokens before it, as far as the context reaches. One sort by five tokens
serves all orders, since n-grams that share their last tokens are adjacent; and before its last pass, over the tokens
themselves, positions are in the order of their contexts.

Shapes: N tokens of the stream, T of them read (they come first), H = N - T tokens to be scored, P positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.data.row_format import RowFormat
from model.kernels import kernel
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.columns import token_rows
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.rows import ScoreRow
from tasks.common.groups import begins_of
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import EncodedSource
from tasks.evaluate.repeated_passages import add_parts, repeated_tokens
from tasks.evaluate.scores import NO_MEASUREMENT, HeldoutRows
from tasks.tokenizer.base import Tokenizer

PREFIX = "5gram_"
METRIC = f"{PREFIX}bits_per_byte"
MAX_ORDER = 5
"""Tokens of the longest n-grams."""
FALLBACK_DISCOUNTS = (0.0, 0.5, 1.0, 1.5)
"""Discounts of counts of 0, 1, 2 and more where the counts give none: KenLM's fallback."""


@dataclass(frozen=True)
class TokenStream:
    """The tokens of sequences or documents, concatenated."""

    tokens: np.ndarray
    """u32[N]."""
    begins: np.ndarray
    """bool[N]: the first token of a sequence or document, before which nothing is known."""
    is_predicted: np.ndarray
    """bool[N]: False for padding, and for the token that opens a document scored alone."""


@dataclass(frozen=True)
class Estimate:
    """The code lengths that the model gives a text."""

    bits: np.ndarray
    """f64[H]: code length of each token; nan where it is not predicted."""
    ngrams: tuple[int, ...]
    """Number of distinct n-grams of each order, from 1, in the model."""
    without_discounts: tuple[int, ...]
    """Orders with too few n-grams to estimate discounts, for which fixed ones are used."""


def ngram_scores(
    tokenizer: Tokenizer,
    sources: Sequence[EncodedSource],
    sequences: Artifact,
    config: EvaluateConfig,
    repeated: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[ScoreRow]:
    """Return rows of SCORES: bits per byte of held-out texts by source and as their plain mean, counted on `sequences`.

    Of more than `config.ngram_tokens` tokens those that ORDER reads first are counted; every part of ORDER has the same
    mixture. `repeated` is that of `repeated_in_training`: with it new and repeated text are given apart too.
    """
    if not sources:
        return []
    tables = [read_table(path) for path in sequences.files("sequences")]
    read, left_out = read_rows(tables, sequences.table("order"), tokenizer, config.ngram_tokens)
    scored = document_stream([row for source in sources for row in source.ids], tokenizer.opening)
    found = estimate(read, scored, tokenizer.vocab_size, tokenizer.opening, _boundary_ids(tables, tokenizer))
    begins = np.flatnonzero(scored.begins)
    of_text = np.nan_to_num(found.bits)
    bits = np.add.reduceat(of_text, begins)
    of_tokens = [one[1:] for one in np.split(of_text, begins[1:])]
    note = _note(int(read.is_predicted.sum()), left_out, found)
    scores = HeldoutRows(config.bootstrap_rounds, config.seed)
    done = 0
    for source in sources:
        count = len(source.documents)
        mine = slice(done, done + count)
        measured = scores.ratio(source.name, bits[mine], source.sizes)
        description = source.describe()
        if source.unknown:
            measured = NO_MEASUREMENT
            description += f", {source.unknown} of them unknown: no value, since their text is lost"
        elif repeated is not None:
            add_parts(scores, source.name, PREFIX, of_tokens[mine], source.lengths, repeated[source.name])
        scores.add(source.name, METRIC, measured, count, f"{description}; {note}")
        done += count
    return scores.scores().rows


def repeated_in_training(
    sources: Sequence[EncodedSource], sequences: Artifact, most_tokens: int
) -> dict[str, list[np.ndarray]]:
    """Return `repeated_tokens` of held-out texts by source, for the rows on which the 5-gram is counted."""
    tables = [read_table(path) for path in sequences.files("sequences")]
    rows, _ = _rows_that_are_read(tables, sequences.table("order"), most_tokens)
    found = iter(repeated_tokens([ids for source in sources for ids in source.ids], _tokens_of(tables, rows)))
    return {source.name: [next(found) for _ in source.ids] for source in sources}


def read_rows(
    tables: Sequence[pa.Table], order: pa.Table, tokenizer: Tokenizer, most_tokens: int
) -> tuple[TokenStream, int]:
    """Return the rows of SEQUENCES that ORDER reads, each once, and how many rows beyond `most_tokens` are left out."""
    rows, left_out = _rows_that_are_read(tables, order, most_tokens)
    tokens = np.concatenate(list(_tokens_of(tables, rows)))
    begins = np.zeros(tokens.shape, dtype=np.bool_)
    begins[:, 0] = True
    stream = TokenStream(tokens.reshape(-1), begins.reshape(-1), ~_padding(tokens, tokenizer).reshape(-1))
    return stream, left_out


def _rows_that_are_read(tables: Sequence[pa.Table], order: pa.Table, most_tokens: int) -> tuple[np.ndarray, int]:
    """Return the rows that ORDER reads first, ascending, and how many it reads beyond `most_tokens`."""
    first_reads = order.column("row").to_numpy()[order.column("epoch").to_numpy() == 0]
    length = tables[0].schema.field("tokens").type.list_size
    rows = np.sort(first_reads[: max(1, most_tokens // length)])
    return rows, len(first_reads) - len(rows)


def _tokens_of(tables: Sequence[pa.Table], wanted: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the tokens of the rows `wanted`, ascending, u32[rows, length], batch by batch."""
    for table in tables:
        for batch in table.to_batches():
            rows = batch.column("row").to_numpy()
            mine = wanted[np.searchsorted(wanted, rows[0]) : np.searchsorted(wanted, rows[-1], side="right")] - rows[0]
            yield token_rows(batch)[mine].astype(np.uint32)


def _padding(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return bool of the tokens' shape: padding at the end of rows. Where the padding id is the end-of-text token,
    the first one of a row's last run closes a document."""
    padding = np.logical_and.accumulate((tokens == tokenizer.pad)[:, ::-1], axis=1)[:, ::-1].copy()
    if tokenizer.pad == tokenizer.eos:
        padding[:, 1:] &= padding[:, :-1]
    return padding


def document_stream(documents: Sequence[np.ndarray], opening: int) -> TokenStream:
    """Return each document after the token `opening`, which is read and not scored."""
    lengths = np.array([len(document) + 1 for document in documents], dtype=np.int64)
    begins = np.zeros(int(lengths.sum()), dtype=np.bool_)
    begins[begins_of(lengths)] = True
    tokens = np.full(len(begins), opening, dtype=np.uint32)
    tokens[~begins] = np.concatenate([np.zeros(0, dtype=np.uint32), *documents])
    return TokenStream(tokens, begins, ~begins)


def _boundary_ids(tables: Sequence[pa.Table], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that end a context and are not predicted: those that frame BERT's pairs."""
    row_format = RowFormat.of(tables[0].schema)
    if row_format is None or row_format.objective != "masked_lm":
        return ()
    return tuple(sorted({tokenizer.cls, tokenizer.sep}))


def _note(tokens: int, left_out: int, found: Estimate) -> str:
    description = (
        f"interpolated modified Kneser-Ney, {found.ngrams[-1]} different 5-grams of {tokens} tokens, each row once"
    )
    if left_out:
        description += f", {left_out} rows left out"
    if found.without_discounts:
        orders = ", ".join(str(order) for order in found.without_discounts)
        description += f"; too few n-grams of order {orders} for discounts of their own"
    return description


def estimate(
    read: TokenStream, scored: TokenStream, vocab_size: int, eos: int, boundary_ids: tuple[int, ...]
) -> Estimate:
    """Return the bits of each token of `scored` under the model of `read`; the order of documents does not matter.

    `eos` opens documents (and closes them, or is a begin token): it is predicted like other tokens, and is the first
    token of a context. Ids of `boundary_ids` are neither predicted nor context.
    """
    tokens = np.concatenate([read.tokens, scored.tokens])
    is_boundary = np.zeros(vocab_size, dtype=np.bool_)
    is_boundary[list(boundary_ids)] = True
    reach = context_lengths(tokens, np.concatenate([read.begins, scored.begins]), is_boundary, eos)
    predicted = np.concatenate([read.is_predicted, scored.is_predicted]) & ~is_boundary[tokens]
    by_context = np.flatnonzero(predicted).astype(np.int32)
    for back in range(MAX_ORDER - 1, 0, -1):
        by_context = sort_by_token(tokens, reach, by_context, back, vocab_size)
    by_ngram = sort_by_token(tokens, reach, by_context, 0, vocab_size)
    shared_ngram = shared_with_previous(tokens, reach, by_ngram, 0)
    shared_context = shared_with_previous(tokens, reach, by_context, 1)

    trained = len(read.tokens)
    counts = np.zeros(len(tokens), dtype=np.int32)
    probabilities = np.full(len(scored.tokens), 1 / vocab_size)
    ngrams: list[int] = []
    without_discounts: list[int] = []
    for order in range(1, MAX_ORDER + 1):
        _adjusted_counts(tokens, reach, by_ngram, shared_ngram, order, trained, eos, counts)
        counts_of_counts = np.bincount(np.minimum(counts[:trained], MAX_ORDER), minlength=MAX_ORDER + 1)
        discounts, of_formula = estimate_discounts(counts_of_counts[:5])
        if not of_formula:
            without_discounts.append(order)
        ngrams.append(int(counts_of_counts[1:].sum()))
        _interpolate(reach, by_context, shared_context, order, trained, counts, discounts, probabilities)
    probabilities[~predicted[trained:]] = np.nan
    return Estimate(-np.log2(probabilities), tuple(ngrams), tuple(without_discounts))


@kernel
def context_lengths(tokens: np.ndarray, begins: np.ndarray, is_boundary: np.ndarray, eos: int) -> np.ndarray:
    """Return how many tokens before each position belong to its n-grams, u8[N], at most MAX_ORDER - 1.

    0 at the beginning of a document or row (`begins` bool[N]) and after a boundary (`is_boundary` bool[vocabulary]); a
    document's n-grams reach back to the end-of-text token that opens it, and no further.
    """
    reach = np.zeros(len(tokens), dtype=np.uint8)
    for place in range(1, len(tokens)):
        before = tokens[place - 1]
        if begins[place] or is_boundary[before]:
            continue
        reach[place] = 1 if before == eos else min(np.int64(reach[place - 1]) + 1, MAX_ORDER - 1)
    return reach


@kernel
def sort_by_token(tokens: np.ndarray, reach: np.ndarray, places: np.ndarray, back: int, vocab_size: int) -> np.ndarray:
    """Return positions i32[P] sorted stably by the token `back` positions before each."""
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
def key_of(tokens: np.ndarray, reach: np.ndarray, place: int, back: int) -> np.int64:
    """Return the token `back` positions before `place`, numbered from 1; 0 where the context does not reach so far."""
    return np.int64(0) if back > reach[place] else np.int64(tokens[place - back]) + 1


@kernel
def shared_with_previous(tokens: np.ndarray, reach: np.ndarray, ordered: np.ndarray, first: int) -> np.ndarray:
    """Return how many keys, from `first` positions back on, each position shares with the one before it in the
    order, u8[P]."""
    shared = np.zeros(len(ordered), dtype=np.uint8)
    for nth in range(1, len(ordered)):
        for back in range(first, MAX_ORDER):
            mine = key_of(tokens, reach, ordered[nth], back)
            if mine != key_of(tokens, reach, ordered[nth - 1], back):
                break
            shared[nth] += 1
    return shared


@kernel
def _adjusted_counts(tokens, reach, by_ngram, shared, order, trained, eos, counts):
    """Write the adjusted count of the n-gram that ends at each position to `counts` i32[N].

    Every position to be scored has the count of its n-gram; of the positions read only one has, so that each n-gram
    counts once.
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
            count = occurrences if order == MAX_ORDER or opens_document else preceded
            for nth in range(begin, end):
                if by_ngram[nth] >= trained:
                    counts[by_ngram[nth]] = count
            if one_read >= 0:
                counts[one_read] = count
        begin = end


def estimate_discounts(counts_of_counts: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return discounts f64[4] of counts 0, 1, 2 and more (Chen and Goodman 1998, equation 26), and whether they are
    those of the formula.

    `counts_of_counts` i64[5]: how many n-grams have each count, up to 4 (entry 0 is ignored). The formula needs some of
    each, and discounts between 0 and the count; a small text may give neither.
    """
    _, once, twice, thrice, four_times = counts_of_counts.tolist()
    if min(once, twice, thrice) == 0:
        return np.array(FALLBACK_DISCOUNTS), False
    share = once / (once + 2 * twice)
    found = (
        0.0,
        1 - 2 * share * twice / once,
        2 - 3 * share * thrice / twice,
        3 - 4 * share * four_times / thrice,
    )
    if all(0 <= discount <= count for count, discount in enumerate(found)):
        return np.array(found), True
    return np.array(FALLBACK_DISCOUNTS), False


@kernel
def _interpolate(reach, by_context, shared, order, trained, counts, discounts, probabilities):
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
                if place < trained:
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


@kernel
def discounted(count: int, discounts: np.ndarray) -> float:
    """Return a count less its discount; counts of 3 or more have the last discount."""
    return count - discounts[min(count, 3)]
