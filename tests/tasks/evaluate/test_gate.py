"""The gate: both models score the same text, and a run stops where the later one forgot too much."""

from pathlib import Path
from typing import Any

import pytest

from flows.runs.guards import check_gate, describe_gate
from model.errors import GuardError, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.evaluate.config import EvaluateConfig, GateConfig
from tasks.evaluate.stage import build_evaluate
from tasks.train.config import TrainStageConfig
from tasks.train.stage import build_train
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

pytestmark = pytest.mark.usefixtures("forked_trainers")

ENGLISH = [
    f"The converter blows air through melted iron for {number} minutes, and steel remains." for number in range(80)
]
RUSSIAN = [
    f"Конвертер продувает воздух через расплавленный чугун {number} минут, и остаётся сталь." for number in range(80)
]
HELD_OUT = [
    ("en", "The converter blows air through melted iron for 99 minutes, and steel remains."),
    ("en", "Steel remains, and air blows through the converter."),
    ("ru", "Конвертер продувает воздух через чугун 99 минут."),
    ("ru", "Остаётся сталь, и воздух продувает конвертер."),
]
TRAIN = {
    "batch_rows": 8,
    "micro_batch_rows": 8,
    "threads": 1,
    "schedule": {"peak_lr": 1e-2, "end_lr": 1e-3},
}
EVALUATE = {"threads": 1, "sample_tokens": 4, "bootstrap_rounds": 20}
Run = tuple[Artifact, Artifact, Artifact]


class Foundry:
    """Builds models and scores them on the same held-out text."""

    def __init__(self, context: RunContext, make_documents: Any, heldout_artifact: Any) -> None:
        self.context, self._documents = context, make_documents
        self._heldout = heldout_artifact(HELD_OUT)

    def run(self, source: str, texts: list[str], vocab: VocabConfig, context: int = 32, **settings: Any) -> Run:
        documents = self._documents([[(source, text) for text in texts]])
        tokenizer = build_vocab(self.context, documents, vocab)
        rows = build_chunk(
            self.context, documents, tokenizer, ChunkConfig(row_length=context + 1, budget_tokens=32 * 8 * 40)
        )
        network = {"context": context, "layers": 1, "heads": 2, "width": 32}
        config = TrainStageConfig.model_validate({"model": network} | TRAIN | settings)
        return rows, tokenizer, build_train(self.context, rows, tokenizer, config, lambda message: None)

    def evaluate(self, run: Run, **settings: Any) -> Artifact:
        rows, tokenizer, model = run
        config = EvaluateConfig.model_validate(EVALUATE | settings)
        return build_evaluate(self.context, model, tokenizer, rows, self._heldout, config)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    """A run under one root for all tests, so that what several of them need is built once and then reused."""
    return RunContext(root=tmp_path_factory.mktemp("root"), run_id="20250101T000000Z-abcdef")


@pytest.fixture
def foundry(context: RunContext, make_documents: Any, heldout_artifact: Any) -> Foundry:
    return Foundry(context, make_documents, heldout_artifact)


@pytest.fixture
def english(foundry: Foundry) -> Run:
    return foundry.run("en", ENGLISH, VocabConfig(vocab_size=340))


@pytest.fixture
def russian(foundry: Foundry, english: Run) -> Run:
    """The English model with Russian pieces, whose rows alone have read Russian."""
    vocab = VocabConfig(base=english[1].path / "tokenizer.model", extend={"ru": 40})
    return foundry.run("ru", RUSSIAN, vocab, base_model=english[2].path, trainable="new_rows")


def values(evaluated: Artifact) -> dict[tuple[str, str], float]:
    return {(row["task"], row["metric"]): row["value"] for row in evaluated.table("scores").to_pylist()}


def gate(base: Path | str, sources: tuple[str, ...] = ("en", "ru"), max_rise: float = 0.02) -> dict[str, Any]:
    return {"gate": {"sources": sources, "max_rise": max_rise, "base_model": base}}


def test_the_base_is_scored_as_its_own_vocabulary_would_score_it(foundry: Foundry, english: Run, russian: Run) -> None:
    alone = values(foundry.evaluate(english))
    evaluated = foundry.evaluate(russian, **gate(english[2].path))
    both = values(evaluated)
    for source in ("en", "ru"):
        task = f"heldout/{source}"
        assert both[task, "base_bits_per_byte"] == pytest.approx(alone[task, "bits_per_byte"], rel=1e-6)
        rise = both[task, "bits_per_byte"] / alone[task, "bits_per_byte"] - 1
        assert both[task, "rise_from_base"] == pytest.approx(rise, rel=1e-4)
        assert evaluated.report.facts["gate"]["rises"][source] == both[task, "rise_from_base"]
    assert both["heldout/en", "rise_from_base"] > 0, "new pieces take probability from old ones"
    assert both["heldout/ru", "rise_from_base"] < 0


def test_a_base_that_could_read_longer_texts_is_scored_in_windows_of_the_run(foundry: Foundry, english: Run) -> None:
    kept = {"base_model": english[2].path, "schedule": {"peak_lr": 1e-9, "end_lr": 1e-9}}
    vocab = VocabConfig(base=english[1].path / "tokenizer.model")
    shorter = foundry.run("en", ENGLISH, vocab, context=8, **kept)
    scores = values(foundry.evaluate(shorter, **gate(english[2].path, ("en",))))
    # The weights are the same to a billionth, and so is what they are asked.
    assert scores["heldout/en", "rise_from_base"] == pytest.approx(0, abs=1e-5)


def test_what_rises_too_far_stops_behind_the_scores(foundry: Foundry, english: Run, russian: Run) -> None:
    evaluated = foundry.evaluate(russian, **gate(english[2].path))
    rise = values(evaluated)["heldout/en", "rise_from_base"]
    check_gate(evaluated, GateConfig(sources=("en", "ru"), max_rise=rise))
    ungated = foundry.evaluate(russian)
    check_gate(ungated, None)
    with pytest.raises(GuardError, match="measured no rise"):
        check_gate(ungated, GateConfig(sources=("en", "ru"), max_rise=rise))
    with pytest.raises(GuardError, match=r"en \+.*en did not pass\. .* more weight"):
        check_gate(evaluated, GateConfig(sources=("en", "ru"), max_rise=rise * 0.99))
    lowered = foundry.evaluate(russian, **gate(english[2].path, max_rise=rise * 0.99))
    assert (lowered.reused, lowered.identity) == (True, evaluated.identity)
    assert describe_gate({"max_rise": 0.02, "rises": {"en": 0.013, "ru": -0.2}}) == (
        "Bits per byte relative to the base model: en +1.3%, ru -20.0%; the gate allows +2.0%: passed"
    )


def test_what_the_gate_cannot_compare_is_refused(foundry: Foundry, english: Run, russian: Run) -> None:
    with pytest.raises(InputError, match=r"began with random weights\. Set train\.base_model"):
        foundry.evaluate(english, **gate(english[2].path))
    with pytest.raises(InputError, match=r"started from weights .* holds .* Restore the model"):
        # Another setting than elsewhere, since scores that are built already are reused whatever folder is named.
        foundry.evaluate(russian, **gate(russian[2].path), sample_tokens=5)
    with pytest.raises(
        InputError, match=r"the source `zh`, which has no held-out text \(sources that have some: en, ru\)"
    ):
        foundry.evaluate(russian, **gate(english[2].path, sources=("zh",)))


def test_the_place_of_the_base_does_not_count(foundry: Foundry, english: Run, russian: Run, tmp_path: Path) -> None:
    foundry.evaluate(russian, **gate(english[2].path))
    (tmp_path / "copy").symlink_to(english[2].path)
    assert foundry.evaluate(russian, **gate(tmp_path / "copy")).reused
