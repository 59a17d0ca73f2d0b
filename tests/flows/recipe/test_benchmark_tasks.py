"""Tasks that ship: each reads a file in the layout of its benchmark, written here, and has a form to be scored in."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.benchmark_tasks import read_task, shipped_tasks, split_benchmarks
from flows.recipe.load import load_recipe
from model.errors import RecipeError
from tasks.decontaminate.benchmarks import Item, read_items
from tasks.decontaminate.config import Benchmark
from tasks.evaluate.config import Scoring


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def table(*rows: str) -> str:
    return "".join("\t".join(row.split("|")) + "\n" for row in rows)


def of_commas(*rows: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


PASSAGES = {
    "version": "2.0",
    "data": [
        {
            "title": "Iron",
            "paragraphs": [
                {
                    "context": "Iron melts at 1538 degrees.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "When does it melt?",
                            "answers": [{"text": "1538 degrees", "answer_start": 14}, {"text": "1538"}],
                        },
                        {"id": "q2", "question": "Who found it?", "is_impossible": True, "answers": []},
                    ],
                }
            ],
        }
    ],
}
MULTIRC = {
    "idx": 3,
    "passage": {
        "text": "The furnace is hot.",
        "questions": [
            {
                "idx": 5,
                "question": "How is it?",
                "answers": [{"idx": 8, "text": "Hot", "label": 1}, {"idx": 9, "text": "Cold", "label": 0}],
            }
        ],
    },
}
RECORD = {
    "idx": 1,
    "passage": {
        "text": "Ann met Bob in Rome.",
        "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 15, "end": 18}],
    },
    "qas": [{"idx": 2, "query": "It was @placeholder who came.", "answers": [{"text": "Bob"}, {"text": "Ann"}]}],
}
YES_NO = ("no", "yes")

LAYOUTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "glue_cola": (
        "dev.tsv",
        table("gj04|1||They sang.", "gj04|0|*|Sang they."),
        {"context": "They sang.\nQuestion: Is this sentence grammatical?\nAnswer:", "choices": YES_NO, "right": "yes"},
    ),
    "glue_sst2": (
        "dev.tsv",
        table("sentence|label", 'a "fine" film|1'),
        {"context": 'Review: a "fine" film\nSentiment:', "choices": ("negative", "positive"), "right": "positive"},
    ),
    "glue_mrpc": (
        "dev.tsv",
        "\ufeff" + table("Quality|#1 ID|#2 ID|#1 String|#2 String", "0|17|18|It rains.|It snows."),
        {"item_id": "17/18", "context": "Sentence 1: It rains.\nSentence 2: It snows.", "right": "no"},
    ),
    "glue_qqp": (
        "dev.tsv",
        table("id|qid1|qid2|question1|question2|is_duplicate", "4|1|2|Why?|What for?|1"),
        {"item_id": "4", "context": "Question 1: Why?\nQuestion 2: What for?", "right": "yes"},
    ),
    "glue_mnli": (
        "dev_matched.tsv",
        table(
            "index|promptID|pairID|sentence1|sentence2|label1|gold_label", "0|1|7n|It rains.|It is dry.|x|contradiction"
        ),
        {"item_id": "7n", "context": "It rains.\nQuestion: It is dry. True, False or Neither?", "right": "False"},
    ),
    "glue_qnli": (
        "dev.tsv",
        table("index|question|sentence|label", "9|Where?|It is here.|entailment"),
        {"item_id": "9", "context": "It is here.\nQuestion: Does this answer the question: Where?", "right": "yes"},
    ),
    "glue_rte": (
        "dev.tsv",
        table("index|sentence1|sentence2|label", "2|It rains.|It is wet.|entailment"),
        {"context": "It rains.\nQuestion: It is wet. True or False?", "choices": ("True", "False"), "right": "True"},
    ),
    "glue_wnli": (
        "dev.tsv",
        table("index|sentence1|sentence2|label", "2|He ran.|Jo ran.|0"),
        {"context": "He ran.\nQuestion: Jo ran. True or False?", "right": "False"},
    ),
    "superglue_boolq": (
        "val.jsonl",
        lines({"idx": 0, "passage": "Iron rusts.", "question": "does iron rust", "label": True}),
        {"context": "Iron rusts.\nQuestion: does iron rust?\nAnswer:", "choices": YES_NO, "right": "yes"},
    ),
    "superglue_cb": (
        "val.jsonl",
        lines({"idx": 0, "premise": "It may rain.", "hypothesis": "It rains.", "label": "neutral"}),
        {"context": "It may rain.\nQuestion: It rains. True, False or Neither?\nAnswer:", "right": "Neither"},
    ),
    "superglue_copa": (
        "val.jsonl",
        lines(
            {
                "idx": 4,
                "premise": "It fell.",
                "choice1": "It broke.",
                "choice2": "It sang.",
                "question": "effect",
                "label": 0,
            }
        ),
        {"context": "It fell. As a result,", "choices": ("It broke.", "It sang."), "right": "It broke."},
    ),
    "superglue_multirc": (
        "val.jsonl",
        lines(MULTIRC),
        {
            "item_id": "3/5/8",
            "context": "The furnace is hot.\nQuestion: How is it?\nAnswer: Hot",
            "right": "yes",
            "count": 2,
        },
    ),
    "superglue_record": (
        "val.jsonl",
        lines(RECORD),
        {
            "item_id": "1/2",
            "context": "Ann met Bob in Rome.",
            "choices": ("It was Bob who came.", "It was Rome who came."),
            "right": "It was Bob who came.",
        },
    ),
    "superglue_rte": (
        "val.jsonl",
        lines({"idx": 4, "premise": "It rains.", "hypothesis": "It is wet.", "label": "not_entailment"}),
        {"context": "It rains.\nQuestion: It is wet. True or False?", "right": "False"},
    ),
    "superglue_wic": (
        "val.jsonl",
        lines({"idx": 4, "word": "iron", "sentence1": "Iron it.", "sentence2": "Cast iron.", "label": False}),
        {"context": 'Iron it.\nCast iron.\nQuestion: Is the word "iron" used', "right": "no"},
    ),
    "superglue_wsc": (
        "val.jsonl",
        lines(
            {"idx": 4, "text": "Jo ran; she won.", "target": {"span1_text": "Jo", "span2_text": "she"}, "label": True}
        ),
        {"context": 'Jo ran; she won.\nQuestion: Does "she" mean "Jo" here?', "right": "yes"},
    ),
    "squad_v2": (
        "dev-v2.0.json",
        json.dumps(PASSAGES),
        {"item_id": "q1", "context": "Iron melts at 1538 degrees.\nQuestion: When does it melt?", "count": 2},
    ),
    "cnn_dailymail": (
        "test.csv",
        of_commas(
            ["id", "article", "highlights"], ["a1", 'It said, "rain".\nThen sun.', "It rained .\nThe sun came ."]
        ),
        {
            "item_id": "a1",
            "context": 'It said, "rain".\nThen sun.\nTL;DR:',
            "answers": ("It rained .\nThe sun came .",),
        },
    ),
}


def items(folder: Path, task: str, name: str, text: str, answers: str | None = None) -> list[Item]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    raw: dict[str, Any] = {"name": task, "path": path, "fields": read_task(task).get("fields")}
    if answers is not None:
        raw["answers_path"] = folder / "answers.txt"
        raw["answers_path"].write_text(answers, encoding="utf-8")
    return read_items((Benchmark.model_validate(raw),))


@pytest.mark.parametrize("task", sorted(LAYOUTS))
def test_a_file_in_the_layout_of_its_benchmark_is_read(tmp_path: Path, task: str) -> None:
    name, text, expected = LAYOUTS[task]
    found = items(tmp_path, task, name, text)
    first = found[0]
    assert first.context.startswith(expected["context"])
    assert first.item_id == expected.get("item_id", first.item_id)
    assert first.choices == expected.get("choices", first.choices)
    assert first.answers == expected.get("answers", first.answers)
    if "right" in expected:
        assert first.choices[int(first.answer)] == expected["right"]
    assert len(found) == expected.get("count", len(found))
    assert "Question:" not in first.match_text
    assert "Answer:" not in first.match_text


def test_parallel_files_are_a_translation(tmp_path: Path) -> None:
    (one, two) = items(tmp_path, "wmt_en_de", "news.en", "It rains.\nIt snows.\n", "Es regnet.\nEs schneit.\n")
    assert (one.context, one.answers, one.match_text) == ("English: It rains.\nGerman:", ("Es regnet.",), "It rains.")
    assert two.item_id == "wmt_en_de/2"


def test_questions_without_an_answer_are_unanswerable(tmp_path: Path) -> None:
    one, two = items(tmp_path, "squad_v2", "dev.json", json.dumps(PASSAGES))
    assert (one.answers, two.answers) == (("1538 degrees", "1538"), ("unanswerable",))
    assert [part.text for part in one.searched] == [
        "Iron melts at 1538 degrees.",
        "When does it melt?",
        "1538 degrees",
        "1538",
    ]


def test_a_record_of_another_language_belongs_to_another_task(tmp_path: Path) -> None:
    columns = {"question": "它碎了。", "choices": ["它掉了。", "它唱了。"], "answer": 0}
    text = lines(
        {"id": "a", "lang": "it", "relation": "cause", **columns},
        {"id": "b", "lang": "zh", "relation": "cause", **columns},
    )
    (item,) = items(tmp_path, "xcopa_zh", "xcopa.jsonl", text)
    assert (item.item_id, item.context, item.lang) == ("b", "它碎了。因为", "zh")


def test_a_schema_keeps_its_ending_apart(tmp_path: Path) -> None:
    schema = {"id": "1", "context_options": ["A cat,", "A dog,"], "continuation": "it purred.", "answer": 0}
    (item,) = items(tmp_path, "winograd_wsc", "wsc.jsonl", lines(schema))
    assert (item.choices, item.ending) == (("A cat, it purred.", "A dog, it purred."), "it purred.")


@pytest.mark.parametrize("task", shipped_tasks())
def test_every_task_has_a_form_and_its_primary(task: str) -> None:
    raw = read_task(task)
    assert set(raw) <= {"fields", "scoring"}
    scoring = Scoring.model_validate(raw.get("scoring", {}))
    assert scoring.form is not None or task == "generic"


RECIPE = """
name = "mine"
budget_tokens = 1000
[[sources]]
name = "text"
paths = ["{recipe}/*.txt"]
weight = 1.0
[[benchmarks]]
task = "blimp"
path = "{recipe}/blimp.jsonl.gz"
[[benchmarks]]
task = "squad"
name = "quiz"
path = "{recipe}/quiz.json"
shots = [0]
primary = "exact"
[[decontaminate.benchmarks]]
name = "other"
path = "{recipe}/other.jsonl"
"""


def test_a_recipe_names_tasks_and_changes_them(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "mine.toml", tmp_path)
    other, blimp, quiz = recipe.decontaminate.benchmarks
    assert (other.name, blimp.name, blimp.path) == ("other", "blimp", tmp_path / "blimp.jsonl.gz")
    assert quiz.fields is not None
    assert quiz.fields.each == "data.paragraphs.qas"
    scoring = recipe.evaluate.benchmarks
    assert (scoring["blimp"].form, scoring["blimp"].shots) == ("pairs", (0,))
    assert (scoring["quiz"].form, scoring["quiz"].primary, scoring["quiz"].shots) == ("extraction", "exact", (0,))


@pytest.mark.parametrize("key", ['task = "blimp"', "shots = [0]"])
def test_scoring_in_the_table_of_what_is_only_looked_for_is_led_to_the_other(key: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"{RECIPE}{key}\n")
    with pytest.raises(RecipeError, match=rf"{key.split()[0]}: unknown key; .* is a table `\[\[benchmarks\]\]`"):
        load_recipe(tmp_path / "mine.toml", tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"task": "blim", "path": "x"}, "Did you mean `blimp`"),
        ({"path": "x"}, "neither `task` nor `name`"),
    ],
)
def test_what_no_task_is_is_reported(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        split_benchmarks({"benchmarks": [entry]}, "mine.toml")


def test_a_wrong_key_of_a_benchmark_is_reported_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE.replace("shots = [0]", "shot = [0]"))
    with pytest.raises(RecipeError, match=r"evaluate\.benchmarks\.quiz\.shot: unknown key"):
        load_recipe(tmp_path / "mine.toml", tmp_path)


def test_scoring_of_a_benchmark_that_is_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE + '[evaluate.benchmarks.gone]\nform = "cloze"\n')
    with pytest.raises(RecipeError, match=r"evaluate\.benchmarks\.gone .* \(it reads other, blimp, quiz\)"):
        load_recipe(tmp_path / "mine.toml", tmp_path)


def test_a_gzipped_table_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv.gz"
    path.write_bytes(gzip.compress(table("sentence|label", "fine|1").encode()))
    benchmark = Benchmark.model_validate({"name": "s", "path": path, "fields": read_task("glue_sst2")["fields"]})
    assert read_items((benchmark,))[0].answer == "1"
