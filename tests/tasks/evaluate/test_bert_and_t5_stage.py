"""The whole stage on a BERT and a T5 that were trained: what each is measured by, and that nothing is called by the
name of another measure."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.samples import BETWEEN, BLANK
from tasks.evaluate.stage import build_evaluate
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab
from tests.tasks.evaluate.conftest import check_same_on_a_device

pytestmark = pytest.mark.usefixtures("forked_trainers")

TEXT = Path(argparse.__file__).read_text(encoding="utf-8")
DOCUMENTS = [("code", TEXT[begin : begin + 6_000]) for begin in range(0, 60_000, 6_000)]
HELDOUT = [("code", TEXT[60_000:63_000]), ("code", TEXT[63_000:66_000]), ("code", TEXT[66_000:68_000])]
CONFIG = EvaluateConfig(threads=1, shots=(0, 1), sample_tokens=24, bootstrap_rounds=50, hidden_tokens=200)
SPECIAL = {"special_tokens": ("[CLS]", "[SEP]", "[MASK]"), "sentinels": 12}
ITEMS = [
    {
        "benchmark": "cloze",
        "item_id": f"i{number}",
        "lang": "en",
        "context": f"def function_{number}(self):\n    return",
        "choices": [] if number % 2 else ["self.name", "Zzyzx Quux Frobozz"],
        "answer": "self.name" if number % 2 else "0",
        "match_text": f"function_{number}",
    }
    for number in range(8)
]

Evaluated = tuple[dict[tuple[str, str, int, str], dict[str, Any]], list[dict[str, Any]], Artifact]


@pytest.fixture
def evaluated(
    context: RunContext, heldout_artifact: Callable[..., Artifact]
) -> Callable[[str, dict[str, Any]], Evaluated]:
    def build(architecture: str, rows: dict[str, Any]) -> Evaluated:
        unseen = heldout_artifact(HELDOUT, ITEMS, documents=DOCUMENTS)
        vocab = build_vocab(context, unseen, VocabConfig.model_validate({"vocab_size": 500, **SPECIAL}))
        chunk = build_chunk(context, unseen, vocab, ChunkConfig.model_validate({"budget_tokens": 60_000, **rows}))
        train = TrainStageConfig.model_validate(
            {
                "model": {"architecture": architecture, "context": 64, "layers": 1, "heads": 2, "width": 32},
                "batch_rows": 8,
                "micro_batch_rows": 8,
                "threads": 1,
                "schedule": {"peak_lr": 1e-2, "end_lr": 1e-3},
            }
        )
        model = build_train(context, chunk, vocab, train, lambda message: None)
        found = build_evaluate(context, model, vocab, chunk, unseen, CONFIG)
        again = replace(context, forced=frozenset({"evaluate"}))
        assert build_evaluate(again, model, vocab, chunk, unseen, CONFIG).content == found.content
        check_same_on_a_device(
            found, lambda config: build_evaluate(context, model, vocab, chunk, unseen, config), CONFIG
        )
        rows_of = found.table("scores").to_pylist()
        scores = {(row["task"], row["metric"], row["shots"], row["subset"]): row for row in rows_of}
        return scores, found.table("samples").to_pylist(), found

    return build


def test_a_bert_is_measured_by_what_it_hides(evaluated: Callable[[str, dict[str, Any]], Evaluated]):
    scores, samples, artifact = evaluated("bert", {"objective": "masked_lm", "row_length": 64})
    heldout = {metric: row for (task, metric, *_), row in scores.items() if task == "heldout/code"}
    assert "bits_per_byte" not in heldout
    assert 0.1 < heldout["pseudo_bits_per_byte"]["value"] < heldout["unigram_bits_per_byte"]["value"]
    assert heldout["pseudo_bits_per_byte"]["note"].startswith("each of 200 tokens hidden in turn, of ")
    assert heldout["masked_nats_per_token"]["value"] < heldout["unigram_masked_nats_per_token"]["value"]
    assert heldout["masked_accuracy"]["value"] >= heldout["frequent_token_accuracy"]["value"] > 0
    assert heldout["masked_accuracy"]["stderr"] > 0
    assert 0.5 <= heldout["majority_next_accuracy"]["value"] < 1
    assert 0 < heldout["next_accuracy"]["value"] <= 1
    assert 0 < heldout["5gram_bits_per_byte"]["value"] < heldout["unigram_bits_per_byte"]["value"]
    accuracy = scores["cloze", "acc", 0, "all"]
    assert (accuracy["n"], accuracy["value"]) == (4, 1.0)
    assert "pseudo-likelihood: each token of a choice hidden in turn" in accuracy["note"]
    exact = scores["cloze", "exact", 0, "all"]
    assert (exact["value"], exact["note"].partition(";")[0]) == (None, "declined: a BERT writes no text")
    assert scores["cloze", "answer_pseudo_bits_per_byte", 1, "all"]["value"] > 0
    assert not any(metric == "answer_bits_per_byte" for _, metric, *_ in scores)
    reported = artifact.report.facts["headline"]
    assert reported["heldout/code/pseudo_bits_per_byte"] == heldout["pseudo_bits_per_byte"]["value"]
    assert "heldout/code" not in reported
    assert (reported["cloze/0-shot"], reported["cloze/0-shot/exact"]) == (accuracy["value"], None)
    check_samples(samples)


def test_a_t5_is_measured_by_what_it_writes(evaluated: Callable[[str, dict[str, Any]], Evaluated]):
    scores, samples, _ = evaluated("t5", {"objective": "span_corruption", "input_length": 64})
    heldout = {metric: row for (task, metric, *_), row in scores.items() if task == "heldout/code"}
    assert "bits_per_byte" not in heldout
    assert 0 < heldout["target_nats_per_token"]["value"] < 6.3
    assert heldout["target_nats_per_token"]["note"].startswith("random_spans of ")
    assert 0 < heldout["target_bits_per_byte"]["value"] < 8
    assert heldout["unigram_target_bits_per_byte"]["stderr"] > 0
    assert 0 < heldout["5gram_bits_per_byte"]["value"] < heldout["unigram_bits_per_byte"]["value"]
    accuracy = scores["cloze", "acc", 0, "all"]
    assert accuracy["n"] == 4
    assert "decoder's likelihood of the choice in place of a sentinel behind the prompt" in accuracy["note"]
    assert scores["cloze", "exact", 0, "all"]["value"] is not None
    assert scores["cloze", "answer_bits_per_byte", 0, "all"]["value"] > 0
    check_samples(samples)


def test_a_t5_that_shuffles_declines_benchmarks_in_a_row(evaluated: Callable[[str, dict[str, Any]], Evaluated]):
    rows = {"objective": "span_corruption", "input_length": 64, "denoising": "deshuffling"}
    scores, samples, _ = evaluated("t5", rows)
    for shots in (0, 1):
        for metric in ("acc", "exact"):
            row = scores["cloze", metric, shots, "all"]
            assert (row["value"], row["n"]) == (None, 4)
            assert row["note"].startswith("declined: a T5 trained by deshuffling")
    assert scores["heldout/code", "target_bits_per_byte", 0, "all"]["value"] > 0
    assert all(row["truth"] and row["truth"] in TEXT for row in samples)


def check_samples(samples: list[dict[str, Any]]) -> None:
    assert [row["temperature"] for row in samples] == [0.0, 0.8]
    for row in samples:
        holes = row["prompt"].count(BLANK)
        assert holes
        assert row["truth"].count(BETWEEN) == holes - 1
        assert all(truth in TEXT or truth.startswith("'") for truth in row["truth"].split(BETWEEN))
        assert row["text"]
