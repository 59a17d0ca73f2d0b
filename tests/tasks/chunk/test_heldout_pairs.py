"""Held-out text in rows: all of it in pairs, a few rows of it for other objectives, in tables that teach nothing."""

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sentencepiece

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.workspace import Workspace
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.common.config import StrictConfig
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

READ = [("prose", f"Note {number}. It is short. It is told to be read.") for number in range(80)]
HELD = [
    ("prose", "It was held out. It is short.\n"),
    ("odd", "日本語の文章です。それだけです。"),
    ("prose", "A. B. C. D."),
]
MASKED = ChunkConfig(objective="masked_lm", row_length=24, budget_tokens=2_000)


@pytest.fixture
def unseen(context: RunContext, make_documents: Callable[..., Artifact]) -> Artifact:
    """Documents, and others that are held out, as decontaminate publishes them."""
    read, held = make_documents([READ]), make_documents([HELD])

    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("00000") as unit:
            write_table(unit, "documents", read.table("documents"), "part-00000.arrow")
            write_table(unit, "heldout", held.table("documents"), "heldout-00000.arrow")
        return read.report

    return build_artifact(
        context, Stage("decontaminate", ("tasks.artifacts.tables.ledger",), ()), StrictConfig(), {"read": read}, run
    )


@pytest.fixture
def vocab(context: RunContext, unseen: Artifact) -> Artifact:
    names = ("[CLS]", "[SEP]", "[MASK]")
    return build_vocab(context, unseen, VocabConfig(vocab_size=320, special_tokens=names, sentinels=4))


def test_every_held_out_text_is_in_pairs_once_and_in_no_sequence(
    context: RunContext, unseen: Artifact, vocab: Artifact
):
    chunk = build_chunk(context, unseen, vocab, MASKED)
    tokenizer = open_tokenizer(vocab)
    rows = chunk.table("heldout_rows")
    assert rows.schema == chunk.table("sequences").schema
    assert rows.column("row").to_pylist() == list(range(rows.num_rows))
    texts: dict[bytes, bytes] = {}
    tokens = rows.column("tokens").to_pylist()
    for span in sorted(chunk.table("heldout_spans").to_pylist(), key=lambda span: (span["doc_id"], span["start"])):
        begin = span["tok_start"]
        of_span = tokenizer.decode_bytes(tokens[span["row"]][begin : begin + span["tok_len"]])
        texts[span["doc_id"]] = texts.get(span["doc_id"], b"") + of_span
    assert sorted(texts.values()) == sorted(text.encode() for _, text in HELD)
    assert set(rows.column("source").cast(pa.string()).to_pylist()) == {"prose", "odd"}
    assert not set(chunk.table("spans").column("doc_id").to_pylist()) & set(texts)


def test_rows_of_other_objectives_are_held_out_text_laid_end_to_end(
    context: RunContext, unseen: Artifact, vocab: Artifact
):
    tokenizer = open_tokenizer(vocab)
    for config in (
        ChunkConfig(row_length=25, budget_tokens=2_000),
        ChunkConfig(objective="span_corruption", input_length=20, budget_tokens=2_000),
    ):
        chunk = build_chunk(context, unseen, vocab, config)
        assert chunk.rows("heldout_spans") == 0
        rows = chunk.table("heldout_rows")
        assert rows.schema.field("tokens").type == chunk.table("sequences").schema.field("tokens").type
        assert rows.column("row").to_pylist() == list(range(rows.num_rows))
        for source in ("prose", "odd"):
            mine = [row for row in rows.to_pylist() if row["source"] == source]
            text = tokenizer.decode_bytes([token for row in mine for token in row["tokens"]]).decode()
            assert sorted(text) == sorted("".join(text for name, text in HELD if name == source))
            for row in mine:
                assert row["text_bytes"] == len(tokenizer.decode_bytes(row["tokens"][1:]))
        assert not {*map(tuple, rows.column("tokens").to_pylist())} & {
            *map(tuple, chunk.table("sequences").column("tokens").to_pylist())
        }


def test_text_bytes_are_bytes_of_the_texts_whatever_blanks_a_vocabulary_adds_or_drops(
    context: RunContext, unseen: Artifact, tmp_path: Path
):
    blanks_added, model = tmp_path / "base.model", io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for _, text in READ]), model_writer=model, model_type="bpe", vocab_size=320,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    blanks_added.write_bytes(model.getvalue())
    blanks_dropped = tmp_path / "vocab.txt"
    blanks_dropped.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nit\nis\nheld\nout\n.\n")
    for base in (blanks_added, blanks_dropped):
        vocab = build_vocab(context, unseen, VocabConfig(base=base))
        tokenizer = open_tokenizer(vocab)
        assert tokenizer.leading_space or not tokenizer.exact
        rows = build_chunk(context, unseen, vocab, ChunkConfig(row_length=100, budget_tokens=2_000))
        found = {row["source"]: row["text_bytes"] for row in rows.table("heldout_rows").to_pylist()}
        first = {source: HELD[number][1] for source, number in (("prose", 0), ("odd", 1))}
        for source in found:
            unpredicted = tokenizer.encode_with_offsets(first[source])[1][1]
            assert found[source] == sum(len(text.encode()) for name, text in HELD if name == source) - unpredicted


def test_a_few_held_out_rows_of_each_source_are_enough(
    context: RunContext, unseen: Artifact, vocab: Artifact, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tasks.chunk.heldout.MAX_ROWS", 2)
    chunk = build_chunk(context, unseen, vocab, ChunkConfig(row_length=9, budget_tokens=2_000))
    assert chunk.table("heldout_rows").column("source").to_pylist() == ["odd", "odd", "prose", "prose"]


def test_without_held_out_text_there_are_no_pairs_of_it(
    context: RunContext, make_documents: Callable[..., Artifact], vocab: Artifact
):
    for config in (MASKED, ChunkConfig(row_length=25, budget_tokens=2_000)):
        assert build_chunk(context, make_documents([READ]), vocab, config).rows("heldout_rows") == 0
