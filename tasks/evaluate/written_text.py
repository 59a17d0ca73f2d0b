"""What is wrong with text that a GPT writes: bytes that are no UTF-8, repetition, and what it has by heart.

Checked are continuations of held-out text. A vocabulary whose pieces are bytes can write half a character, which a
reader sees as a replacement sign: how many bytes are of that kind is told before they are replaced, so that a
vocabulary may be compared with its extension. Repetition is the share of 4-grams of tokens that stood in the same text
before (Welleck et al. 2020, seq-rep-4). The longest run of tokens that also stands in a row of training tells what was
learnt by heart (Carlini et al. 2023 take 50 tokens for it), and the rows' spans name the document.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.generate import generate_tokens
from model.transformer import GPT
from tasks.artifact import Artifact
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.forms import mean_with_error
from tasks.evaluate.overlap import Overlap, longest_overlaps
from tasks.evaluate.samples import heldout_prompt
from tasks.evaluate.score_rows import score_row
from tasks.schema import DOC_ID_BYTES
from tasks.seed import seed64
from tasks.tables import read_table
from tasks.tokenizer import Tokenizer

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
