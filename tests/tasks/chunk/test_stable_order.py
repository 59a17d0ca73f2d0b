"""A stable order: a removed document changes few rows and few slots, and with its tombstone no other position."""

import argparse
import ast
import inspect
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from model.data.dataset import SequenceReader
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stable_rows import bucket_count, bucket_of, document_keys, stable_layout
from tasks.chunk.stage import build_chunk
from tasks.chunk.tokenize import Block
from tasks.chunk.tombstones import tombstones
from tasks.tokenizer.base import PAD
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

ROW = 33


def functions() -> list[str]:
    """The source of each function of two modules: texts from a line to several rows."""
    found = []
    for module in (argparse, inspect):
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        found += ["".join(lines[node.lineno - 1 : node.end_lineno]).strip() for node in nodes]
    return sorted({text for text in found if len(text) > 20})


TEXTS = functions()


@pytest.fixture
def vocab(context: RunContext, make_documents) -> Artifact:
    documents = make_documents([[("code", text) for text in TEXTS]])
    return build_vocab(context, documents, VocabConfig(vocab_size=400, character_coverage=0.99))


def reads(chunk: Artifact) -> list[bytes]:
    """The tokens of the row at each position of the order."""
    reader = SequenceReader(chunk.files("sequences"), chunk.files("order")[0])
    return [row.tobytes() for row in reader.rows(0, reader.positions).tokens_BL]


def config(**changes) -> ChunkConfig:
    return ChunkConfig.model_validate(
        {"row_length": ROW, "budget_tokens": 60_000, "packing": "stable", "max_epochs": 3.0, **changes}
    )


def block_of(lengths: np.ndarray) -> Block:
    """Documents of random tokens, `lengths` without their end-of-text token."""
    rng = np.random.default_rng(7)
    return Block(
        tokens=rng.integers(4, 4000, int(lengths.sum()) + len(lengths)).astype(np.uint16),
        lengths=lengths,
        text_bytes=lengths,
        doc_ids=pa.array([place.to_bytes(16, "big") for place in range(len(lengths))], pa.binary(16)),
        pieces=pa.array(np.zeros(len(lengths), np.int16)),
    )


def layout_of(block: Block, kept: np.ndarray, row_length: int, buckets: int):
    keys, ids = document_keys(block)[kept], block.doc_ids.take(pa.array(np.flatnonzero(kept))).to_pylist()
    layout, written, absent = stable_layout(block.lengths[kept] + 1, keys, ids, row_length, buckets, int(kept.sum()))
    assert not len(absent.keys)
    return layout, written, keys


def contents(layout, keys) -> set[tuple]:
    """Rows as their segments: (key of the document, offset, length)."""
    rows: dict[int, list] = {}
    for row, document, offset, length in zip(layout.row, layout.document, layout.offset, layout.length, strict=True):
        rows.setdefault(int(row), []).append((int(keys[document]), int(offset), int(length)))
    return {tuple(row) for row in rows.values()}


def test_a_removed_document_changes_at_most_four_rows_that_it_was_not_in():
    """Each of 100 drawn documents, of lengths like the demo's: 1,311 documents of 2,850 tokens in the mean."""
    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(6.85, 1.5, 1311).astype(np.int64) + 1, 30_000)
    block, row_length = block_of(lengths), 257
    buckets = bucket_count(int(((lengths + 1) % row_length).sum()), row_length)
    everything = np.ones(len(lengths), bool)
    layout, _, keys = layout_of(block, everything, row_length, buckets)
    before = contents(layout, keys)
    padding = 1 - int((lengths + 1).sum()) / (layout.rows * row_length)
    concatenated = -(-int((lengths + 1).sum()) // row_length)
    assert padding - (1 - int((lengths + 1).sum()) / (concatenated * row_length)) < 0.010
    changed = []
    for document in rng.choice(len(lengths), 100, replace=False):
        kept = everything.copy()
        kept[document] = False
        without, _, other_keys = layout_of(block, kept, row_length, buckets)
        gone = before - contents(without, other_keys)
        alone = {row for row in gone if {key for key, _, _ in row} == {int(keys[document])}}
        shared = {row for row in gone - alone if int(keys[document]) in {key for key, _, _ in row}}
        assert len(shared) <= 1
        changed.append(len(gone - alone - shared))
    assert max(changed) <= 4
    assert np.mean(changed) < 1


def test_rows_are_a_function_of_the_set_of_documents(context, make_documents, vocab):
    one = build_chunk(context, make_documents([[("code", text) for text in TEXTS]]), vocab, config())
    parts = [[("code", text) for text in TEXTS[::-2]], [], [("code", text) for text in TEXTS[-2::-2]]]
    other = build_chunk(context, make_documents(parts), vocab, config())
    assert reads(one) == reads(other)
    digests = [[record.digest for record in of.records if record.table == "sequences"] for of in (one, other)]
    assert digests[0] == digests[1]


def test_rows_are_alike_however_few_documents_are_in_memory(context, make_documents, vocab, monkeypatch):
    named = [("code" if place % 3 else "other", text) for place, text in enumerate(TEXTS)]
    documents = make_documents([named[::2], named[1::2]])
    whole = build_chunk(context, documents, vocab, config(weights={"code": 0.5, "other": 0.5}))
    monkeypatch.setattr("tasks.chunk.stable_rows.WINDOW_TOKENS", 1000)
    by_windows = build_chunk(context, documents, vocab, config(weights={"code": 0.5, "other": 0.5}))
    assert reads(by_windows) == reads(whole)
    assert by_windows.content == whole.content


def test_every_token_of_every_document_is_in_the_rows(context, make_documents, vocab):
    texts = {text.encode() for text in TEXTS}
    documents = make_documents([[("code", text) for text in TEXTS]])
    chunk = build_chunk(context, documents, vocab, config())
    by_id = {row["doc_id"]: row["text"].encode() for row in documents.table("documents").to_pylist()}
    found: dict[bytes, bytes] = {}
    for span in chunk.table("spans").to_pylist():
        assert span["start"] == len(found.get(span["doc_id"], b""))
        found[span["doc_id"]] = by_id[span["doc_id"]][: span["end"]]
    assert set(found.values()) == texts


def test_with_a_tombstone_every_other_position_stays(context, make_documents, vocab):
    documents = make_documents([[("code", text) for text in TEXTS]])
    chunk = build_chunk(context, documents, vocab, config())
    before = reads(chunk)
    rows = documents.table("documents").to_pylist()
    order = chunk.table("order").column("row").to_numpy()
    for removed in rows[::90]:
        spans = [span for span in chunk.table("spans").to_pylist() if span["doc_id"] == removed["doc_id"]]
        own = np.isin(order, [span["row"] for span in spans])
        without = make_documents([[("code", row["text"]) for row in rows if row is not removed]])
        kept = config(keep=str(chunk.path), tombstones=tombstones(documents, vocab, {removed["doc_id"]}))
        after = reads(build_chunk(context, without, vocab, kept))
        assert len(after) == len(before)
        changed = np.array([one != other for one, other in zip(before, after, strict=True)])
        assert not changed[~own].any()
        assert changed[own].all()


@pytest.mark.parametrize("budget", [60_000, 250_000])
def test_refilled_slots_are_few_and_keep_no_trace(context, make_documents, vocab, budget):
    """In a short pass, and in whole ones."""
    rows = [("code", text) for text in TEXTS]
    chunk = build_chunk(context, make_documents([rows]), vocab, config(budget_tokens=budget))
    before, spans = reads(chunk), chunk.table("spans").to_pylist()
    order, documents = chunk.table("order").column("row").to_numpy(), make_documents([rows]).table("documents")
    moved, own = 0, 0
    for number in range(0, len(rows), 30):
        doc_id = documents.column("doc_id")[number].as_py()
        without = make_documents([[*rows[:number], *rows[number + 1 :]]])
        after = reads(build_chunk(context, without, vocab, config(budget_tokens=budget, keep=str(chunk.path))))
        moved += sum(one != other for one, other in zip(before, after, strict=True))
        own += np.isin(order, [span["row"] for span in spans if span["doc_id"] == doc_id]).sum()
    assert moved <= 3 * own


def test_a_pass_reads_each_row_at_most_once_and_few_positions_are_blank(context, make_documents, vocab):
    whole = config(budget_tokens=250_000)
    chunk = build_chunk(context, make_documents([[("code", text) for text in TEXTS]]), vocab, whole)
    order, (last,) = chunk.table("order"), [part.num_rows - 1 for part in [chunk.table("sequences")]]
    rows, epochs = order.column("row").to_numpy(), order.column("epoch").to_numpy()
    for epoch in range(epochs.max() + 1):
        filled = rows[(epochs == epoch) & (rows != last)]
        assert len(np.unique(filled)) == len(filled)
    blank = [row == np.full(ROW, PAD, np.int64).tobytes() for row in reads(chunk)]
    assert chunk.report.facts["order"]["blank"] == sum(blank) == (rows == last).sum()
    assert np.mean(blank) < 0.015
    in_first = rows[epochs == 0]
    assert len(np.unique(in_first)) > 0.985 * last


def test_a_short_pass_reads_the_same_share_of_every_document(context, make_documents, vocab):
    chunk = build_chunk(context, make_documents([[("code", text) for text in TEXTS]]), vocab, config())
    rows = chunk.table("order").column("row").to_numpy()
    share = len(rows) / (chunk.table("sequences").num_rows - 1)
    assert 0.2 < share < 0.8
    spans: dict[bytes, list[int]] = {}
    for span in chunk.table("spans").to_pylist():
        spans.setdefault(span["doc_id"], []).append(span["row"])
    long = [own for own in spans.values() if len(own) >= 12]
    assert len(long) > 20
    shares = [np.isin(own, rows).mean() for own in long]
    # Whole documents of a part of the source are shares of 0 and 1, whose deviation is 0.4.
    assert np.std(shares) < 1.3 * np.mean([np.sqrt(share * (1 - share) / len(own)) for own in long])
    # Without one document, training is repeated from its first read on, which in a random order is earlier.
    first = [np.append(np.flatnonzero(np.isin(rows, own)), len(rows))[0] for own in spans.values()]
    assert 1 - np.mean(first) / len(rows) < 0.55


def test_the_tokens_read_are_those_of_the_budget_by_source(context, make_documents, vocab):
    half = len(TEXTS) // 2
    documents = make_documents([[("a", text) for text in TEXTS[:half]], [("b", text) for text in TEXTS[half:]]])
    chunk = build_chunk(context, documents, vocab, config(weights={"a": 3, "b": 1}))
    mixture = chunk.report.facts["mixture"]
    assert mixture["a"]["realised_share"] == pytest.approx(0.75, abs=0.001)
    assert mixture["b"]["realised_share"] == pytest.approx(0.25, abs=0.001)
    assert 0 <= 60_000 - chunk.report.facts["order"]["tokens"] < 2 * ROW


def test_a_source_of_one_row_is_read_as_often_as_it_may_be(context, make_documents, vocab):
    documents = make_documents([[("a", "def one(): pass")], [("code", text) for text in TEXTS]])
    chunk = build_chunk(context, documents, vocab, config(weights={"a": 1, "code": 1}))
    mixture = chunk.report.facts["mixture"]
    assert [mixture["a"][name] for name in ("rows", "reads", "epochs")] == [1, 3, 3.0]
    assert sum(source["rows"] for source in mixture.values()) == chunk.report.facts["rows"]["rows"]


def test_a_document_is_read_within_a_short_range_of_a_pass(context, make_documents, vocab):
    """By the distance of half of its rows from their middle; in a random order that would be a quarter of the pass."""
    whole = config(budget_tokens=250_000)
    chunk = build_chunk(context, make_documents([[("code", text) for text in TEXTS]]), vocab, whole)
    order = chunk.table("order")
    first = order.column("row").to_numpy()[order.column("epoch").to_numpy() == 0]
    spans: dict[bytes, list[int]] = {}
    for span in chunk.table("spans").to_pylist():
        spans.setdefault(span["doc_id"], []).append(span["row"])
    places = [np.flatnonzero(np.isin(first, rows)) for rows in spans.values() if len(rows) > 5]
    spreads = [np.median(np.abs(place - np.median(place))) / len(first) for place in places if len(place)]
    assert len(spreads) > 50
    assert np.mean(spreads) < 0.03


def test_few_long_documents_fill_their_slots(context, make_documents, vocab):
    text = Path(argparse.__file__).read_text(encoding="utf-8")
    long = [text[begin : begin + 9000] for begin in range(0, 81_000, 9000)]
    chunk = build_chunk(context, make_documents([[("code", one) for one in long]]), vocab, config(budget_tokens=20_000))
    order = chunk.report.facts["order"]
    assert order["blank"] < 0.02 * order["reads"]  # One place for all rows of a bucket left 60% blank.


def test_keys_fill_all_buckets_in_their_order():
    assert [bucket_count(tokens, 100) for tokens in (0, 700, 1300, 6400)] == [1, 1, 3, 13]
    keys = np.array([0, 1 << 61, (1 << 64) - 1], np.uint64)
    assert bucket_of(keys, 8).tolist() == [0, 1, 7]
    assert bucket_of(keys, 1).tolist() == [0, 0, 0]
