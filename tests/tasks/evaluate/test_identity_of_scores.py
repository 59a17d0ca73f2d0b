"""What a score is a score of: another model, vocabulary, benchmark, leak or held-out document makes another one."""

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import build_evaluate

ITEM = {
    "benchmark": "cloze",
    "item_id": "i0",
    "lang": "en",
    "context": "Two and two are",
    "choices": ["four.", "five."],
    "answer": "0",
    "match_text": "Two and two are four.",
}
LEAK = {
    "benchmark": "cloze",
    "item_id": "i0",
    "state": "clean",
    "form": "ngram",
    "matched": 0,
    "total": 1,
    "remains": 0,
}
HELDOUT = [("books", "It was the best of times.")]


def stand_in(stage: str, content: str) -> Artifact:
    """All that an identity knows of a parent."""
    return Artifact(Path("nowhere"), stage, "0" * 32, content)


@pytest.fixture
def identity_with(context: RunContext, heldout_artifact):
    """The key of SCORES where some of its inputs are others."""

    def key(
        model: str = "m1",
        vocab: str = "v1",
        heldout=HELDOUT,
        item=ITEM,
        leak=LEAK,
        config: EvaluateConfig | None = None,
    ) -> str:
        parents = (stand_in("train", model), stand_in("vocab", vocab), stand_in("chunk", "s1"))
        unseen = heldout_artifact(heldout, [item], [leak])
        with pytest.raises(WouldBuild) as found:
            build_evaluate(replace(context, dry=True), *parents, unseen, config or EvaluateConfig())
        return found.value.identity.key

    return key


def test_the_same_inputs_give_the_same_identity(identity_with) -> None:
    assert identity_with() == identity_with()


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "m2"},
        {"vocab": "v2"},
        {"heldout": [("books", "It was the worst of times.")]},
        {"item": {**ITEM, "answer": "1"}},
        {"leak": {**LEAK, "state": "leaked"}},
        {"config": EvaluateConfig(shots=(0, 5))},
    ],
    ids=["model", "tokenizer", "held-out text", "benchmark", "leak", "shots"],
)
def test_another_input_gives_another_identity(identity_with, changed) -> None:
    assert identity_with(**changed) != identity_with()


def test_the_number_of_threads_counts_since_it_decides_bits(identity_with) -> None:
    assert identity_with(config=EvaluateConfig(threads=1)) != identity_with(config=EvaluateConfig(threads=2))
