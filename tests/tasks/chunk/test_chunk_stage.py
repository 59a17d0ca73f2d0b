"""Every byte of every document can be found again in the rows, and nothing else is there."""

import argparse
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.errors import Bug
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.workspace import Workspace
from tasks.chunk.config import ChunkConfig
from tasks.chunk.packing import concat_rows
from tasks.chunk.pipeline import chunk_documents
from tasks.chunk.stage import build_chunk
from tasks.chunk.tokenize import Block, TokenBytes
from tasks.execution.executor import ThisProcess
from tasks.tokenizer.base import EOS, PAD, Tokenizer
from tasks.tokenizer.open import open_tokenizer
from tasks.tokenizer.sentencepiece import SentencePieceTokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tasks.vocab.train import train_sentencepiece

SOURCE_TEXT = Path(argparse.__file__).read_text(encoding="utf-8")
PARTS = [
    [("code", SOURCE_TEXT[:9000]), ("odd", "日本語 😀\n\n\t x \u2581 "), ("code", "a"), ("odd", "😀" * 40)],
    [],
    [("prose", "One line.\n" * 30), ("code", SOURCE_TEXT[9000:30_000]), ("odd", "é\0\r\n"), ("prose", "End")],
]
LENGTH = 33


@pytest.fixture
def documents(make_documents) -> Artifact:
    return make_documents(PARTS)


@pytest.fixture
def vocab(context: RunContext, documents: Artifact) -> Artifact:
    return build_vocab(context, documents, VocabConfig(vocab_size=400, character_coverage=0.99))


def rebuilt_texts(chunk: Artifact, tokenizer: Tokenizer) -> dict[bytes, bytes]:
    """doc_id -> bytes, from SEQUENCES and SPANS alone; checks on the way that segments meet without gap."""
    rows = chunk.table("sequences").column("tokens").combine_chunks()
    tokens = rows.flatten().to_numpy().reshape(len(rows), -1)
    found: dict[bytes, bytes] = {}
    for span in chunk.table("spans").to_pylist():
        ids = tokens[span["row"], span["tok_start"] : span["tok_start"] + span["tok_len"]]
        assert len(ids) == span["tok_len"] > 0
        before = found.get(span["doc_id"], b"")
        assert len(before) == span["start"]
        stretch = tokenizer.decode_bytes(ids)
        opening = tokenizer.leading_space and span["doc_id"] not in found
        found[span["doc_id"]] = before + (stretch.removeprefix(b" ") if opening else stretch)
        assert len(found[span["doc_id"]]) == span["end"]
    return found


def test_every_document_is_rebuilt_byte_for_byte(context, documents, vocab):
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=LENGTH, budget_tokens=10_000))
    expected = {row["doc_id"]: row["text"].encode() for row in documents.table("documents").to_pylist()}
    assert rebuilt_texts(chunk, open_tokenizer(vocab)) == expected


def test_documents_are_rebuilt_where_the_vocabulary_puts_a_blank_before_them(context, documents, tmp_path):
    """As released vocabularies do: the blank is no byte of the document, and padding has no token of its own."""
    base, model = tmp_path / "base.model", io.BytesIO()
    lines = [line for line in SOURCE_TEXT.splitlines() if line.strip()]
    options = {"model_type": "bpe", "vocab_size": 400, "byte_fallback": True, "normalization_rule_name": "identity"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, remove_extra_whitespaces=False, minloglevel=2, **options
    )
    base.write_bytes(model.getvalue())
    vocab = build_vocab(context, documents, VocabConfig(base=base))
    tokenizer = open_tokenizer(vocab)
    assert tokenizer.leading_space
    assert tokenizer.pad == tokenizer.unk == 0
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=LENGTH, budget_tokens=10_000))
    expected = {row["doc_id"]: row["text"].encode() for row in documents.table("documents").to_pylist()}
    assert rebuilt_texts(chunk, tokenizer) == expected


def test_what_no_span_covers_is_end_of_text_or_padding_and_padding_ends_a_source(context, documents, vocab):
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=LENGTH, budget_tokens=10_000))
    table = chunk.table("sequences")
    tokens = np.array(table.column("tokens").to_pylist())
    covered = np.zeros(tokens.shape, dtype=int)
    for span in chunk.table("spans").to_pylist():
        covered[span["row"], span["tok_start"] : span["tok_start"] + span["tok_len"]] += 1
    assert covered.max() == 1
    assert set(tokens[covered == 0].tolist()) <= {EOS, PAD}
    assert not {EOS, PAD} & set(tokens[covered == 1].tolist())
    assert (tokens == EOS).sum() == sum(len(part) for part in PARTS)
    sources = table.column("source").to_pylist()
    assert sources == sorted(sources)
    last_rows = {source: row for row, source in enumerate(sources)}
    assert {row for row in range(len(tokens)) if PAD in tokens[row]} <= set(last_rows.values())
    padding = (tokens == PAD).sum()
    assert chunk.report.facts["padding_share"] == padding / tokens.size
    assert table.column("row").to_pylist() == list(range(len(tokens)))


def test_facts_agree_with_the_tables(context, documents, vocab):
    config = ChunkConfig(row_length=LENGTH, budget_tokens=32 * 1000, weights={"code": 2.0, "prose": 1.0, "odd": 0.0})
    chunk = build_chunk(context, documents, vocab, config)
    sequences, order = chunk.table("sequences"), chunk.table("order")
    sources = np.array(sequences.column("source").to_pylist())
    mixture = chunk.report.facts["mixture"]
    predicted = (np.array(sequences.column("tokens").to_pylist()) != PAD).sum(axis=1) - 1
    read = order.column("row").to_numpy()
    total = predicted[read].sum()
    assert chunk.report.facts["order"] == {"reads": len(read), "tokens": total, "asked_tokens": 32_000}
    for source, facts in mixture.items():
        assert facts["rows"] == (sources == source).sum()
        assert facts["documents"] == sum(name == source for part in PARTS for name, _ in part)
        mine = predicted[read[sources[read] == source]].sum()
        assert facts["realised_share"] == pytest.approx(mine / total)
        assert facts["epochs"] == pytest.approx(mine / predicted[sources == source].sum())
    assert mixture["prose"]["epochs"] == 4.0
    assert mixture["odd"]["epochs"] == 0.0
    counts = chunk.report.source("odd")
    assert (counts.documents_in, counts.documents_out) == (3, 3)
    assert counts.bytes_in == sum(len(text.encode()) for part in PARTS for name, text in part if name == "odd")


def test_unigram_counts_what_the_order_reads(context, documents, vocab):
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=LENGTH, budget_tokens=32 * 1500))
    tokens = np.array(chunk.table("sequences").column("tokens").to_pylist())
    read = tokens[chunk.table("order").column("row").to_numpy()].reshape(-1)
    expected = np.bincount(read[read != PAD], minlength=400)
    assert chunk.table("unigram").column("count").to_pylist() == expected.tolist()
    assert [field.nullable for field in chunk.table("unigram").schema] == [False, False]


def test_workers_change_no_byte_and_part_size_changes_only_the_cut(context, documents, vocab):
    config = ChunkConfig(row_length=LENGTH, budget_tokens=10_000, part_bytes=4096)
    one = build_chunk(context, documents, vocab, config.model_copy(update={"workers": 1}))
    forced = replace(context, forced=frozenset({"chunk"}))
    four = build_chunk(forced, documents, vocab, config.model_copy(update={"workers": 4}))
    assert four.content == one.content
    assert not four.reused
    assert len(one.files("sequences")) > 2
    large = build_chunk(context, documents, vocab, ChunkConfig(row_length=LENGTH, budget_tokens=10_000))
    for table in ("sequences", "spans", "order", "unigram"):
        assert one.table(table).to_pylist() == large.table(table).to_pylist()
    for sequences, spans in zip(one.files("sequences"), one.files("spans"), strict=True):
        held = set(rows_in(sequences))
        assert set(rows_in(spans)) <= held


def rows_in(path: Path) -> list[int]:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().column("row").to_pylist()


def test_a_killed_build_goes_on_to_the_same_bytes(context, documents, vocab, tmp_path):
    config = ChunkConfig(row_length=LENGTH, budget_tokens=10_000, part_bytes=4096)
    whole = build_chunk(context, documents, vocab, config)
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work")
    chunk_documents(documents, vocab, config, workspace, ThisProcess())
    first = {record.name: record.digest for record in workspace.records()}
    (workspace.folder / "units" / "00001.json").unlink()
    (workspace.folder / "units" / "order.json").unlink()
    (workspace.folder / "scratch" / "tokens" / "units" / "00000.json").unlink()
    chunk_documents(documents, vocab, config, workspace, ThisProcess())
    assert {record.name: record.digest for record in workspace.records()} == first
    assert first == {record.name: record.digest for record in whole.records}


def test_large_vocabularies_use_wider_tokens(context, documents, vocab):
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=LENGTH, budget_tokens=10_000))
    assert chunk.table("sequences").schema.field("tokens").type.value_type == pa.uint16()
    assert chunk.table("sequences").schema.field("tokens").type.list_size == LENGTH


def test_a_budget_below_one_row_is_refused_before_work():
    with pytest.raises(ValidationError, match="less than one row of 256"):
        ChunkConfig(row_length=257, budget_tokens=255)


def test_tokens_that_do_not_cover_the_text_are_a_bug():
    lengths = np.array([0, 0, 0, 0, 1, 2])
    block = Block(np.array([4, 5, EOS]), np.array([2]), np.array([4]), pa.array([b"x" * 16]), pa.array([0], pa.int16()))
    with pytest.raises(Bug, match="cover 3 bytes and its text has 4"):
        list(concat_rows([block], 4, TokenBytes(lengths, lengths), PAD, first_row=0))


TOKENIZER = SentencePieceTokenizer(
    train_sentencepiece([SOURCE_TEXT], VocabConfig(vocab_size=400, character_coverage=0.99))
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(st.text(max_size=30), max_size=8), length=st.integers(2, 9), cut=st.integers(0, 8))
def test_any_texts_in_any_blocks_are_rebuilt(texts: list[str], length: int, cut: int):
    blocks = []
    for group in (range(min(cut, len(texts))), range(min(cut, len(texts)), len(texts))):
        ids = [[*TOKENIZER.encode(texts[place]), EOS] for place in group]
        blocks.append(
            Block(
                tokens=np.array([token for tokens in ids for token in tokens], dtype=np.uint16),
                lengths=np.array([len(tokens) - 1 for tokens in ids], dtype=np.int64),
                text_bytes=np.array([len(texts[place].encode()) for place in group], dtype=np.int64),
                doc_ids=pa.array([bytes([place]) * 16 for place in group], pa.binary(16)),
                pieces=pa.array([0 for _ in group], pa.int16()),
            )
        )
    packed = list(concat_rows(blocks, length, TokenBytes.of(TOKENIZER), PAD, first_row=100))
    tokens = np.concatenate([part.rows for part in packed])
    found = dict.fromkeys(range(len(texts)), b"")
    for span in (span for part in packed for span in part.spans.to_pylist()):
        ids = tokens[span["row"] - 100, span["tok_start"] : span["tok_start"] + span["tok_len"]]
        place = span["doc_id"][0]
        assert len(ids) == span["tok_len"] > 0
        assert len(found[place]) == span["start"]
        found[place] += TOKENIZER.decode_bytes(ids)
        assert len(found[place]) == span["end"]
    assert [found[place] for place in range(len(texts))] == [text.encode() for text in texts]
