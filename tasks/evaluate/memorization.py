"""Checks of text that a GPT generates: invalid UTF-8, repetition, and memorisation of training text.

Continuations of held-out text are checked. A vocabulary of bytes can generate half a character, which a reader sees as
a replacement character; such bytes are counted before they are replaced, so that a vocabulary can be compared with its
extension. Repetition is the share of 4-grams of tokens that occurred before in the same text (Welleck et al. 2020,
seq-rep-4). Memorisation is measured by the longest run of tokens that also occurs in a training sequence (Carlini et
al. 2023 call 50 tokens memorised); SPANS names the document that it comes from.

The longest runs of all texts are found in one pass over the training sequences: the texts go into one suffix automaton
(Blumer et al. 1985), which reads the sequences token by token and knows at each position how many of the last tokens
occur together in some text. A run ends with its sequence.

Shapes: R rows, L tokens per row, S states, K slots of the transition table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.inference.generate import Sampling
from model.kernels import kernel
from model.nn.gpt import GPT
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.tables.columns import token_rows
from tasks.artifacts.tables.files import read_table
from tasks.artifacts.tables.rows import DOC_ID_BYTES, ScoreRow
from tasks.common.numeric import seed64
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.samples import continue_texts, heldout_prompt
from tasks.evaluate.scores import Measurement, mean_with_error, score_row
from tasks.tokenizer.base import Tokenizer

TASK = "written text"
REPEATED_NGRAM = 4
MEMORISED_TOKENS = 50
"""A run of so many tokens that occurs in the training text counts as memorised."""
ABSENT = -1
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
"""The longest run of each text that occurs in the training sequences, and the document that it comes from: bytes of
its segment at which the run begins, and at which the segment or the run ends. Null where nothing is shared, or the
sequence is padding there."""


@dataclass(frozen=True)
class Overlap:
    """Tokens [begin, begin + tokens) of a text, which occur at `place` of training sequence `row`."""

    tokens: int
    begin: int = 0
    row: int = ABSENT
    place: int = ABSENT


def check_generated_text(
    network: GPT, tokenizer: Tokenizer, sequences: Artifact, texts: dict[str, list[str]], config: EvaluateConfig
) -> tuple[list[ScoreRow], list[dict[str, Any]]]:
    """Generate continuations of held-out text and return rows of SCORES and of OVERLAPS."""
    prompts = _prompts(texts, config.checked_texts)
    written = _generate(network, tokenizer, prompts, config)
    kept = [(prompt, ids) for prompt, ids in zip(prompts, written, strict=True) if ids]
    found = longest_overlaps([ids for _, ids in kept], _read_rows(sequences))
    documents = _find_documents(tokenizer, sequences, found)
    lines = [
        _overlap_row(tokenizer, prompt, ids, overlap, document)
        for (prompt, ids), overlap, document in zip(kept, found, documents, strict=True)
    ]
    return _score_rows(tokenizer, [ids for _, ids in kept], [one.tokens for one in found], config), lines


def _prompts(texts: dict[str, list[str]], most: int) -> list[str]:
    """Return beginnings of held-out documents, taking turns among the sources."""
    rounds = max((len(documents) for documents in texts.values()), default=0)
    drawn = (documents[nth] for nth in range(rounds) for documents in texts.values() if nth < len(documents))
    return [prompt for text in drawn if (prompt := heldout_prompt(text))][:most]


def _generate(network: GPT, tokenizer: Tokenizer, prompts: list[str], config: EvaluateConfig) -> list[list[int]]:
    temperature = max(config.temperatures, default=0.0)
    seeds = [seed64(config.seed, "evaluate", "checked text", prompt) % 2**63 for prompt in prompts]
    samplings = [Sampling(temperature, config.top_p, seed=seed) for seed in seeds]
    return continue_texts(network, tokenizer, prompts, samplings, config.sample_tokens)


def _read_rows(sequences: Artifact) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for path in sequences.files("sequences"):
        for batch in read_table(path).to_batches():
            yield batch.column("row").to_numpy(), token_rows(batch)


def _overlap_row(
    tokenizer: Tokenizer, prompt: str, ids: Sequence[int], overlap: Overlap, document: dict[str, Any]
) -> dict[str, Any]:
    shared = ids[overlap.begin : overlap.begin + overlap.tokens]
    return {
        "prompt": prompt,
        "text": tokenizer.decode_following(ids),
        "tokens": len(ids),
        "shared_tokens": overlap.tokens,
        "shared_text": tokenizer.decode_following(shared),
        "row": overlap.row if overlap.tokens else None,
        **document,
    }


def _find_documents(tokenizer: Tokenizer, sequences: Artifact, overlaps: Sequence[Overlap]) -> list[dict[str, Any]]:
    """Return the document at the beginning of each run, and the bytes of it that the run covers; nothing of padding, or
    where there is no run."""
    rows = pa.array([overlap.row for overlap in overlaps], pa.int64())
    spans: dict[int, list[dict[str, Any]]] = {}
    for table in map(read_table, sequences.files("spans")):
        for span in table.filter(pc.is_in(table.column("row"), value_set=rows)).to_pylist():
            spans.setdefault(span["row"], []).append(span)
    lengths: dict[int, np.ndarray] = {}
    for numbers, tokens in _read_rows(sequences):
        for at in np.flatnonzero(np.isin(numbers, rows)).tolist():
            lengths[int(numbers[at])] = tokenizer.piece_lengths[tokens[at].astype(np.int64)]
    return [
        next((_covered(span, lengths[row], one) for span in spans.get(row, ()) if _begins_within(span, one)), {})
        for row, one in zip(rows.to_pylist(), overlaps, strict=True)
    ]


def _begins_within(span: dict[str, Any], overlap: Overlap) -> bool:
    return span["tok_start"] <= overlap.place < span["tok_start"] + span["tok_len"]


def _covered(span: dict[str, Any], lengths: np.ndarray, overlap: Overlap) -> dict[str, Any]:
    """Return the document of a segment, and the bytes that a run covers, by the `lengths` of its row's tokens."""
    past = span["tok_start"] + span["tok_len"]
    # Counted back from the end: the first token of a text may begin with a space that the text lacks.
    start = span["end"] - int(lengths[overlap.place : past].sum())
    end = span["end"] - int(lengths[overlap.place + overlap.tokens : past].sum())
    bytes_ = {"start": max(start, span["start"]), "end": max(end, span["start"])}
    return {"doc_id": span["doc_id"], "piece": span["piece"], **bytes_}


def _score_rows(
    tokenizer: Tokenizer, written: Sequence[Sequence[int]], shared: Sequence[int], config: EvaluateConfig
) -> list[ScoreRow]:
    note = f"{len(written)} texts of at most {config.sample_tokens} tokens, after beginnings of held-out documents"
    data = [tokenizer.decode_bytes(ids) for ids in written]
    size = sum(map(len, data))
    invalid = sum(map(invalid_bytes, data)) / size if size else None
    repeated = [share for ids in written if (share := repeated_share(ids)) is not None]
    memorised = [float(tokens >= MEMORISED_TOKENS) for tokens in shared]
    n = len(written)
    rows = [
        (
            "invalid_utf8_share",
            Measurement(invalid),
            f"of {size} bytes, before they are replaced by replacement characters",
        ),
        ("repeated_4gram_share", mean_with_error(repeated), "4-grams of tokens that occurred before in the same text"),
        ("shared_tokens", mean_with_error(shared), "longest run that occurs in training sequences, mean of texts"),
        ("most_shared_tokens", Measurement(float(max(shared)) if shared else None), "the longest of all"),
        ("by_heart_share", mean_with_error(memorised), f"texts that share {MEMORISED_TOKENS} tokens or more in a row"),
    ]
    return [
        score_row(TASK, metric, measured, n=n, note=f"{note_of_metric}; {note}")
        for metric, measured, note_of_metric in rows
    ]


def invalid_bytes(data: bytes) -> int:
    """Return the number of bytes that are not UTF-8; a character that is cut off at the end does not count."""
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
    """Return the share of 4-grams of tokens that occurred before in the same text; None for a shorter text."""
    ngrams = [tuple(ids[place : place + REPEATED_NGRAM]) for place in range(len(ids) - REPEATED_NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else None


def longest_overlaps(texts: Sequence[Sequence[int]], parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[Overlap]:
    """Return the longest run of each text in the rows, the first of equals in the text, and one place where it occurs.

    `parts` are row numbers i64[R] and tokens [R, L] of each part; texts are ids of the same vocabulary.
    """
    automaton = SuffixAutomaton(texts)
    keys, targets = automaton.slots()
    lengths, links = np.array(automaton.length), np.array(automaton.link)
    best = np.zeros((len(lengths), 3), dtype=np.int64)
    for numbers, tokens in parts:
        match_rows(np.ascontiguousarray(tokens, dtype=np.int64), numbers, keys, targets, lengths, links, best)
    # A run that occurs in a row occurs there with all its suffixes.
    for state in np.argsort(-lengths, kind="stable").tolist():
        shorter = links[state]
        if state and best[state, 0] and lengths[shorter] > best[shorter, 0]:
            best[shorter] = (lengths[shorter], *best[state, 1:])
    return [automaton.longest(number, best) for number in range(len(texts))]


class SuffixAutomaton:
    """Every run of tokens of every text; one state for all runs that end at the same positions."""

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
            # No row has a negative token, so that no run continues from one text into the next.
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
        """Return the transitions as a hash table with open addressing: (state, token) i64[K, 2], and targets i64[K];
        K is a power of two, and the table at most half full."""
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
        """Return the longest run of one text, from `best` [S, 3]: tokens, row and last position of each state."""
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
def match_rows(tokens, numbers, keys, targets, lengths, links, best):
    """Read rows i64[R, L], numbered i64[R], with the automaton; `best` keeps the longest run that reached each
    state."""
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


@kernel
def slot_of(state: int, token: int, size: int) -> np.int64:
    """Return the slot of the table at which the search for a transition begins."""
    mixed = (np.int64(state) * np.int64(1_000_003) + np.int64(token)) * np.int64(2_654_435_761)
    return ((mixed >> 15) ^ mixed) & (size - 1)
