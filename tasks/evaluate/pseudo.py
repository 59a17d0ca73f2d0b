"""Held-out pseudo-bits per byte of a BERT: each token is hidden in turn and told from all others around it.

Salazar et al. 2020. Since every token sees what follows it, this is no code length, and no GPT's or 5-gram's bits per
byte may be laid beside it: hence the name. A long document is cut into stretches that fit into the context, each
between [CLS] and [SEP], of which every token sees its own stretch alone. Where a source has more tokens than are to be
hidden, a random choice of them is, and the figure is the bits of these tokens over their bytes.
"""

import math
from typing import Any

import numpy as np

from model.bert import BERT
from model.masked_scoring import FRAME_TOKENS, Frame, hidden_nats
from tasks.evaluate.document_scores import DocumentScores
from tasks.evaluate.measured import NOTHING, HeldoutRows, ratio
from tasks.evaluate.stretches import even_cuts
from tasks.seed import seed64
from tasks.tokenizer import Tokenizer

METRIC = "pseudo_bits_per_byte"


def pseudo_scores(
    network: BERT,
    tokenizer: Tokenizer,
    texts: dict[str, list[str]],
    languages: dict[str, list[str | None]],
    *,
    most_tokens: int,
    batch_tokens: int,
    rounds: int,
    seed: int,
    keep: DocumentScores | None = None,
) -> list[dict[str, Any]]:
    """Rows of SCORES by source and as their plain mean; at most `most_tokens` of each source are hidden. `keep` gets
    the bits of each document."""
    frame = Frame(tokenizer.cls, tokenizer.sep, tokenizer.mask)
    found = HeldoutRows()
    for source, documents in texts.items():
        encoded = list(tokenizer.encode_batch_with_borders(documents))
        tokens = sum(len(ids) for ids, _ in encoded)
        chosen = chosen_places(tokens, most_tokens, seed64(seed, "evaluate", "hidden tokens", source))
        nats, sizes = np.zeros(len(documents)), np.zeros(len(documents), dtype=np.int64)
        first = 0
        for number, (ids, borders) in enumerate(encoded):
            mine = chosen[(chosen >= first) & (chosen < first + len(ids))] - first
            first += len(ids)
            sizes[number] = np.diff(borders)[mine].sum()
            for begin, end in even_cuts(len(ids), network.config.context - FRAME_TOKENS):
                places = (mine[(mine >= begin) & (mine < end)] - begin).tolist()
                if places:
                    nats[number] += sum(hidden_nats(network, frame, ids[begin:end].tolist(), places, batch_tokens))
        unknown = sum(int((ids == tokenizer.unk).sum()) for ids, _ in encoded)
        measured = ratio(nats / math.log(2), sizes, rounds, seed64(seed, "evaluate", "bootstrap", source))
        note = f"each of {len(chosen)} tokens hidden in turn, of {tokens}; of {int(sizes.sum())} bytes"
        if not unknown:
            found.add_languages(METRIC, languages[source], nats / math.log(2), sizes)
            if keep is not None:
                keep.add(source, METRIC, nats / math.log(2), sizes)
        else:
            measured = NOTHING
            note += f"; {unknown} tokens unknown: no figure, for what they stand for is lost"
        found.add(source, METRIC, measured, len(documents), note)
    return found.rows(rounds, seed)


def chosen_places(tokens: int, most: int, seed: int) -> np.ndarray:
    """At most `most` places of `tokens`, ascending; all of them where they are no more."""
    if tokens <= most:
        return np.arange(tokens)
    words = np.random.Philox(key=seed).random_raw(tokens)
    return np.sort(np.argsort(words, kind="stable")[:most])
