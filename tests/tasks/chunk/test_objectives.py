"""Rows for BERT and T5 from documents to artifact, and what a vocabulary must have for them."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from model.data.row_format import RowFormat
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.workspace import Workspace
from tasks.chunk.config import ChunkConfig
from tasks.chunk.pipeline import chunk_documents
from tasks.chunk.stage import build_chunk
from tasks.execution.executor import ThisProcess
from tasks.tokenizer.base import PAD, Tokenizer
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

SOURCE_TEXT = Path(argparse.__file__).read_text(encoding="utf-8")
PROSE = "One sentence. Another one! A third, which is longer than the others? 一。二。\nA line\n" * 40
PARTS = [
    [("code", SOURCE_TEXT[:9000]), ("odd", "日本語 😀\n\n\t x \u2581 "), ("code", "a"), ("odd", "😀" * 40)],
    [("prose", f"Note {number}. It is short.") for number in range(60)],
    [("prose", PROSE), ("code", SOURCE_TEXT[9000:30_000]), ("odd", "é\0\r\n"), ("prose", "End"), ("odd", "")],
]
TEXTS = [text for part in PARTS for _, text in part]
BERT = ("[CLS]", "[SEP]", "[MASK]")
MASKED = ChunkConfig(objective="masked_lm", row_length=64, budget_tokens=10_000, part_bytes=4096)
SPANS = ChunkConfig(objective="span_corruption", input_length=64, budget_tokens=10_000)
BEST_FIT = ChunkConfig(packing="best_fit", row_length=65, budget_tokens=10_000, part_bytes=4096)


@pytest.fixture
def documents(make_documents: Callable[..., Artifact]) -> Artifact:
    return make_documents(PARTS)


@pytest.fixture
def vocab(context: RunContext, documents: Artifact) -> Artifact:
    config = VocabConfig(vocab_size=450, character_coverage=0.99, special_tokens=BERT, sentinels=10)
    return build_vocab(context, documents, config)


def tokens_of(chunk: Artifact) -> np.ndarray:
    return np.array(chunk.table("sequences").column("tokens").to_pylist())


def rebuilt(chunk: Artifact, tokenizer: Tokenizer, documents: Artifact) -> dict[bytes, bytes]:
    """The bytes of each document from SEQUENCES and SPANS; checks that segments meet."""
    tokens = tokens_of(chunk)
    found = {row["doc_id"]: b"" for row in documents.table("documents").to_pylist()}
    for span in sorted(chunk.table("spans").to_pylist(), key=lambda span: (span["doc_id"], span["start"])):
        assert len(found[span["doc_id"]]) == span["start"]
        begin = span["tok_start"]
        found[span["doc_id"]] += tokenizer.decode_bytes(tokens[span["row"], begin : begin + span["tok_len"]])
        assert len(found[span["doc_id"]]) == span["end"]
    return found


@pytest.mark.parametrize("config", [MASKED, SPANS, BEST_FIT], ids=["masked_lm", "span_corruption", "best_fit"])
def test_every_document_is_rebuilt_and_workers_and_kills_change_no_byte(context, documents, vocab, tmp_path, config):
    tokenizer = open_tokenizer(vocab)
    one = build_chunk(context, documents, vocab, config.model_copy(update={"workers": 1}))
    assert sorted(rebuilt(one, tokenizer, documents).values()) == sorted(text.encode() for text in TEXTS)
    for workers in (2, 4):
        forced = replace(context, forced=frozenset({"chunk"}))
        other = build_chunk(forced, documents, vocab, config.model_copy(update={"workers": workers}))
        assert (other.content, other.reused) == (one.content, False)
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work")
    chunk_documents(documents, vocab, config, workspace, ThisProcess())
    for unit in ("00000", "order"):
        (workspace.folder / "units" / f"{unit}.json").unlink()
    (workspace.folder / "scratch" / "tokens" / "units" / "00000.json").unlink()
    chunk_documents(documents, vocab, config, workspace, ThisProcess())
    assert [record.digest for record in workspace.records()] == [record.digest for record in one.records]


def test_the_schema_says_what_rows_are(context, documents, vocab):
    tokenizer = open_tokenizer(vocab)
    for config in (MASKED, SPANS, BEST_FIT):
        chunk = build_chunk(context, documents, vocab, config)
        reported = RowFormat.of(chunk.table("sequences").schema)
        assert reported is not None
        assert (reported.objective, reported.tokenizer_digest, reported.vocab_size) == (
            config.objective,
            tokenizer.digest,
            450,
        )
        assert (reported.eos, reported.pad, reported.cls, reported.sep, reported.mask) == (
            tokenizer.eos,
            tokenizer.pad,
            tokenizer.cls,
            tokenizer.sep,
            tokenizer.mask,
        )
        assert len(reported.sentinels) == 10
        assert chunk.report.facts["rows"]["objective"] == config.objective
    assert chunk.report.facts["rows"]["packing"] == "best_fit"


def test_pairs_are_between_their_special_tokens(context, documents, vocab):
    tokenizer = open_tokenizer(vocab)
    chunk = build_chunk(context, documents, vocab, MASKED)
    table, tokens = chunk.table("sequences"), tokens_of(chunk)
    labels = table.column("is_next").to_pylist()
    assert (tokens[:, 0] == tokenizer.cls).all()
    for row, second, label in zip(tokens, table.column("second_start").to_pylist(), labels, strict=True):
        separators = np.flatnonzero(row == tokenizer.sep)
        assert len(separators) == (1 if label is None else 2)
        assert second == (64 if label is None else separators[0] + 1)
        assert (row[separators[-1] + 1 :] == PAD).all()
    reported = chunk.report.facts["rows"]["labels"]
    assert reported == {"next": labels.count(True), "not_next": labels.count(False), "single": labels.count(None)}
    documents_of: dict[int, list[bytes]] = {}
    for span in chunk.table("spans").to_pylist():
        documents_of.setdefault(span["row"], []).append(span["doc_id"])
    for number, label in enumerate(labels):
        assert len(set(documents_of[number])) == (2 if label is False else 1)
    assert chunk.report.facts["padding_share"] == (tokens == PAD).mean()


def test_raw_rows_of_spans_are_as_long_as_corruption_wants(context, documents, vocab):
    chunk = build_chunk(context, documents, vocab, SPANS)
    tokens = tokens_of(chunk)
    assert tokens.shape[1] == SPANS.row_length == 70
    padded = [number for number, row in enumerate(tokens) if PAD in row]
    sources = chunk.table("sequences").column("source").to_pylist()
    assert all(number == len(sources) - 1 - sources[::-1].index(sources[number]) for number in padded)
    facts = chunk.report.facts
    assert facts["order"]["tokens"] <= 10_000
    assert facts["mixture"]["code"]["epochs"] <= 4


@pytest.mark.parametrize(("kind", "raw"), [("iid_drop", 74), ("bert_style", 63), ("prefix_lm", 64)])
def test_rows_of_other_objectives_are_as_long_as_each_wants(context, documents, vocab, kind, raw):
    """64 inputs: of 74 tokens 11 are dropped and the end-of-text token added; of 63 all are read."""
    config = ChunkConfig(objective="span_corruption", denoising=kind, input_length=64, budget_tokens=10_000)
    chunk = build_chunk(context, documents, vocab, config)
    assert tokens_of(chunk).shape[1] == config.row_length == raw
    reported = RowFormat.of(chunk.table("sequences").schema)
    assert reported is not None
    assert reported.denoising == chunk.report.facts["rows"]["denoising"] == kind


def test_masks_of_t5_need_one_sentinel_and_shuffled_text_none(context, documents):
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400, character_coverage=0.99))
    config = ChunkConfig(objective="span_corruption", denoising="mass_style", input_length=64)
    with pytest.raises(
        InputError,
        match=r"mass_style replaces corrupted tokens by the first sentinel,.* Set vocab\.sentinels = 1 or more",
    ):
        build_chunk(context, documents, vocab, config)
    build_chunk(context, documents, vocab, config.model_copy(update={"denoising": "deshuffling"}))


def test_budgets_count_what_the_objective_reads(context, documents, vocab):
    for config in (MASKED, SPANS, BEST_FIT):
        chunk = build_chunk(context, documents, vocab, config)
        real = (tokens_of(chunk) != PAD).sum(axis=1)
        if config.objective == "masked_lm":
            real -= np.where(np.equal(chunk.table("sequences").column("second_start").to_numpy(), 64), 2, 3)
        elif config.objective == "causal_lm":
            real -= 1
        read = chunk.table("order").column("row").to_numpy()
        assert chunk.report.facts["order"]["tokens"] == real[read].sum() <= config.budget_tokens


def test_a_vocabulary_without_berts_tokens_is_refused_before_work(context, documents, tmp_path):
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400, character_coverage=0.99))
    (tmp_path / "work").mkdir()
    with pytest.raises(InputError, match=r"has no \[CLS\], \[SEP\], \[MASK\]. Add them with vocab.special_tokens"):
        chunk_documents(documents, vocab, MASKED, Workspace(tmp_path / "work"), ThisProcess())
    assert list((tmp_path / "work").iterdir()) == []


def test_more_spans_than_sentinels_are_refused_with_both_numbers_and_the_cure(context, documents, vocab):
    long = ChunkConfig(objective="span_corruption", input_length=2048, budget_tokens=10_000)
    expected = (
        r"removes 114 spans from a sequence of 2274 .*has 10 sentinels.*vocab.sentinels = 114 or more.*context = (\d+)"
    )
    with pytest.raises(InputError, match=expected) as refused:
        build_chunk(context, documents, vocab, long)
    named = int(str(refused.value).split("train.model.context = ")[1].split(" ")[0])
    assert ChunkConfig(objective="span_corruption", input_length=named).noise_spans == 10
    assert ChunkConfig(objective="span_corruption", input_length=named + 1).noise_spans == 11


def test_without_sentinels_no_shorter_row_is_offered(context, documents):
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=400, character_coverage=0.99))
    with pytest.raises(InputError, match=r"has 0 sentinels\. Set vocab\.sentinels = 3 or more\.$"):
        build_chunk(context, documents, vocab, ChunkConfig(objective="span_corruption", input_length=64))


def test_a_source_of_empty_texts_is_named(context, make_documents, documents, vocab):
    empty = make_documents([[("prose", PROSE), ("void", ""), ("void", "")]])
    config = MASKED.model_copy(update={"weights": {"prose": 1.0, "void": 1.0}})
    with pytest.raises(InputError, match="`void` has a weight of 1 and 2 documents, and they give no sequence"):
        build_chunk(context, empty, vocab, config)
    assert build_chunk(context, empty, vocab, MASKED).report.facts["mixture"]["void"]["reads"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "span_corruption"}, "needs input_length"),
        ({"input_length": 512}, "input_length belongs to span_corruption"),
        (
            {"objective": "masked_lm", "packing": "best_fit"},
            "best_fit is for causal_lm, and the objective is masked_lm",
        ),
        ({"objective": "masked_lm", "row_length": 7}, "row_length 7 is too short for a pair"),
        ({"objective": "span_corruption", "input_length": 512, "row_length": 512}, "requires rows of 568 tokens"),
        ({"objective": "bert"}, "masked_lm"),
        ({"denoising": "deshuffling"}, "deshuffling belongs to span_corruption, and the objective is causal_lm"),
        ({"objective": "span_corruption", "input_length": 512, "denoising": "deshuffle"}, "'deshuffling'"),
        ({"whole_words": True}, "whole_words belongs to masked_lm, and the objective is causal_lm"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        ChunkConfig(**settings)


def test_a_vocabulary_that_drops_blanks_is_traced_all_the_same(context, documents):
    """WordPiece: the bytes of its tokens are not those of its pieces, and a document of blanks has none."""
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=500, model_type="wordpiece"))
    tokenizer = open_tokenizer(vocab)
    assert not tokenizer.exact
    for config in (MASKED, BEST_FIT, ChunkConfig(row_length=65, budget_tokens=10_000)):
        chunk = build_chunk(context, documents, vocab, config)
        tokens = tokens_of(chunk)
        for row in documents.table("documents").to_pylist():
            spans = [span for span in chunk.table("spans").to_pylist() if span["doc_id"] == row["doc_id"]]
            spans.sort(key=lambda span: span["start"])
            ids = [tokens[span["row"], span["tok_start"] : span["tok_start"] + span["tok_len"]] for span in spans]
            assert np.concatenate([np.zeros(0, int), *ids]).tolist() == tokenizer.encode(row["text"])
            borders = [0, *(span["end"] for span in spans)]
            assert [span["start"] for span in spans] == borders[:-1]
            assert borders[-1] == (len(row["text"].encode()) if ids else 0)
        assert isinstance(chunk.table("sequences").schema.field("tokens").type, pa.FixedSizeListType)
