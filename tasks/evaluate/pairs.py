"""Held-out pairs of BERT, laid out by chunk as those of training: hidden tokens, and whether B follows A.

Tokens are hidden as in training, once. Beside the share of hidden tokens that the network thinks likeliest stands that
of the one token which is most frequent in training; beside the nats of hidden tokens their code length by frequency;
beside the share of pairs that it tells rightly that of the more frequent answer among these pairs. Standard errors
come from drawing documents: a pair counts to that of its first stretch.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.bert import BERT
from model.data import Rows
from model.loader import masked_batch
from model.masked_scoring import masked_row_sums
from model.masking import Masking
from model.row_format import RowFormat
from model.targets import NO_LOSS
from tasks.evaluate.measured import HeldoutRows, Measured, ratio
from tasks.seed import seed64, unit_interval


def pair_scores(
    network: BERT,
    rows: pa.Table,
    spans: pa.Table,
    code_lengths: np.ndarray,
    row_format: RowFormat,
    *,
    masked_share: float,
    most_bytes: int,
    batch_tokens: int,
    rounds: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Rows of SCORES by source and as their plain mean, on pairs of at most `most_bytes` of each source (one at least).

    `rows` and `spans` are chunk's held-out rows and their segments, `code_lengths` [vocabulary] bits of each token by
    its frequency in training, `masked_share` what training hides.
    """
    most_hidden = math.ceil(masked_share * network.config.context)
    mask = Masking(row_format, seed, most_hidden, masked_share)
    frequent = most_frequent(code_lengths, row_format)
    found = HeldoutRows()
    sources = rows.column("source").cast(pa.string())
    for source in sorted(pc.unique(sources).to_pylist()):
        mine = rows.filter(pc.equal(sources, source))
        places, document_of = chosen_pairs(mine, spans, most_bytes, seed64(seed, "evaluate", "heldout"))
        chosen = mine.take(pa.array(places))
        sums = np.zeros((int(document_of.max()) + 1, 7))
        batch_rows = max(1, batch_tokens // mine.schema.field("tokens").type.list_size)
        for begin in range(0, len(places), batch_rows):
            batch = masked_batch(_read(chosen.slice(begin, batch_rows)), mask, row_format.pad)
            told = masked_row_sums(network, batch)
            targets, answer = batch.targets_BM.numpy(), batch.is_next_B.numpy()
            hidden = targets != NO_LOSS
            of_rows = np.stack(
                [
                    hidden.sum(1),
                    told.nats_BM.numpy().sum(1),
                    np.where(hidden, code_lengths[np.where(hidden, targets, 0)], 0).sum(1) * math.log(2),
                    told.right_BM.numpy().sum(1),
                    (targets == frequent).sum(1),
                    answer != NO_LOSS,
                    told.next_right_B.numpy(),
                ],
                axis=1,
            )
            np.add.at(sums, document_of[begin : begin + batch_rows], of_rows)
        hidden, nats, code, right, frequent_right, asked, next_right = sums.T
        draw = seed64(seed, "evaluate", "bootstrap", source)
        note = f"{int(hidden.sum())} hidden tokens in {len(places)} pairs"
        for metric, above in (
            ("masked_nats_per_token", nats),
            ("unigram_masked_nats_per_token", code),
            ("masked_accuracy", right),
            ("frequent_token_accuracy", frequent_right),
        ):
            found.add(source, metric, ratio(above, hidden, rounds, draw), len(sums), note)
        follows = pc.sum(chosen.column("is_next")).as_py() or 0
        note = f"{int(asked.sum())} pairs with two stretches, of which {follows} follow each other"
        found.add(source, "next_accuracy", ratio(next_right, asked, rounds, draw), len(sums), note)
        majority = max(follows, asked.sum() - follows) / asked.sum() if asked.sum() else None
        found.add(source, "majority_next_accuracy", Measured(majority, None), len(sums), note)
    return found.rows()


def most_frequent(code_lengths: np.ndarray, row_format: RowFormat) -> int:
    """The token of text that is most frequent in training; the first of equals."""
    of_text = code_lengths.copy()
    of_text[list(row_format.special)] = np.inf
    return int(of_text.argmin())


def chosen_pairs(rows: pa.Table, spans: pa.Table, most_bytes: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the pairs of `rows` that are scored, i64[P], and a number for the document of their first stretch.

    Documents come in a random order by their ids, each with all its pairs, until the pairs hold `most_bytes`; the
    last one may be cut, and one pair is taken whatever its size.
    """
    ids = rows.column("row").to_numpy()
    mine = spans.filter(pc.is_in(spans.column("row"), value_set=pa.array(ids)))
    of_row, starts = np.unique(mine.column("row").to_numpy(), return_index=True)
    sizes = np.add.reduceat((mine.column("end").to_numpy() - mine.column("start").to_numpy()), starts)
    documents = mine.column("doc_id").take(pa.array(starts)).to_pylist()
    numbers = {document: unit_interval(document, draw) for document in set(documents)}
    order = sorted(range(len(of_row)), key=lambda nth: (numbers[documents[nth]], documents[nth], nth))
    within = np.cumsum(sizes[order]) <= most_bytes
    within[:1] = True
    chosen = np.array(order)[within]
    named: dict[bytes, int] = {}
    document_of = [named.setdefault(documents[nth], len(named)) for nth in chosen]
    return np.searchsorted(ids, of_row[chosen]), np.array(document_of, dtype=np.int64)


def _read(table: pa.Table) -> Rows:
    tokens = table.column("tokens").combine_chunks()
    count = table.num_rows
    return Rows(
        row_B=table.column("row").to_numpy(),
        epoch_B=np.zeros(count, dtype=np.int64),
        tokens_BL=tokens.flatten().to_numpy().reshape(count, -1).astype(np.int64),
        loss_start_B=np.zeros(count, dtype=np.int64),
        second_start_B=table.column("second_start").to_numpy().astype(np.int64),
        is_next_B=pc.fill_null(table.column("is_next").cast(pa.int8()), NO_LOSS).to_numpy().astype(np.int64),
    )
