"""Fine-tuning on a CUDA device: scores and answers are the processor's, and the same bytes come twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.finetune.config import FinetuneConfig, Task
from model.finetune.output import read_result
from tests.model.finetune.seeds_beside import finetune

TaskOf = Callable[..., Task]
Config = Callable[..., FinetuneConfig]

TEXTS = ["tin lead zinc", "ore coal slag", "brass tin iron"]

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(params=["bert", "t5"])
def network(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def tasks(network: Any, task_of: TaskOf) -> tuple[Task, ...]:
    """A task for each of its heads; a T5 writes several."""
    kinds = ("classification", "span") if network.config.architecture == "t5" else ("classification",)
    return tuple(task_of(kind, 60) for kind in kinds)


def scored(found: dict[str, Any]) -> dict[str, float]:
    scores = found["scores"]["development"]
    return {f"{task} {name}": value for task, named in scores.items() for name, value in named.items()}


def test_scores_and_answers_are_the_processors(
    network: Any, vocabulary, tasks: tuple[Task, ...], config: Config, tmp_path: Path
) -> None:
    scores, answers = [], []
    for device in ("cpu", "cuda"):
        out, chosen = tmp_path / device, config(*tasks, epochs=2, device=device)
        found = finetune(network, "parent", chosen, vocabulary, out, log=print)
        scores.append(scored(found))
        answers.append(read_result(out, vocabulary).answers(0, [{"text": text} for text in TEXTS]))
    assert scores[1] == pytest.approx(scores[0], rel=1e-3)
    assert answers[1] == answers[0]


@pytest.mark.parametrize("kind", ["regression", "tagging", "span"])
def test_every_head_of_a_bert_scores_as_on_the_processor(
    kind: str, bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    scores = [
        scored(finetune(bert, "parent", config(task_of(kind, 60), epochs=1, device=device), vocabulary, out, log=print))
        for device in ("cpu", "cuda")
        for out in (tmp_path / device,)
    ]
    assert scores[1] == pytest.approx(scores[0], rel=1e-3)


def test_twice_the_same_bytes_in_bfloat16(
    network: Any, vocabulary, tasks: tuple[Task, ...], config: Config, tmp_path: Path
) -> None:
    made = []
    for name in ("one", "two"):
        chosen, out = config(tasks[0], epochs=1, dropout=0.1), tmp_path / name
        trained_on = {"device": "cuda", "dtype": "bfloat16"}
        finetune(network, "parent", chosen, vocabulary, out, log=print, trained_on=trained_on)
        made.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    assert made[0] == made[1]
