"""What is wrong with text that a GPT writes: bytes that are no UTF-8, repetition, and what it has by heart.

Checked are continuations of held-out text. A vocabulary whose pieces are bytes can write half a character, which a
reader sees as a replacement sign: how many bytes are of that kind is told before they are replaced, so that a
vocabulary may be compared with its extension. Repetition is the share of 4-grams of tokens that stood in the same text
before (Welleck et al. 2020, seq-rep-4). The longest run of tokens that also stands in a row of training tells what was
learnt by heart (Carlini et al. 2023 take 50 tokens for it), and the rows' spans name the document.

The longest run of tokens that a text shares with training's rows, of many texts in one pass over the rows.

All texts go into one suffix automaton (Blumer et al. 1985), which reads the rows token by token and knows at each place
how many of the last tokens stand together in some text: a step forward, or back to a shorter ending. A run ends with
its row.

Shapes: R rows, L tokens a row, S states, K slots of the table of transitions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.inference.generate import generate_tokens
from model.nn.gpt import GPT
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.schema import DOC_ID_BYTES
from tasks.artifacts.tables import read_table
from tasks.common.kernels import kernel
from tasks.common.numeric import seed64
from tasks.evaluate.benchmarks.multiple_choice import mean_with_error
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.samples import heldout_prompt
from tasks.evaluate.scores import score_row
from tasks.tokenizer.base import Tokenizer

TASK = "written text"

REPEATED_NGRAM = 4

BY_HEART_TOKENS = 50
"""Tokens from which on a run that stands in training's text is taken for learnt by heart."""

OVERLAPS = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("shared_tokens", pa.int32(), nullable=False),
        pa.field("shared_text", pa.string(), nullable=False),
        pa.field("row", pa.int64()),
        pa.field("doc_id", pa.binary(DOC_ID_BYTES)),
        pa.field("piece", pa.int16()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
    ]
)
"""Of each text the longest run that stands in training's rows, and the document that it is of: bytes of its piece where
the run begins and where the segment or the run ends. Null where nothing is shared, or the row is padding there."""


def written_text(
    network: GPT, tokenizer: Tokenizer, sequences: Artifact, texts: dict[str, list[str]], config: EvaluateConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of SCORES and of OVERLAPS."""
    prompts = _prompts(texts, config.checked_texts)
    written = [_written(network, tokenizer, prompt, config) for prompt in prompts]
    kept = [(prompt, ids) for prompt, ids in zip(prompts, written, strict=True) if ids]
    found = longest_overlaps([ids for _, ids in kept], _parts(sequences))
    lines = [
        _line(tokenizer, sequences, prompt, ids, overlap) for (prompt, ids), overlap in zip(kept, found, strict=True)
    ]
    return _rows(tokenizer, [ids for _, ids in kept], [one.tokens for one in found], config), lines


def invalid_bytes(data: bytes) -> int:
    """Bytes that are no UTF-8; a character that the end cuts off is none of them."""
    broken = 0
    rest = data
    while rest:
        try:
            rest.decode()
            break
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                break
            broken += error.end - error.start
            rest = rest[error.end :]
    return broken


def repeated_share(ids: Sequence[int]) -> float | None:
    """Share of 4-grams of tokens that stood before in the same text; None where it is shorter."""
    ngrams = [tuple(ids[place : place + REPEATED_NGRAM]) for place in range(len(ids) - REPEATED_NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else None


def _prompts(texts: dict[str, list[str]], most: int) -> list[str]:
    """Beginnings of held-out documents, of each source in turn."""
    rounds = max((len(documents) for documents in texts.values()), default=0)
    drawn = (documents[nth] for nth in range(rounds) for documents in texts.values() if nth < len(documents))
    return [prompt for text in drawn if (prompt := heldout_prompt(text))][:most]


def _written(network: GPT, tokenizer: Tokenizer, prompt: str, config: EvaluateConfig) -> list[int]:
    return generate_tokens(
        network,
        [tokenizer.eos, *tokenizer.encode(prompt)],
        max_new_tokens=config.sample_tokens,
        temperature=max(config.temperatures, default=0.0),
        top_p=config.top_p,
        seed=seed64(config.seed, "evaluate", "checked text", prompt) % 2**63,
        stop=tokenizer.eos,
    )


def _parts(sequences: Artifact) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for path in sequences.files("sequences"):
        table = read_table(path)
        length = table.schema.field("tokens").type.list_size
        for batch in table.to_batches():
            tokens = batch.column("tokens").flatten().to_numpy().reshape(-1, length)
            yield batch.column("row").to_numpy(), tokens


def _rows(
    tokenizer: Tokenizer, written: Sequence[Sequence[int]], shared: Sequence[int], config: EvaluateConfig
) -> list[dict[str, Any]]:
    note = f"{len(written)} texts of at most {config.sample_tokens} tokens, behind beginnings of held-out documents"
    data = [tokenizer.decode_bytes(ids) for ids in written]
    size = sum(map(len, data))
    invalid = sum(map(invalid_bytes, data)) / size if size else None
    repeated = [share for ids in written if (share := repeated_share(ids)) is not None]
    by_heart = [float(tokens >= BY_HEART_TOKENS) for tokens in shared]
    n = len(written)
    rows = [
        ("invalid_utf8_share", (invalid, None), f"of {size} bytes, before replacement signs stand for them"),
        ("repeated_4gram_share", mean_with_error(repeated), "4-grams of tokens that stood in the same text before"),
        ("shared_tokens", mean_with_error(shared), "longest run that stands in training's rows, mean of the texts"),
        ("most_shared_tokens", (float(max(shared)) if shared else None, None), "the longest of all"),
        ("by_heart_share", mean_with_error(by_heart), f"texts that share {BY_HEART_TOKENS} tokens or more in a row"),
    ]
    return [
        score_row(TASK, metric, n=n, value=value, stderr=stderr, note=f"{told}; {note}")
        for metric, (value, stderr), told in rows
    ]


ABSENT = -1


@dataclass(frozen=True)
class Overlap:
    """Tokens [begin, begin + tokens) of a text, which stand at `place` of row `row` of training."""

    tokens: int
    begin: int = 0
    row: int = ABSENT
    place: int = ABSENT


def _line(
    tokenizer: Tokenizer, sequences: Artifact, prompt: str, ids: Sequence[int], overlap: Overlap
) -> dict[str, Any]:
    shared = ids[overlap.begin : overlap.begin + overlap.tokens]
    place = _place(tokenizer, sequences, overlap) if overlap.tokens else {}
    return {
        "prompt": prompt,
        "text": tokenizer.decode_following(ids),
        "tokens": len(ids),
        "shared_tokens": overlap.tokens,
        "shared_text": tokenizer.decode_following(shared),
        "row": overlap.row if overlap.tokens else None,
        **place,
    }


def _place(tokenizer: Tokenizer, sequences: Artifact, overlap: Overlap) -> dict[str, Any]:
    """The document that stands where the run begins, and the bytes that the run takes of it."""
    for path in sequences.files("spans"):
        table = read_table(path)
        for span in table.filter(pc.equal(table.column("row"), overlap.row)).to_pylist():
            first, past = span["tok_start"], span["tok_start"] + span["tok_len"]
            if first <= overlap.place < past:
                tokens = _row_tokens(sequences, overlap.row)
                lengths = tokenizer.piece_lengths[tokens]
                start = span["start"] + int(lengths[first : overlap.place].sum())
                end = start + int(lengths[overlap.place : min(past, overlap.place + overlap.tokens)].sum())
                bytes_ = {"start": min(start, span["end"]), "end": min(end, span["end"])}
                return {"doc_id": span["doc_id"], "piece": span["piece"], **bytes_}
    return {}


def _row_tokens(sequences: Artifact, row: int) -> np.ndarray:
    for numbers, tokens in _parts(sequences):
        at = int(np.searchsorted(numbers, row))
        if at < len(numbers) and numbers[at] == row:
            return tokens[at].astype(np.int64)
    raise AssertionError(f"row {row} was read a moment ago")


def longest_overlaps(texts: Sequence[Sequence[int]], parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[Overlap]:
    """For each text its longest run in the rows, the first of equals in the rows' order.

    `parts` are row numbers i64[R] and tokens [R, L] of each; texts hold ids of the same vocabulary.
    """
    automaton = SuffixAutomaton(texts)
    keys, targets = automaton.slots()
    lengths, links = np.array(automaton.length), np.array(automaton.link)
    best = np.zeros((len(lengths), 3), dtype=np.int64)
    for numbers, tokens in parts:
        read_rows(np.ascontiguousarray(tokens, dtype=np.int64), numbers, keys, targets, lengths, links, best)
    # What stands in the rows stands there with all its endings.
    for state in np.argsort(-lengths, kind="stable").tolist():
        shorter = links[state]
        if state and best[state, 0] and lengths[shorter] > best[shorter, 0]:
            best[shorter] = (lengths[shorter], *best[state, 1:])
    return [automaton.longest(number, best) for number in range(len(texts))]


class SuffixAutomaton:
    """Every run of tokens of every text; a state for all runs that end in the same places."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.length: list[int] = [0]
        self.link: list[int] = [ABSENT]
        self._next: list[dict[int, int]] = [{}]
        self._prefixes: list[list[int]] = []
        last = 0
        for number, text in enumerate(texts):
            states: list[int] = []
            for token in text:
                last = self._extend(last, int(token))
                states.append(last)
            self._prefixes.append(states)
            # No row holds a negative token, so that no run leads from one text into the next.
            last = self._extend(last, -1 - number)

    def _extend(self, last: int, token: int) -> int:
        state = self._added(self.length[last] + 1, {})
        at = last
        while at != ABSENT and token not in self._next[at]:
            self._next[at][token] = state
            at = self.link[at]
        if at == ABSENT:
            self.link[state] = 0
            return state
        found = self._next[at][token]
        if self.length[found] == self.length[at] + 1:
            self.link[state] = found
            return state
        copy = self._added(self.length[at] + 1, dict(self._next[found]))
        self.link[copy] = self.link[found]
        while at != ABSENT and self._next[at].get(token) == found:
            self._next[at][token] = copy
            at = self.link[at]
        self.link[found] = self.link[state] = copy
        return state

    def _added(self, length: int, following: dict[int, int]) -> int:
        self.length.append(length)
        self.link.append(0)
        self._next.append(following)
        return len(self.length) - 1

    def slots(self) -> tuple[np.ndarray, np.ndarray]:
        """Transitions by tokens of rows in a table with open addressing: (state, token) i64[K, 2], and targets i64[K];
        K is a power of two, at most half full."""
        found = [
            (state, token, target)
            for state, row in enumerate(self._next)
            for token, target in row.items()
            if token >= 0
        ]
        size = 1 << max(3, (2 * len(found)).bit_length())
        keys, targets = np.full((size, 2), ABSENT, dtype=np.int64), np.full(size, ABSENT, dtype=np.int64)
        for state, token, target in found:
            slot = slot_of(state, token, size)
            while targets[slot] != ABSENT:
                slot = (slot + 1) % size
            keys[slot], targets[slot] = (state, token), target
        return keys, targets

    def longest(self, number: int, best: np.ndarray) -> Overlap:
        """The longest run of one text, from `best` [S, 3]: tokens, row and last place of each state."""
        found = Overlap(0)
        for place, prefix in enumerate(self._prefixes[number]):
            state = prefix
            while state > 0 and not best[state, 0]:
                state = self.link[state]
            tokens = int(best[state, 0]) if state > 0 else 0
            if tokens > found.tokens:
                row, end = best[state, 1:].tolist()
                found = Overlap(tokens, place + 1 - tokens, row, end + 1 - tokens)
        return found


@kernel
def slot_of(state: int, token: int, size: int) -> np.int64:
    """Where a transition's place in the table is looked for first."""
    mixed = (np.int64(state) * np.int64(1_000_003) + np.int64(token)) * np.int64(2_654_435_761)
    return ((mixed >> 15) ^ mixed) & (size - 1)


@kernel
def read_rows(
    tokens: np.ndarray,
    numbers: np.ndarray,
    keys: np.ndarray,
    targets: np.ndarray,
    lengths: np.ndarray,
    links: np.ndarray,
    best: np.ndarray,
) -> None:
    """Take rows i64[R, L] with their numbers i64[R] through the automaton; `best` keeps the longest run that reached
    each state."""
    size = len(targets)
    for row in range(len(tokens)):
        state, held = 0, 0
        for place in range(tokens.shape[1]):
            token = tokens[row, place]
            while True:
                slot = slot_of(state, token, size)
                while targets[slot] != -1 and (keys[slot, 0] != state or keys[slot, 1] != token):
                    slot = (slot + 1) % size
                if targets[slot] != -1:
                    state, held = targets[slot], held + 1
                    break
                if state == 0:
                    held = 0
                    break
                state = links[state]
                held = lengths[state]
            if held > best[state, 0]:
                best[state, 0], best[state, 1], best[state, 2] = held, numbers[row], place
