"""Rows of sentence pairs for BERT: [CLS] A [SEP] B [SEP], and whether B follows A in its document (next sentence
prediction, Devlin et al. 2019, appendix A.2 and the function `create_instances_from_document` of their program).

As there, sentences are collected up to the length of a row, a tenth of the rows aims at a random shorter length, and A
ends after a random sentence. Two things differ. Nothing is truncated: what does not fit begins the next pair. And no
text is duplicated or left over: BERT draws the second segment of a false pair from all text; here two pairs swap
theirs, of the same length or of lengths that fit both, so that each segment is read exactly once and lengths do not
reveal the label. The last sentence of a document may be alone, without a B; two such sentences of different documents
become a pair that counts as not following.

Pairs are made in windows of documents (`tokenize.WINDOW_TOKENS`). Rows are in the order of their A.

Shapes: D documents of a window, P pairs, S segments.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from model.kernels import kernel
from tasks.artifacts.tables.columns import text_buffers
from tasks.chunk.config import ChunkConfig
from tasks.chunk.order import GOLDEN_GAMMA, splitmix64
from tasks.chunk.packing import BATCH_ROWS, PackedRows, Segments
from tasks.chunk.sentences import sentence_borders
from tasks.chunk.tokenize import Block, TokenBytes
from tasks.tokenizer.base import Tokenizer

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
SHORT_ROW_SHARE = 0.1
"""Share of rows that aim at a random shorter length, so that the model sees short texts too (BERT: 0.1)."""
_MAX_UNUSED_TOKENS = 16
"""Tokens of a row that may stay unused before a sentence is cut to fill them."""
_MAX_TRIED = 64
"""Pairs of similar length that are tried for a swap, and segments of the same document that are skipped."""


@dataclass(frozen=True)
class PairFormat:
    """The format of rows of pairs: tokens per row, the special ids, and the share of rows that aim at a shorter
    length."""

    row_length: int
    cls: int
    sep: int
    pad: int
    short_row_share: float = SHORT_ROW_SHARE

    @staticmethod
    def of(tokenizer: Tokenizer, config: ChunkConfig) -> "PairFormat":
        """Return the format of the rows of a vocabulary."""
        return PairFormat(config.row_length, tokenizer.cls, tokenizer.sep, tokenizer.pad)

    @property
    def capacity(self) -> int:
        """Tokens of both segments together."""
        return self.row_length - SPECIAL_TOKENS


@dataclass(frozen=True)
class Pairs:
    """Both segments of P pairs as tokens [begin, end) of a block; an empty second segment means none. Arrays [P]."""

    a_document: np.ndarray
    a_begin: np.ndarray
    a_end: np.ndarray
    b_document: np.ndarray
    b_begin: np.ndarray
    b_end: np.ndarray
    is_next: np.ndarray

    def __len__(self) -> int:
        return len(self.a_begin)

    @property
    def a_length(self) -> np.ndarray:
        """Tokens of the first segments."""
        return self.a_end - self.a_begin

    @property
    def b_length(self) -> np.ndarray:
        """Tokens of the second segments, 0 where there is none."""
        return self.b_end - self.b_begin

    def take(self, which: np.ndarray) -> "Pairs":
        """Return a selection of the pairs."""
        return Pairs(**{name: column[which] for name, column in vars(self).items()})


class PairPacker:
    """Packs one source. `first_row` is the id of row 0, `key` a seed of 64 bits; `labels` counts the kinds of pairs."""

    def __init__(self, layout: PairFormat, token_bytes: TokenBytes, first_row: int, key: int) -> None:
        self._format = layout
        self._token_bytes = token_bytes
        self._row = first_row
        self._key = np.uint64(key)
        self._drawn = 0
        self.labels: Counter[str] = Counter()
        """Rows whose second segment is `next`, `not_next` or missing (`single`)."""

    def rows(self, windows: Iterable[Block]) -> Iterator[PackedRows]:
        """Yield all rows in order, `BATCH_ROWS` at a time."""
        for window in windows:
            borders = self._token_bytes.borders(window)
            pairs = self._pairs(window, borders)
            single = pairs.b_length == 0
            self.labels["single"] += int(single.sum())
            self.labels["next"] += int((pairs.is_next & ~single).sum())
            self.labels["not_next"] += int((~pairs.is_next & ~single).sum())
            for begin in range(0, len(pairs), BATCH_ROWS):
                which = np.arange(begin, min(begin + BATCH_ROWS, len(pairs)))
                yield self._pack(window, borders, pairs.take(which))

    def _pairs(self, window: Block, borders: np.ndarray) -> Pairs:
        assert window.texts is not None, "sentences are found in the texts"
        ends, counts = sentence_borders(*text_buffers(window.texts), window.begins, window.lengths, borders)
        gathered = make_pairs(
            window.begins, ends, counts, self._format.capacity, self._format.short_row_share, self._key, self._drawn
        )
        self._drawn += len(gathered)
        documents = window.doc_ids.dictionary_encode().indices.to_numpy().astype(np.int64)
        joined = join_singles(gathered, documents, self._format.capacity)
        return swap_second_segments(joined, documents, self._format.capacity, self._key)

    def _pack(self, window: Block, borders: np.ndarray, pairs: Pairs) -> PackedRows:
        count, length = len(pairs), self._format.row_length
        rows = np.full((count, length), self._format.pad, dtype=window.tokens.dtype)
        boundaries = (pairs.a_begin, pairs.a_end, pairs.b_begin, pairs.b_end)
        _write_rows(window.tokens, *boundaries, rows, self._format.cls, self._format.sep)
        single = pairs.b_length == 0
        second = np.where(single, length, pairs.a_length + 2)
        counted = pairs.a_length + pairs.b_length
        numbers = np.arange(self._row, self._row + count)
        self._row += count
        segments = Segments(
            row=np.repeat(numbers, 2),
            tok_start=np.stack([np.ones_like(second), second], axis=1).reshape(-1),
            document=np.stack([pairs.a_document, pairs.b_document], axis=1).reshape(-1),
            begin=np.stack([pairs.a_begin, pairs.b_begin], axis=1).reshape(-1),
            end=np.stack([pairs.a_end, pairs.b_end], axis=1).reshape(-1),
        )
        return PackedRows(
            rows=rows,
            real=counted + SPECIAL_TOKENS - single,
            counted=counted,
            spans=segments.spans(window, borders),
            second_start=second.astype(np.int32),
            is_next=pa.array(pairs.is_next, mask=single),
        )


def make_pairs(
    begins: np.ndarray,
    ends: np.ndarray,
    counts: np.ndarray,
    capacity: int,
    short_row_share: float,
    key: np.uint64,
    drawn: int,
) -> Pairs:
    """Return pairs of consecutive sentences of each document, all of them following each other.

    `ends` are the sentences' ends, `counts` [D] the number of sentences of each document; `drawn` is the number of
    earlier pairs of the source, so that each has random numbers of its own. A sentence that does not fit is cut where
    more than `_MAX_UNUSED_TOKENS` tokens would stay unused, and continues in the next pair; else it begins the next
    pair.
    """
    document = np.repeat(np.arange(len(counts)), counts)
    first, middle, last, owner = _make_pairs(begins, ends, document, capacity, short_row_share, key, drawn)
    return Pairs(owner, first, middle, owner, middle, last, np.ones(len(first), dtype=bool))


@kernel
def _make_pairs(begins, ends, document, capacity, short_row_share, key, drawn):
    """Return (begin, end of the first segment, end of the second, document) of each pair, from the ends of
    sentences."""
    tokens = ends[-1] - begins[document[0]] if len(ends) else 0
    most = len(ends) + tokens // capacity + 1
    first = np.empty(most, dtype=np.int64)
    middle = np.empty(most, dtype=np.int64)
    last = np.empty(most, dtype=np.int64)
    owner = np.empty(most, dtype=np.int64)
    found = sentence = 0
    begin = -1
    short = int(short_row_share * (1 << 31))
    while sentence < len(ends):
        mine = document[sentence]
        if begin < 0:
            begin = begins[mine]
        target = capacity
        if _drawn(key, 3 * (drawn + found), 1 << 31) < short:
            target = 2 + _drawn(key, 3 * (drawn + found) + 1, capacity - 1)
        if ends[sentence] - begin > target:  # short rows have at least one whole sentence, like BERT's
            target = min(capacity, target + ends[sentence] - begin)
        stop = sentence
        while stop < len(ends) and document[stop] == mine and ends[stop] - begin <= target:
            stop += 1
        end = ends[stop - 1] if stop > sentence else begin
        splits = stop - sentence - 1
        if (
            stop < len(ends)
            and document[stop] == mine
            and (stop == sentence or end - begin + _MAX_UNUSED_TOKENS < target)
        ):
            end = begin + target
            splits += 1
        if splits:
            split = ends[sentence + _drawn(key, 3 * (drawn + found) + 2, splits)]
        else:
            split = end if stop > sentence else begin + (target + 1) // 2
        first[found], middle[found], last[found], owner[found] = begin, split, end, mine
        found += 1
        sentence = stop
        begin = end if stop < len(ends) and document[stop] == mine else -1
    return first[:found].copy(), middle[:found].copy(), last[:found].copy(), owner[:found].copy()


def join_singles(pairs: Pairs, documents: np.ndarray, capacity: int) -> Pairs:
    """Return the pairs in their order, with pairs that lack a second segment joined by two: the longest first, each
    with the longest that fits and is of another document. The earlier of the two is the first segment."""
    singles = np.flatnonzero(pairs.b_length == 0)
    partner = _match_singles(pairs.a_length[singles], documents[pairs.a_document[singles]], capacity, _MAX_TRIED)
    found = np.flatnonzero(partner > np.arange(len(singles)))
    first, second = singles[found], singles[partner[found]]
    changed = {name: column.copy() for name, column in vars(pairs).items()}
    for side in ("document", "begin", "end"):
        changed[f"b_{side}"][first] = changed[f"a_{side}"][second]
    changed["is_next"][first] = False
    kept = np.ones(len(pairs), dtype=bool)
    kept[second] = False
    return Pairs(**changed).take(np.flatnonzero(kept))


@kernel
def _match_singles(lengths: np.ndarray, documents: np.ndarray, capacity: int, most_passed: int) -> np.ndarray:
    """Return the partner of each segment [S], -1 without one: the longest segment first, with the longest that fits.

    A segment skips at most `most_passed` others of its own document, or a long document would take quadratic time.
    """
    partner = np.full(len(lengths), -1, dtype=np.int64)
    newest = np.full(capacity + 2, -1, dtype=np.int64)  # length -> an unmatched segment of that length
    older = np.full(len(lengths), -1, dtype=np.int64)
    for segment in range(len(lengths) - 1, -1, -1):
        older[segment] = newest[lengths[segment]]
        newest[lengths[segment]] = segment
    longest = capacity
    while longest > 0:
        segment = newest[longest]
        if segment < 0:
            longest -= 1
            continue
        newest[longest] = older[segment]
        passed = 0
        for length in range(min(longest, capacity - longest), 0, -1):
            before, other = -1, newest[length]
            while other >= 0 and documents[other] == documents[segment] and passed < most_passed:
                before, other = other, older[other]
                passed += 1
            if passed == most_passed:
                break
            if other >= 0:
                if before < 0:
                    newest[length] = older[other]
                else:
                    older[before] = older[other]
                partner[segment], partner[other] = other, segment
                break
    return partner


def swap_second_segments(pairs: Pairs, documents: np.ndarray, capacity: int, key: np.uint64) -> Pairs:
    """Return the pairs with enough second segments swapped that half of the labels are false.

    Two pairs swap when both rows fit the result and neither gets a segment of its own document. Where there are too few
    such pairs, fewer labels are false.
    """
    following = np.flatnonzero((pairs.b_length > 0) & pairs.is_next)
    a, b = pairs.a_length[following], pairs.b_length[following]
    draws = _hash_numbers(pairs.a_begin[following].astype(np.uint64) ^ _hash_numbers(np.array([key], np.uint64)))
    by_length = np.lexsort((draws, b))
    document = documents[pairs.a_document[following]]
    left, right = _find_swaps(a[by_length], b[by_length], document[by_length], capacity, _MAX_TRIED)
    false_already = int(((pairs.b_length > 0) & ~pairs.is_next).sum())
    wanted = max(0, ((len(following) + false_already) // 2 - false_already + 1) // 2)
    chosen = np.argsort(_hash_numbers(draws[by_length[left]]), kind="stable")[:wanted]
    one, other = following[by_length[left[chosen]]], following[by_length[right[chosen]]]
    changed: dict[str, np.ndarray] = {}
    for side in ("b_document", "b_begin", "b_end"):
        column = getattr(pairs, side).copy()
        column[one], column[other] = column[other], column[one]
        changed[side] = column
    is_next = pairs.is_next.copy()
    is_next[one] = is_next[other] = False
    return replace(pairs, **changed, is_next=is_next)


@kernel
def _find_swaps(a, b, document, capacity, nearest):
    """Return disjoint couples of pairs that may swap their second segments; the pairs are sorted by the length of
    these."""
    taken = np.zeros(len(a), dtype=np.bool_)
    left = np.empty(len(a) // 2, dtype=np.int64)
    right = np.empty(len(a) // 2, dtype=np.int64)
    found = 0
    for one in range(len(a)):
        if taken[one]:
            continue
        for other in range(one + 1, min(one + 1 + nearest, len(a))):
            fits = a[one] + b[other] <= capacity and a[other] + b[one] <= capacity
            if not taken[other] and fits and document[one] != document[other]:
                left[found], right[found] = one, other
                taken[one] = taken[other] = True
                found += 1
                break
    return left[:found].copy(), right[:found].copy()


@kernel
def _write_rows(tokens, a_begin, a_end, b_begin, b_end, rows, cls, sep):
    for row in range(len(rows)):
        rows[row, 0] = cls
        position = 1
        for token in range(a_begin[row], a_end[row]):
            rows[row, position] = tokens[token]
            position += 1
        rows[row, position] = sep
        if b_end[row] > b_begin[row]:
            position += 1
            for token in range(b_begin[row], b_end[row]):
                rows[row, position] = tokens[token]
                position += 1
            rows[row, position] = sep


@kernel
def _drawn(key: np.uint64, counter: int, bound: int) -> int:
    """Return a random number in [0, bound) for bounds below 2^32."""
    number = splitmix64(key + np.uint64(counter) * GOLDEN_GAMMA)
    return int(((number >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@kernel
def _hash_numbers(numbers: np.ndarray) -> np.ndarray:
    hashed = np.empty_like(numbers)
    for position in range(len(numbers)):
        hashed[position] = splitmix64(numbers[position] + GOLDEN_GAMMA)
    return hashed
