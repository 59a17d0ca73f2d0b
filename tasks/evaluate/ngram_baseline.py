"""The 5-gram beside the network: a strong baseline that reads the rows that training read, and scores the same text.

Each row counts once, however often ORDER reads it. What is read twice is no new evidence, and Kneser-Ney would take it
for some: its discounts come from n-grams that stand in the text once and twice, and where everything is read twice
nothing stands there once. A model that overfits repeated text is measured against one that does not.

Documents have the borders that they have for the network: n-grams reach back to the end-of-text token that opens a
document, never across the beginning of a row, and held-out documents are scored alone behind that token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from model.row_format import RowFormat
from tasks.artifact import Artifact
from tasks.evaluate.kneser_ney import Estimate, Stretches, estimate
from tasks.evaluate.measured import NOTHING, HeldoutRows, ratio
from tasks.seed import seed64
from tasks.tables import read_table
from tasks.tokenizer import Tokenizer

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


def _note(tokens: int, left_out: int, found: Estimate) -> str:
    told = f"interpolated modified Kneser-Ney, {found.ngrams[-1]} different 5-grams of {tokens} tokens, each row once"
    if left_out:
        told += f", {left_out} rows left out"
    if found.without_discounts:
        orders = ", ".join(str(order) for order in found.without_discounts)
        told += f"; too few n-grams of order {orders} for discounts of their own"
    return told
