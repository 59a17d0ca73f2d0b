"""Fine-tuning from a task file to a folder: every kind is learnt, bytes are reproducible, killed runs resume."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.checkpoint.weights import WEIGHTS, describe_model, load_model
from model.config.network import GPTConfig
from model.errors import InputError, IntegrityError, Numerics, RecipeError
from model.finetune import fit as training
from model.finetune.config import FinetuneConfig, Task
from model.finetune.metrics import MAIN
from model.finetune.output import FINETUNED, HEAD, format_result, read_result
from model.nn.factory import make_network
from tests.model.finetune.seeds_beside import finetune

TaskOf = Callable[..., Task]
Config = Callable[..., FinetuneConfig]


def quiet(_: str) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging"])
def test_a_bert_learns_each_kind_beyond_a_guess(
    kind: str, bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    task = task_of(kind, 400, test=task_of(kind, 60).train)
    found = finetune(bert, "parent", config(task), vocabulary, tmp_path / "out", log=quiet)
    scores, main = found["scores"], MAIN[kind]
    if kind == "tagging":
        # Each word has one label, so that a guess by word is always right too.
        assert scores["test"][kind]["accuracy"] > 0.99
    else:
        assert scores["test"][kind][main] > scores["guess"]["test"][kind][main] + 0.25


def test_a_bert_finds_an_answer_in_a_passage(bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path) -> None:
    chosen = config(task_of("span", 500), epochs=5)
    found = finetune(bert, "parent", chosen, vocabulary, tmp_path / "out", log=quiet)
    assert found["scores"]["development"]["span"]["exact"] > 0.8
    answerer = read_result(tmp_path / "out", vocabulary)
    records = [{"question": "what", "text": text} for text in ("ore slag tin lead zinc iron", "tin ore slag")]
    assert answerer.answers(0, records) == ["tin", "tin"]


def test_a_t5_learns_several_tasks_at_once(t5, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path) -> None:
    tasks = (task_of("classification", 400), task_of("regression", 400, decoding="free"), task_of("span", 400))
    chosen = config(*tasks, epochs=12, max_answer=4)
    found = finetune(t5, "parent", chosen, vocabulary, tmp_path / "out", log=quiet)
    scores = found["scores"]["development"]
    assert (
        scores["classification"]["accuracy"]
        > found["scores"]["guess"]["development"]["classification"]["accuracy"] + 0.2
    )
    assert scores["regression"]["pearson"] > 0.3
    assert scores["span"]["exact"] > 0.8
    answerer = read_result(tmp_path / "out", vocabulary)
    number = answerer.task("classification")
    texts = ["tin lead zinc", "brass lead zinc", "steel ore coal"]
    assert set(answerer.answers(number, [{"text": text} for text in texts])) <= {"yes", "no"}
    with pytest.raises(InputError, match="knows the tasks classification, regression, span, and none of them"):
        answerer.task(None)


def test_the_result_is_what_answered_in_training(
    bert, vocabulary, task_of: TaskOf, config: Config, examples_of, tmp_path: Path
) -> None:
    task = task_of("regression", 160, test=task_of("regression", 60).train)
    found = finetune(bert, "parent", config(task, epochs=2), vocabulary, tmp_path / "out", log=quiet)
    records = examples_of("regression", 60)
    answers = torch.tensor(read_result(tmp_path / "out", vocabulary).answers(0, records))
    right = torch.tensor([float(record["answer"]) for record in records])
    again = float((answers - right).square().mean().sqrt())
    assert again == pytest.approx(found["scores"]["test"]["regression"]["rmse"], rel=1e-5)
    # The network alone is a BERT like others, and can go on from here.
    assert load_model(tmp_path / "out", vocabulary.digest).config.architecture == "bert"
    assert describe_model(tmp_path / "out")[FINETUNED]["parent"] == "parent"


def every_byte(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("which", ["bert", "t5"])
def test_twice_the_same_bytes_and_other_seeds_other_ones(
    which: str, request: pytest.FixtureRequest, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    network = request.getfixturevalue(which)
    task = task_of("classification", 60)
    made = []
    for name, seeds in (("one", (1,)), ("two", (1,)), ("three", (2,))):
        torch.manual_seed(len(name))
        chosen = config(task, epochs=2, seeds=seeds, dropout=0.1)
        finetune(network, "parent", chosen, vocabulary, tmp_path / name, log=quiet)
        made.append(every_byte(tmp_path / name))
    assert made[0] == made[1]
    assert made[0][WEIGHTS] != made[2][WEIGHTS]


def test_the_model_that_it_starts_from_stays_as_it_is(
    bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in bert.state_dict().items()}
    finetune(bert, "parent", config(task_of("classification", 60), epochs=1), vocabulary, tmp_path / "o", log=quiet)
    assert all(torch.equal(tensor, before[name]) for name, tensor in bert.state_dict().items())


class KilledError(Exception):
    """In place of kill -9: nothing is cleaned up behind it."""


def test_a_killed_run_goes_on_at_the_seed_where_it_was(
    bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    chosen = config(task_of("classification", 60), epochs=2, seeds=(1, 2, 3))
    finetune(bert, "parent", chosen, vocabulary, tmp_path / "whole", log=quiet)

    def die_at_third(line: str) -> None:
        if line.startswith("seed 3, epoch 1"):
            raise KilledError

    with pytest.raises(KilledError):
        finetune(bert, "parent", chosen, vocabulary, tmp_path / "killed", log=die_at_third)
    assert every_byte(tmp_path / "killed") == {}
    lines: list[str] = []
    finetune(bert, "parent", chosen, vocabulary, tmp_path / "killed", log=lines.append)
    assert [line.partition(":")[0] for line in lines] == [
        "seed 1 was trained before",
        "seed 2 was trained before",
        "seed 3, epoch 1 of 2",
        "seed 3, epoch 2 of 2",
    ]
    assert every_byte(tmp_path / "killed") == every_byte(tmp_path / "whole")


def test_damage_is_found(bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path) -> None:
    finetune(bert, "p", config(task_of("classification", 60), epochs=1), vocabulary, tmp_path / "out", log=quiet)
    whole = bytearray((tmp_path / "out" / HEAD).read_bytes())
    whole[-1] ^= 1
    (tmp_path / "out" / HEAD).write_bytes(bytes(whole))
    with pytest.raises(IntegrityError, match="bytes changed after it was saved"):
        read_result(tmp_path / "out", vocabulary)


def test_the_best_epoch_is_kept_not_the_last(
    bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.2, 0.9, 0.5, 0.9])
    monkeypatch.setattr(training, "overall_score", lambda chosen, scores: scores["classification"]["accuracy"])
    monkeypatch.setattr(training, "score_tasks", lambda *_, **__: {"classification": {"accuracy": next(values)}})
    chosen = config(task_of("classification", 60), epochs=4)
    found = finetune(bert, "p", chosen, vocabulary, tmp_path / "out", log=quiet)
    assert found["scores"]["epoch"] == 2


def test_test_items_choose_nothing(bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path) -> None:
    plain = task_of("classification", 100)
    tested = plain.model_copy(update={"test": task_of("classification", 40).train})
    for name, task in (("plain", plain), ("tested", tested)):
        finetune(bert, "p", config(task, epochs=2, seeds=(1, 2)), vocabulary, tmp_path / name, log=quiet)
    assert (tmp_path / "plain" / WEIGHTS).read_bytes() == (tmp_path / "tested" / WEIGHTS).read_bytes()


def test_what_is_cut_is_reported(bert, t5, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path) -> None:
    task = task_of("classification", 60)
    for name, network, max_length in (("bert", bert, 8), ("t5", t5, 8)):
        found = finetune(
            network, "p", config(task, epochs=1, max_length=max_length), vocabulary, tmp_path / name, log=quiet
        )
        # Six of eight words beside [CLS] and [SEP]; of ten words of a T5's text seven beside the end.
        lost = {"bert": "(25.0%)", "t5": "(30.0%)"}[name]
        assert lost in found["not_read"]["learnt"]["classification"]
        assert "(100.0%)" in found["not_read"]["learnt"]["classification"]


def test_what_an_architecture_cannot_learn_is_refused_before_it_begins(
    bert, t5, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    one, two = task_of("classification", 60), task_of("regression", 60)
    writing = one.model_copy(update={"kind": "text"})
    gpt = make_network(GPTConfig(vocab_size=vocabulary.vocab_size, context=16, layers=1, heads=2, width=16))
    few = make_network(bert.config.model_copy(update={"vocab_size": 20})).initialise(1)
    cases = [
        (bert, (one, two), RecipeError, "a BERT, which learns a single task"),
        (bert, (writing,), RecipeError, "a BERT writes no text"),
        (t5, (task_of("tagging", 60),), RecipeError, "only a BERT labels words"),
        (gpt, (one,), RecipeError, "the model is a GPT"),
        (few, (one,), InputError, r"and the model has 20\s+embedding rows"),
    ]
    for network, tasks, error, message in cases:
        with pytest.raises(error, match=message):
            finetune(network, "p", config(*tasks), vocabulary, tmp_path / "out", log=quiet)
    with pytest.raises(RecipeError, match="max_length 99 is more than the model's context of 24"):
        finetune(bert, "p", config(one, max_length=99), vocabulary, tmp_path / "out", log=quiet)
    with pytest.raises(Numerics, match="Lower learning_rate"):
        finetune(t5, "p", config(one, learning_rate=1e30), vocabulary, tmp_path / "out", log=quiet)
    assert every_byte(tmp_path / "out") == {}


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_t5_without_an_end_of_text_is_refused_before_it_begins(
    kind: str, t5, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    endless = copy.copy(vocabulary)
    endless.eos = -1
    with pytest.raises(InputError, match="no end-of-text token"):
        finetune(t5, "p", config(task_of(kind, 60)), endless, tmp_path / "out", log=quiet)


def test_labels_that_the_task_does_not_name_are_found_in_every_file(
    bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    plain = task_of("classification", 60)
    for changed in ({"labels": ("yes",)}, {"labels": ("no",), "development": plain.train}):
        task = plain.model_copy(update=changed)
        with pytest.raises(InputError, match="name all in `labels`"):
            finetune(bert, "p", config(task), vocabulary, tmp_path / "out", log=quiet)


def test_examples_without_words_teach_no_labels(bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path):
    task = task_of("tagging", 60)
    (tmp_path / "empty.jsonl").write_text('{"text": [], "answer": []}\n')
    empty = task.model_copy(update={"train": tmp_path / "empty.jsonl", "development": task.train})
    with pytest.raises(InputError, match=r"no example of .*empty\.jsonl can be used .* 1 without a word that fits"):
        finetune(bert, "p", config(empty, epochs=1), vocabulary, tmp_path / "out", log=quiet)


def test_tasks_whose_names_read_alike_are_refused(
    t5, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    # Both names are words that this vocabulary does not know.
    tasks = [task_of("classification", 60, name=name) for name in ("mood", "grammar")]
    with pytest.raises(InputError, match="names of the tasks mood and grammar with the same tokens"):
        finetune(t5, "p", config(*tasks), vocabulary, tmp_path / "out", log=quiet)


def test_the_rate_of_small_networks_is_higher(task_of: TaskOf, config: Config) -> None:
    chosen = config(task_of("classification", 60), learning_rate=None)
    assert training.peak_rate(chosen, 768, "bert") == pytest.approx(5e-5)
    assert training.peak_rate(chosen, 256, "bert") == pytest.approx(1.5e-4)
    assert training.peak_rate(chosen, 128, "t5") == 1e-3


def test_seeds_are_distinguished(bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path) -> None:
    task = task_of("classification", 100, test=task_of("classification", 40).train)
    found = finetune(bert, "p", config(task, epochs=1, seeds=(1, 2)), vocabulary, tmp_path / "out", log=quiet)
    line, kept = format_result(found)
    assert re.match(r"classification, test: accuracy 0\.\d{3} \(guess 0\.\d{3}\)", line)
    assert "accuracy of 2 seeds" in line
    assert kept in ("seed 1 after epoch 1 is kept", "seed 2 after epoch 1 is kept")


@pytest.mark.parametrize("tested", [True, False])
def test_a_model_that_answers_one_label_alone_is_reported(
    tested: bool, bert, vocabulary, task_of: TaskOf, config: Config, tmp_path: Path
) -> None:
    """With a rate near nothing the head answers as it was drawn, one label whatever the text."""
    test = {"test": task_of("classification", 40).train} if tested else {}
    few = config(task_of("classification", 100, **test), epochs=1, learning_rate=1e-9)
    found = finetune(bert, "p", few, vocabulary, tmp_path / "few", log=quiet)
    label, *others = found["scores"]["said"]["classification"]
    assert not others
    assert found["scores"]["said"]["classification"][label] == (40 if tested else 10)
    assert f"Every answer is {label!r}" in format_result(found)[0]
    taught = config(task_of("classification", 400, **test))
    found = finetune(bert, "p", taught, vocabulary, tmp_path / "taught", log=quiet)
    assert len(found["scores"]["said"]["classification"]) == 2
    assert "Every answer is" not in format_result(found)[0]
