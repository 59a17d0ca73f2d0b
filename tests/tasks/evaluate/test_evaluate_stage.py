"""The whole stage on a model that was really trained: scores, samples, and the same bytes again."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from model.errors import InputError
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import build_evaluate
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tests.tasks.evaluate.conftest import check_same_on_a_device

pytestmark = pytest.mark.usefixtures("forked_trainers")

TEXT = Path(argparse.__file__).read_text(encoding="utf-8")
TRAIN = TrainStageConfig.model_validate(
    {
        "model": {"context": 64, "layers": 1, "heads": 2, "width": 32},
        "batch_rows": 8,
        "micro_batch_rows": 8,
        "threads": 1,
        "schedule": {"peak_lr": 1e-2, "end_lr": 1e-3},
    }
)
CONFIG = EvaluateConfig(threads=1, shots=(0, 1), sample_tokens=8, bootstrap_rounds=50)


def leak(item_id: str, state: str) -> dict[str, object]:
    return {
        "benchmark": "cloze",
        "item_id": item_id,
        "state": state,
        "form": "ngram",
        "matched": 1,
        "total": 1,
        "remains": 0,
    }


ITEMS = [
    {
        "benchmark": "cloze",
        "item_id": f"i{number}",
        "lang": "en",
        "context": f"def function_{number}(self):\n    return",
        "choices": ["self.name", "Zzyzx Quux Frobozz"],
        "answer": "0",
        "match_text": f"function_{number}",
    }
    for number in range(12)
]
LEAKS = [leak(f"i{number}", "leaked" if number < 4 else "clean") for number in range(12)]


def test_a_trained_model_is_scored_and_scored_again_to_the_same_bytes(context, make_documents, heldout_artifact):
    documents = make_documents([[("code", TEXT[:60_000])]])
    vocab = build_vocab(context, documents, VocabConfig(vocab_size=500))
    chunk = build_chunk(context, documents, vocab, ChunkConfig(row_length=65, budget_tokens=80_000))
    model = build_train(context, chunk, vocab, TRAIN, lambda message: None)
    decontaminated = heldout_artifact([("code", TEXT[60_000:63_000]), ("code", TEXT[63_000:66_000])], ITEMS, LEAKS)
    evaluated = build_evaluate(context, model, vocab, chunk, decontaminated, CONFIG)

    scores = {(row["task"], row["metric"], row["shots"], row["subset"]): row for row in scores_of(evaluated)}
    bits = scores["heldout/code", "bits_per_byte", 0, "all"]
    unigram = scores["heldout/code", "unigram_bits_per_byte", 0, "all"]
    assert bits["n"] == 2
    assert 0.5 < bits["value"] < unigram["value"] < 8.0
    assert bits["stderr"] > 0
    five = scores["heldout/code", "5gram_bits_per_byte", 0, "all"]
    assert 0.5 < five["value"] < unigram["value"]
    assert scores["heldout/all", "5gram_bits_per_byte", 0, "all"]["value"] == five["value"]
    for prefix, whole in (("", bits), ("5gram_", five)):
        parts = [
            scores.get(("heldout/code", f"{prefix}{part}_bits_per_byte", 0, "all")) for part in ("new", "repeated")
        ]
        sizes = [int(part["note"].partition(" ")[0]) if part else 0 for part in parts]
        sums = [part["value"] * size for part, size in zip(parts, sizes, strict=True) if part]
        assert sum(sizes) == 6000
        assert sum(sums) / 6000 == pytest.approx(whole["value"])
    accuracy = scores["cloze", "acc", 0, "all"]
    assert (accuracy["n"], accuracy["value"]) == (12, 1.0)
    assert scores["cloze", "acc", 1, "leaked"]["n"] == 4
    assert scores["cloze", "acc", 1, "clean"]["n"] == 8
    samples = evaluated.table("samples").to_pylist()
    assert [row["temperature"] for row in samples] == [0.0, 0.8]
    assert all(row["prompt"] in TEXT and row["text"] for row in samples)
    assert evaluated.report.facts["headline"]["heldout/code"] == bits["value"]
    assert scores["heldout/code", "perplexity", 0, "all"]["value"] > 1
    kept = evaluated.table("item_scores").to_pylist()
    assert len(kept) == 24
    assert {(row["metric"], row["value"]) for row in kept} == {("acc", 1.0)}
    assert [(gap["leaked_n"], gap["clean_n"], gap["p"]) for gap in evaluated.table("gaps").to_pylist()] == [
        (4, 8, 1.0)
    ] * 2
    assert scores["written text", "invalid_utf8_share", 0, "all"]["value"] == 0.0
    read = b"".join(text.encode() for text in documents.table("documents").column("text").to_pylist())
    for row in evaluated.table("overlaps").to_pylist():
        assert row["shared_tokens"] == scores["written text", "most_shared_tokens", 0, "all"]["value"] or row["tokens"]
        assert row["shared_text"] in row["text"]
        if row["end"] - row["start"] == len(row["shared_text"].encode()):
            assert read[row["start"] : row["end"]].decode() == row["shared_text"]

    again = build_evaluate(
        replace(context, forced=frozenset({"evaluate"})), model, vocab, chunk, decontaminated, CONFIG
    )
    assert again.content == evaluated.content
    assert not again.reused

    check_same_on_a_device(
        evaluated, lambda config: build_evaluate(context, model, vocab, chunk, decontaminated, config), CONFIG
    )

    other = build_vocab(context, documents, VocabConfig(vocab_size=501))
    with pytest.raises(InputError, match="trained with the tokenizer"):
        build_evaluate(context, model, other, chunk, decontaminated, CONFIG)


def scores_of(artifact):
    return artifact.table("scores").to_pylist()
