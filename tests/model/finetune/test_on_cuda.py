"""Fine-tuning on a CUDA device: every kind is learnt, twice the same bytes, and a result is read where it will be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from model.finetune.config import FinetuneConfig, Task
from model.finetune.metrics import MAIN
from model.finetune.output import read_result
from model.finetune.trainer import finetune

pytestmark = pytest.mark.usefixtures("cuda")
TaskOf = Callable[..., Task]
Config = Callable[..., FinetuneConfig]
BFLOAT16 = {"device": "cuda", "dtype": "bfloat16"}


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging"])
def test_a_bert_learns_each_kind_beyond_a_guess(
    kind: str, bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    task = task_of(kind, 400, test=task_of(kind, 60).train)
    out = tmp_path / "out"
    found = finetune(bert, "parent", config(task), vocabulary, out, log=print, trained_on=BFLOAT16)
    scores, main = found["scores"], MAIN[kind]
    if kind == "tagging":
        assert scores["test"][kind]["accuracy"] > 0.99
    else:
        assert scores["test"][kind][main] > scores["guess"]["test"][kind][main] + 0.25


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_t5_learns_several_tasks_at_once(
    dtype: str, t5, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    tasks = (task_of("classification", 400), task_of("span", 400))
    chosen = config(*tasks, epochs=12, max_answer=4)
    trained_on = {"device": "cuda", "dtype": dtype}
    found = finetune(t5, "parent", chosen, vocabulary, tmp_path / "out", log=print, trained_on=trained_on)
    scores = found["scores"]["development"]
    guess = found["scores"]["guess"]["development"]["classification"]["accuracy"]
    assert scores["classification"]["accuracy"] > guess + 0.2
    assert scores["span"]["exact"] > 0.8
    answerer = read_result(tmp_path / "out", vocabulary)
    answers = answerer.answers(answerer.task("classification"), [{"text": "tin lead zinc"}, {"text": "ore coal"}])
    assert set(answers) <= {"yes", "no"}


@pytest.mark.parametrize("which", ["bert", "t5"])
def test_twice_the_same_bytes(
    which: str, request: pytest.FixtureRequest, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    network, task = request.getfixturevalue(which), task_of("classification", 60)
    made = []
    for name in ("one", "two"):
        chosen, out = config(task, epochs=2, dropout=0.1), tmp_path / name
        finetune(network, "parent", chosen, vocabulary, out, log=print, trained_on=BFLOAT16)
        made.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    assert made[0] == made[1]
