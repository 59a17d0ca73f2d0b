"""Thirty requests: the model is as if the documents had never been there, and costs what the plan says."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from flows.runs.lineage import open_run, run_artifacts
from model.checkpoint.metrics import final_steps
from model.checkpoint.run_folder import lasting_steps
from tasks.artifacts.artifact import Artifact
from tests.prove_forget.conftest import LICENCE
from tests.prove_forget.removals import LASTING, Cost, first_reads, forget_and_compare

pytestmark = [pytest.mark.prove_forget, pytest.mark.usefixtures("shared_server")]

Artifacts = dict[str, Artifact]


def named(*words: str) -> Callable[[Artifacts], list[str]]:
    """The same words for every run."""
    return lambda artifacts: list(words)


def drawn(count: int, seed: int, *words: str) -> Callable[[Artifacts], list[str]]:
    """Ids of documents that training reads, drawn by a seed."""

    def draw(artifacts: Artifacts) -> list[str]:
        ids = sorted(first_reads(artifacts))
        return [*np.random.Generator(np.random.Philox(seed)).choice(ids, count, replace=False).tolist(), *words]

    return draw


def held_out(artifacts: Artifacts) -> list[str]:
    return [artifacts["decontaminate"].table("heldout").column("doc_id")[0].as_py().hex()]


def behind_a_rollback(artifacts: Artifacts) -> list[str]:
    """The first document of those that are read only behind the data that a rollback of the guard skips."""
    events = artifacts["train"].table("events").to_pylist()
    end = max(position for event in events if event["kind"] == "rollback" for position in event["positions"])
    return [min((position, one) for one, position in first_reads(artifacts).items() if position > end)[1]]


def gathered(artifacts: Artifacts) -> list[str]:
    """A document, a file, a cluster and a held-out document, each another request's, in one replay."""
    return [*drawn(1, 12)(artifacts), *held_out(artifacts), "cluster-4", "--file", "note-20.txt"]


@dataclass(frozen=True)
class Asked:
    """One request."""

    name: str
    base: str
    words: Callable[[Artifacts], list[str]]


REQUESTS = [
    *(Asked(f"a drawn document, seed {seed}", "gpt", drawn(1, seed)) for seed in range(10)),
    Asked("10 drawn documents", "gpt", drawn(10, 10)),
    Asked("100 drawn documents", "gpt", drawn(100, 11)),
    Asked("a file", "gpt", named("--file", "note-20.txt")),
    Asked("a source", "gpt", named("--source", "notes")),
    Asked("a licence", "gpt", named("--licence", LICENCE)),
    Asked("a near-duplicate", "gpt", named("near-twin-longer")),
    Asked("a near-duplicate, another promoted", "gpt", named("near-twin-longer", "--promote")),
    Asked("a cluster of five near-duplicates", "gpt", named("cluster-4")),
    Asked("a held-out document", "gpt", held_out),
    Asked("refilled slots", "gpt", drawn(1, 5, "--refill")),
    Asked("four requests gathered", "gpt", gathered),
    Asked("a document behind a rollback", "guarded", behind_a_rollback),
    Asked("the document that caused the rollback", "guarded", named("strange")),
    Asked("a source that may leave", "may leave", named("--source", "notes")),
    Asked("a drawn document, BERT", "bert", drawn(1, 20)),
    Asked("10 drawn documents, BERT", "bert", drawn(10, 21)),
    Asked("a drawn document, T5", "t5", drawn(1, 22)),
    Asked("a cluster, T5", "t5", named("cluster-4")),
    Asked("a drawn document, ZeRO-1", "zero-1", drawn(1, 23)),
    Asked("four requests gathered, ZeRO-1", "zero-1", gathered),
]


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: asked.name)
def test_the_model_is_as_if_the_documents_had_never_been_there(
    base: Callable[[str], Path],
    copy_root: Callable[..., Path],
    tmp_path: Path,
    record_cost: Callable[[str, Cost], None],
    asked: Asked,
) -> None:
    root = copy_root(base(asked.base))
    artifacts = run_artifacts(open_run(root, None))
    words, first = asked.words(artifacts), first_reads(artifacts)
    # A tombstone changes no other position.
    is_drawn = asked.name.startswith("a drawn document, seed")
    foreseen = checkpoint_before(artifacts, first[words[0]]) if is_drawn else None
    cost = forget_and_compare(root, words, tmp_path)
    record_cost(asked.name, cost)
    assert cost.documents >= {"a cluster of five near-duplicates": 5, "10 drawn documents": 10}.get(asked.name, 1)
    if asked.base == "may leave":
        assert cost.share <= 0.12 + 1 / (LASTING + 1)
    assert foreseen in (None, cost.step)


@pytest.mark.parametrize(("checkpoints", "share"), [(LASTING, 0.56), (2 * LASTING, 0.55)])
def test_one_document_of_one_pass_costs_half_a_training_on_average(
    base: Callable[[str], Path], checkpoints: int, share: float
) -> None:
    """Over all documents, from where each is first read; the ten that are drawn above are trained from there."""
    artifacts = run_artifacts(open_run(base("gpt"), None))
    assert set(artifacts["chunk"].table("order").column("epoch").to_pylist()) == {0}
    tokens = artifacts["train"].table("metrics").column("tokens").to_pylist()
    steps = [checkpoint_before(artifacts, position, checkpoints) for position in first_reads(artifacts).values()]
    assert 1 - np.mean([tokens[step - 1] if step else 0 for step in steps]) / tokens[-1] <= share


def checkpoint_before(artifacts: Artifacts, position: int, checkpoints: int = LASTING) -> int:
    """Return the steps before the last of so many lasting checkpoints that read nothing from this position on."""
    ends = final_steps(artifacts["train"].table("steps")).column("pos_end").to_pylist()
    return max([0, *(step for step in lasting_steps(checkpoints, len(ends)) if ends[step - 1] <= position)])
