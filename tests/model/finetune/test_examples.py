"""Reading examples: errors name the line, and whole groups are held out."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from model.errors import InputError, RecipeError
from model.finetune.config import Task, read_task_file
from model.finetune.data import Example, check_labels, example_of, label_set, read_examples


def task(kind: str, path: Path, **more: object) -> Task:
    fields = ("question", "text") if kind == "span" else ("text",)
    values = {"name": "t", "kind": kind, "train": path, "fields": fields, "answer": "answer", **more}
    return Task.model_validate(values)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: object) -> Path:
        path = tmp_path / "examples.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


@pytest.mark.parametrize(
    ("kind", "record", "problem"),
    [
        ("classification", {"texts": "tin", "answer": "yes"}, "line 2 has no text, only texts, answer"),
        ("classification", {"text": "tin"}, "has no answer"),
        ("classification", {"text": 3, "answer": "yes"}, "text must be text, and is 3"),
        ("classification", {"text": "tin", "answer": None}, "must be a label"),
        ("regression", {"text": "tin", "answer": "3.0"}, "must be a finite number"),
        ("regression", '{"text": "tin", "answer": NaN}', "must be a finite number"),
        ("regression", {"text": "tin", "answer": 10**400}, "must be a finite number"),
        ("classification", {"text": "tin \ud83d", "answer": "yes"}, "line 2 holds half of a surrogate pair"),
        ("tagging", {"text": "tin ore", "answer": ["N", "N"]}, "must be a list of words"),
        ("tagging", {"text": ["tin", "ore"], "answer": ["N"]}, "1 labels for 2 words"),
        ("span", {"question": "what", "text": "tin", "answer": 3}, "must be text or a list"),
        ("text", ["tin"], "no object with fields"),
        ("text", '{"text": "tin", ', "line 2 is no JSON: .* at character 17 of the line"),
        ("text", '{"text": ' + "1" * 5000 + "}", "line 2 is no JSON: Exceeds the limit"),
        ("text", "[" * 200_000, "line 2 is no JSON: maximum recursion depth"),
    ],
)
def test_a_wrong_line_is_named(written: Callable[..., Path], kind: str, record: object, problem: str) -> None:
    good = {"text": ["ore"] if kind == "tagging" else "ore", "question": "what"}
    good["answer"] = {"regression": 1, "tagging": ["N"]}.get(kind, "yes")  # pyright: ignore[reportArgumentType]
    path = written(good, record)
    with pytest.raises(InputError, match=problem):
        read_examples(path, task(kind, path))


def test_all_wrong_lines_are_named_at_once_and_of_many_the_first(written: Callable[..., Path]) -> None:
    good = {"text": "ore", "answer": "yes"}
    path = written(good, {"text": "tin"}, good, '{"text": ', ["tin"])
    with pytest.raises(InputError) as caught:
        read_examples(path, task("text", path))
    found = str(caught.value).split("\n")
    assert len(found) == 3
    assert "line 2 has no answer" in found[0]
    assert "line 4 is no JSON" in found[1]
    assert "line 5 is no object" in found[2]
    path = written(good, *[{"text": "tin"}] * 23)
    with pytest.raises(InputError, match=r"line 21 has no answer.*\nand 3 lines more$"):
        read_examples(path, task("text", path))


def test_answers_of_each_kind(written: Callable[..., Path], tmp_path: Path) -> None:
    path = written({"text": "tin", "answer": True}, {"text": "ore", "answer": 2}, "")
    assert [example.answer for example in read_examples(path, task("classification", path))] == ["true", "2"]
    assert [
        example.answer for example in read_examples(written({"text": "x", "answer": 2}), task("regression", path))
    ] == [2.0]
    none, one = {"question": "what", "text": "tin", "answer": []}, {"question": "what", "text": "tin", "answer": "tin"}
    spans = read_examples(written(none, one), task("span", path))
    assert [example.answer for example in spans] == [(), ("tin",)]
    packed = tmp_path / "examples.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_examples(packed, task("span", packed)) == spans
    whole = packed.read_bytes()
    # Cut off, and with bytes that are no block.
    for damaged in (whole[:-12], whole[:10] + b"\xff" * 8 + whole[18:]):
        packed.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            read_examples(packed, task("span", packed))


@pytest.mark.parametrize("start", ["7", 7.0, True, None, -1])
def test_a_start_that_is_no_place_is_named_by_line(written: Callable[..., Path], start: object) -> None:
    good = {"question": "what", "text": "copper tin", "answer": "tin", "at": 7}
    path = written(good, {**good, "at": start})
    with pytest.raises(InputError, match=r"line 2: at must be the number of the character .* and is "):
        read_examples(path, task("span", path, start="at"))
    none = {"question": "what", "text": "copper", "answer": [], "at": None}
    read = read_examples(written(good, none), task("span", path, start="at"))
    assert [example.start for example in read] == [7, None]


def test_a_group_that_is_missing_is_named_by_line(written: Callable[..., Path]) -> None:
    good = {"text": "tin", "answer": "yes", "book": "one"}
    path = written(good, {"text": "ore", "answer": "no"})
    with pytest.raises(InputError, match=r"line 2 has no book, only text, answer"):
        read_examples(path, task("classification", path, group="book"))
    for wrong in (None, True, ["one"], 1.5):
        path = written(good, {**good, "book": wrong})
        with pytest.raises(InputError, match=r"line 2: book must be text or a whole number"):
            read_examples(path, task("classification", path, group="book"))
    path = written(good, {**good, "book": 2})
    assert [one.group for one in read_examples(path, task("classification", path, group="book"))] == ["one", "2"]
    # Nothing is held out of what is asked later, so that no group is needed there.
    assert example_of({"text": "tin"}, task("classification", path, group="book"), "it", answered=False).group == ""


def test_a_missing_or_empty_file_is_named(tmp_path: Path, written: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_examples(tmp_path / "none.jsonl", task("text", tmp_path))
    with pytest.raises(InputError, match="holds no examples"):
        read_examples(written(), task("text", tmp_path))


def test_labels_are_those_shown_or_named() -> None:
    path = Path("train.jsonl")
    examples = [Example(("a",), "yes"), Example(("b",), "no")]
    assert label_set(task("classification", path), examples) == ("no", "yes")
    assert label_set(task("classification", path, labels=("yes", "no", "maybe")), examples) == ("yes", "no", "maybe")
    assert label_set(task("tagging", path), [Example(("a", "b"), ("N", "V"))]) == ("N", "V")
    with pytest.raises(InputError, match="two or more are needed to learn"):
        label_set(task("classification", path), examples[:1])
    with pytest.raises(InputError, match=r"the examples to learn from in .* have the labels \['yes'\]; two or more"):
        label_set(task("classification", path, labels=("yes", "no")), examples[:1], examples)
    with pytest.raises(InputError, match=r"of train\.jsonl has the label 'no', .* It reads 'b'"):
        check_labels(task("classification", path), ("yes",), examples, path)


def test_a_task_file_is_read_with_paths_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(
        'epochs = 2\n[[tasks]]\nname = "sst"\nkind = "classification"\ntrain = "train.jsonl"\n'
        'fields = ["sentence"]\nanswer = "label"\n'
    )
    config = read_task_file(path)
    assert config.epochs == 2
    assert config.tasks[0].train == tmp_path / "train.jsonl"
    assert config.tasks[0].test is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("epochs = ", "no TOML"),
        ("epoch = 3\n", "epoch: unknown key; did you mean epochs"),
        ('[[tasks]]\nname = "s"\nkind = "span"\ntrain = "x"\nfields = ["text"]\nanswer = "a"\n', "must be two"),
        (
            '[[tasks]]\nname = "s"\nkind = "text"\ntrain = "x"\nfields = ["t"]\nanswer = "a"\nstart = "b"\n',
            "is for spans",
        ),
        (
            '[[tasks]]\nname = "s"\nkind = "classification"\ntrain = "x"\nfields = ["t"]\nanswer = "a"\n'
            'labels = ["yes", "no", "yes"]\n',
            r"labels = \['yes', 'no', 'yes'\] must differ",
        ),
        ('[[tasks]]\nname = "s p"\nkind = "text"\ntrain = "x"\nfields = ["text"]\nanswer = "a"\n', "tasks.0.name"),
        ('seeds = [1, 1]\n[[tasks]]\nname = "s"\nkind = "text"\ntrain = "x"\nfields = ["t"]\nanswer = "a"\n', "differ"),
    ],
)
def test_a_wrong_task_file_names_the_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "task.toml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=problem):
        read_task_file(path)
    with pytest.raises(InputError, match="no task file"):
        read_task_file(tmp_path / "other.toml")
