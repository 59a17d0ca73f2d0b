"""Rows of real text: how full they are, that nothing is lost, that shares of tokens are those asked for."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.chunk.mixture import plan_mixture
from tasks.chunk.order import order_batches, plan_reads
from tasks.chunk.packing import PackedRows, best_fit_rows, concat_rows
from tasks.chunk.sentence_pairs import PairFormat, PairPacker
from tasks.chunk.tokenize import Block, TokenBytes, group_into_windows
from tasks.tokenizer.base import Tokenizer
from tasks.tokenizer.open import tokenizer_of

pytestmark = pytest.mark.prove_data

Measured = Callable[..., None]
CORPORA = (
    "en_books",
    "en_speech_drama",
    "en_wiki",
    "en_techdocs_md",
    "ru_novels",
    "ru_techdocs",
    "it_techdocs",
    "zh_techdocs",
    "zh_poetry",
    "tldr_short_md",
    "social_emoji",
)
LENGTHS = (257, 1025, 2049)
PAD, CLS, SEP = 0, 1, 1
WEIGHTS = {"en_books": 5.0, "ru_techdocs": 3.0, "zh_techdocs": 1.5, "social_emoji": 0.5}


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Tokenizer:
    return tokenizer_of((data / "tokenizers" / "mistral_v1_32k.model").read_bytes())


@pytest.fixture(scope="module")
def blocks(corpora: Any, tokenizer: Tokenizer) -> dict[str, Block]:
    return {name: block_of(tokenizer, list(corpora.documents(name))) for name in CORPORA}


def block_of(tokenizer: Tokenizer, texts: list[str]) -> Block:
    ids = [np.append(one, tokenizer.eos).astype(np.uint16) for one in tokenizer.encode_batch(texts)]
    return Block(
        tokens=np.concatenate(ids),
        lengths=np.array([len(one) - 1 for one in ids], dtype=np.int64),
        text_bytes=np.array([len(text.encode()) for text in texts], dtype=np.int64),
        doc_ids=pa.array([number.to_bytes(16, "big") for number in range(len(texts))], pa.binary(16)),
        pieces=pa.array(np.zeros(len(texts), dtype=np.int16)),
        texts=pa.array(texts, pa.large_string()),
    )


def wrong_documents(packed: Iterable[PackedRows], block: Block) -> int:
    """Documents whose tokens are not exactly those that their spans find in the rows, in order."""
    parts = list(packed)
    rows = np.concatenate([part.rows for part in parts])
    spans = pa.concat_tables([part.spans for part in parts]).sort_by([("doc_id", "ascending"), ("start", "ascending")])
    names = [int.from_bytes(name, "big") for name in spans.column("doc_id").to_pylist()]
    found: dict[int, list[np.ndarray]] = {}
    ends: dict[int, int] = {}
    gaps: set[int] = set()
    columns = (spans.column(name).to_pylist() for name in ("row", "tok_start", "tok_len", "start", "end"))
    for name, row, tok_start, tok_len, start, end in zip(names, *columns, strict=True):
        found.setdefault(name, []).append(rows[row, tok_start : tok_start + tok_len])
        if start != ends.get(name, 0):
            gaps.add(name)
        ends[name] = end
    wrong = len(gaps)
    for number, (begin, length, size) in enumerate(zip(block.begins, block.lengths, block.text_bytes, strict=True)):
        tokens = np.concatenate([np.zeros(0, dtype=np.uint16), *found.get(number, [])])
        same = np.array_equal(tokens, block.tokens[begin : begin + length]) and ends.get(number, 0) == size
        wrong += not same and number not in gaps
    return wrong


@pytest.mark.parametrize("length", LENGTHS)
def test_best_fit_fills_rows_and_cuts_nothing_that_fits(
    blocks: dict[str, Block], tokenizer: Tokenizer, measured: Measured, length: int
) -> None:
    token_bytes = TokenBytes.of(tokenizer)
    padding: dict[str, float] = {}
    cut = wrong = cut_by_concat = 0
    for name, block in blocks.items():
        packed = list(best_fit_rows(group_into_windows([block]), length, token_bytes, PAD, 0))
        rows, real = sum(len(part.rows) for part in packed), sum(int(part.real.sum()) for part in packed)
        padding[name] = 1 - real / (rows * length)
        wrong += wrong_documents(packed, block)
        cut += _cut(packed, block, length)
        cut_by_concat += _cut(list(concat_rows([block], length, token_bytes, PAD, 0)), block, length)
    worst = max(padding, key=lambda name: padding[name])
    whole = np.mean([padding[name] for name in CORPORA])
    note = f"worst of {len(CORPORA)} corpora: {worst}; mean {whole:.3%}"
    measured("chunk", f"padding of best_fit, rows of {length}", padding[worst], at_most=0.003, note=note)
    measured("chunk", f"cut though they fit, rows of {length}", cut, at_most=0, note=f"concat cuts {cut_by_concat:,}")
    measured("chunk", f"documents not rebuilt, rows of {length}", wrong, at_most=0)


def _cut(packed: list[PackedRows], block: Block, length: int) -> int:
    """Documents that fit in a row with their end-of-text token and are in several."""
    names = pa.concat_arrays([part.spans.column("doc_id").combine_chunks() for part in packed])
    counts = dict(zip(*(column.to_pylist() for column in names.value_counts().flatten()), strict=True))
    return sum(
        counts.get(name, 0) > 1
        for name, size in zip(block.doc_ids.to_pylist(), block.lengths, strict=True)
        if size + 1 <= length
    )


@pytest.mark.parametrize("length", [128, 512])
def test_pairs_hold_all_text_and_half_of_the_labels_are_false(
    blocks: dict[str, Block], tokenizer: Tokenizer, measured: Measured, length: int
) -> None:
    layout = PairFormat(length, CLS, SEP, PAD, 0.1)
    wrong, furthest, single, rows = 0, 0.0, 0, 0
    for number, block in enumerate(blocks.values()):
        packer = PairPacker(layout, TokenBytes.of(tokenizer), 0, number)
        wrong += wrong_documents(packer.rows(group_into_windows([block])), block)
        reported = packer.labels
        furthest = max(furthest, abs(reported["not_next"] / (reported["next"] + reported["not_next"]) - 0.5))
        single, rows = single + reported["single"], rows + reported.total()
    measured("chunk", f"documents not rebuilt, pairs of {length}", wrong, at_most=0)
    measured("chunk", f"label shares off one half, pairs of {length}", furthest, at_most=0.01)
    measured("chunk", f"rows without a second stretch, pairs of {length}", single / rows, at_most=0.02)


def test_shares_of_tokens_are_those_asked_for(
    blocks: dict[str, Block], tokenizer: Tokenizer, measured: Measured
) -> None:
    """Rows of pairs differ most in length, so that rows and tokens are not the same thing."""
    counted, available, rows = [], {}, {}
    for name in sorted(WEIGHTS):
        packer = PairPacker(PairFormat(512, CLS, SEP, PAD, 0.1), TokenBytes.of(tokenizer), 0, 1)
        mine = np.concatenate([part.counted for part in packer.rows(group_into_windows([blocks[name]]))])
        counted.append(mine)
        available[name], rows[name] = int(mine.sum()), len(mine)
    together = np.concatenate(counted)
    budget = int(4 * min(available[name] / WEIGHTS[name] for name in WEIGHTS) * sum(WEIGHTS.values()))
    planned = plan_reads(plan_mixture(available, WEIGHTS, budget, 4.0), rows, together, run_seed=1)
    read = np.concatenate([batch.column("row").to_numpy() for batch in order_batches([planned])])
    furthest = 0.0
    for source in planned:
        mine = (read >= source.first_row) & (read < source.first_row + source.rows)
        share = together[read[mine]].sum() / together[read].sum()
        furthest = max(furthest, abs(share - WEIGHTS[source.source] / sum(WEIGHTS.values())))
    measured("chunk", "shares of tokens off the weights", furthest, at_most=0.001, note=f"{len(read):,} rows of pairs")
