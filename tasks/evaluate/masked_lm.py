"""Held-out scores of a BERT: its training objective on pairs, and pseudo-bits per byte of text.

`pair_scores` masks held-out pairs once, as in training. Each score has a baseline: the accuracy of masked tokens that
of always predicting the most frequent token, their nats the code length by token frequency, and next sentence accuracy
that of the majority answer among these pairs. Standard errors come from resampling documents; a pair belongs to the
document of its first segment.

`pseudo_scores` masks each token in turn and predicts it from all others (Salazar et al. 2020). Since every token sees
what follows it, this is no code length and does not compare with bits per byte of a GPT or a 5-gram: hence the name. A
long document is split into segments that fit into the context, each between [CLS] and [SEP]; every token sees its own
segment only. Where a source has more tokens than are to be masked, a random choice of them is, and the figure is the
bits of these tokens over their bytes.
"""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.data.dataset import Rows
from model.data.loader import masked_batch
from model.data.masking import Masking
from model.data.row_format import NO_LOSS, RowFormat
from model.inference.scoring import FRAME_TOKENS, Frame, hidden_nats, masked_row_sums
from model.nn.bert import BERT
from tasks.artifacts.tables.rows import ScoreRow
from tasks.common.numeric import seed64, unit_interval
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.heldout import EncodedSource
from tasks.evaluate.scores import NO_MEASUREMENT, HeldoutRows, Measurement, Scores, split_evenly
from tasks.tokenizer.base import Tokenizer

PSEUDO_BITS = "pseudo_bits_per_byte"


def pair_scores(
    network: BERT,
    rows: pa.Table,
    spans: pa.Table,
    code_lengths: np.ndarray,
    row_format: RowFormat,
    masked_share: float,
    config: EvaluateConfig,
) -> list[ScoreRow]:
    """Return rows of SCORES by source and as their plain mean, on pairs of at most `config.heldout_max_bytes` of each
    source (one at least).

    `rows` and `spans` are chunk's held-out sequences and their segments, `code_lengths` [vocabulary] bits of each token
    by its frequency in training, `masked_share` the share of tokens that training masks.
    """
    most_hidden = math.ceil(masked_share * network.config.context)
    mask = Masking(row_format, config.seed, most_hidden, masked_share)
    frequent = most_frequent_token(code_lengths, row_format)
    found = HeldoutRows(config.bootstrap_rounds, config.seed)
    sources = rows.column("source").cast(pa.string())
    for source in sorted(pc.unique(sources).to_pylist()):
        mine = rows.filter(pc.equal(sources, source))
        draw = seed64(config.seed, "evaluate", "heldout")
        positions, document_of = choose_pairs(mine, spans, config.heldout_max_bytes, draw)
        chosen = mine.take(pa.array(positions))
        sums = np.zeros((int(document_of.max()) + 1, 7))
        batch_rows = max(1, config.batch_tokens // mine.schema.field("tokens").type.list_size)
        for begin in range(0, len(positions), batch_rows):
            batch = masked_batch(_read(chosen.slice(begin, batch_rows)), mask, row_format.pad)
            batch_sums = masked_row_sums(network, batch)
            targets, answer = batch.targets_BM.numpy(), batch.is_next_B.numpy()
            hidden = targets != NO_LOSS
            row_sums = np.stack(
                [
                    hidden.sum(1),
                    batch_sums.nats_BM.numpy().sum(1),
                    np.where(hidden, code_lengths[np.where(hidden, targets, 0)], 0).sum(1) * math.log(2),
                    batch_sums.right_BM.numpy().sum(1),
                    (targets == frequent).sum(1),
                    answer != NO_LOSS,
                    batch_sums.next_right_B.numpy(),
                ],
                axis=1,
            )
            np.add.at(sums, document_of[begin : begin + batch_rows], row_sums)
        hidden, nats, code, correct, frequent_correct, labelled, next_correct = sums.T
        note = f"{int(hidden.sum())} hidden tokens in {len(positions)} pairs"
        for metric, above in (
            ("masked_nats_per_token", nats),
            ("unigram_masked_nats_per_token", code),
            ("masked_accuracy", correct),
            ("frequent_token_accuracy", frequent_correct),
        ):
            found.add(source, metric, found.ratio(source, above, hidden), len(sums), note)
        follows = pc.sum(chosen.column("is_next")).as_py() or 0
        note = f"{int(labelled.sum())} pairs with two segments, of which {follows} follow each other"
        found.add(source, "next_accuracy", found.ratio(source, next_correct, labelled), len(sums), note)
        majority = max(follows, labelled.sum() - follows) / labelled.sum() if labelled.sum() else None
        found.add(source, "majority_next_accuracy", Measurement(majority), len(sums), note)
    return found.scores().rows


def choose_pairs(rows: pa.Table, spans: pa.Table, most_bytes: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Return positions of the pairs of `rows` that are scored, i64[P], and a number for the document of their first
    segment.

    Documents come in a random order by their ids, each with all its pairs, until the pairs hold `most_bytes`; the last
    document may be cut off, and one pair is always taken.
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


def most_frequent_token(code_lengths: np.ndarray, row_format: RowFormat) -> int:
    """Return the text token that is most frequent in training; the first of equals."""
    of_text = code_lengths.copy()
    of_text[list(row_format.special)] = np.inf
    return int(of_text.argmin())


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


def pseudo_scores(
    network: BERT, tokenizer: Tokenizer, sources: Sequence[EncodedSource], config: EvaluateConfig
) -> Scores:
    """Return scores by source and as their plain mean, and the bits of each document; at most `config.hidden_tokens`
    tokens of each source are masked."""
    frame = Frame(tokenizer.cls, tokenizer.sep, tokenizer.mask)
    found = HeldoutRows(config.bootstrap_rounds, config.seed)
    for source in sources:
        documents = source.documents
        draw = seed64(config.seed, "evaluate", "hidden tokens", source.name)
        chosen = choose_positions(source.tokens, config.hidden_tokens, draw)
        nats, sizes = np.zeros(len(documents)), np.zeros(len(documents), dtype=np.int64)
        first = 0
        for number, (ids, lengths) in enumerate(zip(source.ids, source.lengths, strict=True)):
            mine = chosen[(chosen >= first) & (chosen < first + len(ids))] - first
            first += len(ids)
            sizes[number] = lengths[mine].sum()
            for begin, end in split_evenly(len(ids), network.config.context - FRAME_TOKENS):
                places = (mine[(mine >= begin) & (mine < end)] - begin).tolist()
                if places:
                    part = ids[begin:end].tolist()
                    nats[number] += sum(hidden_nats(network, frame, part, places, config.batch_tokens))
        measured = found.ratio(source.name, nats / math.log(2), sizes)
        note = f"each of {len(chosen)} tokens hidden in turn, of {source.tokens}; of {int(sizes.sum())} bytes"
        if not source.unknown:
            found.add_documents(source.name, PSEUDO_BITS, documents, nats / math.log(2), sizes)
        else:
            measured = NO_MEASUREMENT
            note += f"; {source.unknown} tokens unknown: no value, since their text is lost"
        found.add(source.name, PSEUDO_BITS, measured, len(documents), note)
    return found.scores()


def choose_positions(tokens: int, most: int, seed: int) -> np.ndarray:
    """Return at most `most` positions of `tokens`, ascending; all of them where there are no more."""
    if tokens <= most:
        return np.arange(tokens)
    words = np.random.Philox(key=seed).random_raw(tokens)
    return np.sort(np.argsort(words, kind="stable")[:most])
