"""The 5-gram on real text: what it makes of kept-out documents beside token frequencies and xz, and what it costs."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.evaluate.ngram_baseline import TokenStream, document_stream, estimate
from tasks.evaluate.perplexity import unigram_code_lengths, xz_bits_per_byte
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.train import train_sentencepiece

pytestmark = pytest.mark.prove_data

CORPORA = {
    "English books": ("en_books",),
    "English technical": ("en_techdocs_md",),
    "Russian novels": ("ru_novels",),
    "Chinese prose": ("zh_classic_prose",),
}
OTHERS = ("en_speech_drama", "en_wiki", "zh_techdocs", "ru_techdocs", "readme_changelog_md")
"""Not `web_html_raw`, which holds one of the books whole: with it the 5-gram takes .97 bits a byte of them."""
PIECES, ROW, KEPT_OUT_BYTES, VOCABULARY_BYTES = 16_000, 257, 100_000, 12_000_000
MOST_SECONDS, MOST_BYTES = 60, 2 * 10**9
"""For 20 million tokens, of processor time."""


def test_five_tokens_say_more_than_frequencies_and_xz(corpora: Any, measured: Callable[..., None]) -> None:
    # In a process of its own, whose memory no test before has grown.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        rows = process.submit(_measure, corpora).result()
    for row in rows:
        measured("evaluate", row.what, row.value, at_most=row.at_most, note=row.note)


@dataclass(frozen=True)
class Row:
    """One figure with its bound."""

    what: str
    value: float
    at_most: float
    note: str = ""


def _measure(corpora: Any) -> list[Row]:
    names = [*(name for folders in CORPORA.values() for name in folders), *OTHERS]
    texts = {name: list(corpora.documents(name, kept_out=False)) for name in names}
    share = VOCABULARY_BYTES / sum(len(text) for documents in texts.values() for text in documents)
    some = [document for documents in texts.values() for document in documents[: int(share * len(documents)) + 1]]
    tokenizer = SentencePieceTokenizer(train_sentencepiece(some, VocabConfig(vocab_size=PIECES)))
    tokens = np.concatenate(
        [tokenizer.encode_column(pa.array(documents), tokenizer.eos).ids for documents in texts.values()]
    ).astype(np.uint32)
    begins = np.zeros(len(tokens), dtype=np.bool_)
    begins[::ROW] = True
    read = TokenStream(tokens, begins, np.ones(len(tokens), dtype=np.bool_))
    unigram = unigram_code_lengths(
        pa.table({"token": np.arange(PIECES, dtype=np.uint32), "count": np.bincount(tokens, minlength=PIECES)}), PIECES
    )
    kept_out = {name: _within(corpora.documents(*folders, kept_out=True)) for name, folders in CORPORA.items()}
    ids = {name: list(tokenizer.encode_batch(documents)) for name, documents in kept_out.items()}
    scored = document_stream([row for rows in ids.values() for row in rows], tokenizer.eos)
    nothing = document_stream([], tokenizer.eos)
    estimate(nothing, scored, PIECES, tokenizer.eos, ())  # Kernels are compiled apart from the time.
    began = time.process_time()
    found = estimate(read, scored, PIECES, tokenizer.eos, ())
    seconds = time.process_time() - began
    bits = np.add.reduceat(np.nan_to_num(found.bits), np.flatnonzero(scored.begins))
    done, measures = 0, []
    for name, rows in ids.items():
        size = sum(len(text.encode()) for text in kept_out[name])
        five = bits[done : done + len(rows)].sum() / size
        one = sum(float(unigram[row].sum()) for row in rows) / size
        xz = xz_bits_per_byte("".join(kept_out[name]).encode())
        note = f"unigram {one:.3f}, xz {xz:.3f} (of this text alone)"
        measures.append(Row(f"5-gram, bits a byte of {name}", five, min(one, xz), note))
        done += len(rows)
    per_20_million = seconds * 2e7 / len(tokens)
    note = f"{len(tokens):,} tokens in {seconds:.1f} s, {found.ngrams[-1]:,} different 5-grams"
    measures.append(Row("5-gram, processor seconds for 20M tokens", per_20_million, MOST_SECONDS, note))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [*measures, Row("5-gram, GB with all texts in memory", memory / 1e9, MOST_BYTES / 1e9)]


def _within(documents: Any) -> list[str]:
    chosen, left = [], KEPT_OUT_BYTES
    for text in documents:
        cut = text.encode()[:left].decode(errors="ignore")
        left -= len(text.encode())
        chosen.append(cut)
        if left <= 0:
            break
    return chosen
