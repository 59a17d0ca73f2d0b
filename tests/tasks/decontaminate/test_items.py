"""Benchmark files become ITEMS, or a clear error before any work."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from model.errors import InputError, RecipeError
from tasks.artifacts.tables.schema import ITEMS
from tasks.decontaminate.benchmarks import Item, check_first_items, items_table, read_items
from tasks.decontaminate.config import Benchmark, BenchmarkFields, DecontaminateConfig


def written(folder: Path, records: list[dict[str, Any]], name: str = "quiz.jsonl") -> Benchmark:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return Benchmark(name="quiz", path=path)


def only(benchmark: Benchmark) -> Item:
    (item,) = read_items((benchmark,))
    return item


def test_a_multiple_choice_record_with_every_field(tmp_path: Path) -> None:
    record = {"id": "q/1", "question": "2+2?", "choices": ["3", "4"], "answer": 1, "match_text": "two", "lang": "en"}
    item = only(written(tmp_path, [record], "quiz.jsonl.gz"))
    assert item == Item("quiz", "q/1", "en", "2+2?", ("3", "4"), "1", "two", ("2+2?",))
    assert [(part.text, part.role) for part in item.searched] == [
        ("2+2?", "context"),
        ("two", "context"),
        ("3", "choice"),
        ("4", "choice"),
    ]
    assert items_table([item]).schema == ITEMS
    assert items_table([item]).to_pylist()[0]["choices"] == ["3", "4"]


def test_passage_and_question_make_the_context_and_the_match_text(tmp_path: Path) -> None:
    item = only(written(tmp_path, [{"id": 7, "passage": "P.", "question": "Q?", "choices": None, "answer": "A"}]))
    assert (item.item_id, item.context, item.match_text) == ("7", "P.\nQ?", "P.\nQ?")
    assert (item.choices, item.answer, item.lang) == ((), "A", None)
    assert [(part.text, part.role) for part in item.searched] == [
        ("P.", "context"),
        ("Q?", "context"),
        ("A", "choice"),
    ]


def test_an_item_of_ones_own_may_have_a_context(tmp_path: Path) -> None:
    record = {"id": "1", "context": "Once upon a time", "choices": ["there was", "there is"], "answer": 0}
    item = only(written(tmp_path, [record]))
    assert (item.context, item.match_text) == ("Once upon a time", "Once upon a time")
    both = only(written(tmp_path, [{**record, "question": "What then?"}]))
    assert both.context == "Once upon a time\nWhat then?"


@pytest.mark.parametrize(("answer", "index"), [(1, "1"), ("no", "1"), ("B", "1"), ("b", "1"), ("0", "0")])
def test_an_answer_by_index_text_or_letter_is_an_index(tmp_path: Path, answer: Any, index: str) -> None:
    record = {"id": "1", "question": "?", "choices": ["yes", "no"], "answer": answer}
    assert only(written(tmp_path, [record])).answer == index


@pytest.mark.parametrize(("labels", "answer"), [(["A", "B", "C"], "B"), (["1", "2", "3"], "2"), ([1, 2, 3], 2)])
def test_an_answer_is_the_choice_with_that_label_where_a_record_has_labels(
    tmp_path: Path, labels: list[Any], answer: Any
) -> None:
    """As published in ARC, where most items have letters and some have numbers from 1."""
    texts = ["A lever", "A pulley", "A wheel"]
    nested = {"id": "1", "question": "?", "choices": {"text": texts, "label": labels}, "answerKey": answer}
    listed = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    fields = BenchmarkFields.model_validate({"choices": "choices.text", "answer": "answerKey"})
    for record in (nested, {**nested, "choices": listed}):
        item = only(written(tmp_path, [record]).model_copy(update={"fields": fields}))
        assert item.choices[int(item.answer)] == "A pulley"


def test_fields_of_other_names_are_mapped(tmp_path: Path) -> None:
    benchmark = written(tmp_path, [{"uid": "a", "story": "Once.", "gold": {"ru": "да"}}])
    fields = BenchmarkFields.model_validate({"id": "uid", "context": "story", "answer": "gold"})
    item = only(benchmark.model_copy(update={"fields": fields}))
    assert (item.context, item.answer) == ("Once.", '{"ru": "да"}')


def test_keys_within_objects_and_a_choice_for_each_key(tmp_path: Path) -> None:
    record = {"id": "1", "asked": {"stem": "Which?"}, "sol1": "this", "sol2": "that", "label": 1}
    fields = BenchmarkFields.model_validate(
        {"context": "asked.stem", "choices": ["sol1", "sol2", "sol3"], "answer": "label"}
    )
    item = only(written(tmp_path, [record]).model_copy(update={"fields": fields}))
    assert (item.context, item.choices, item.answer) == ("Which?", ("this", "that"), "1")


def test_the_adapter_of_a_name_and_a_named_one(tmp_path: Path) -> None:
    schema = {"id": "1", "context_options": ["A cat,", "A dog,"], "continuation": "it purred.", "answer": 0}
    benchmark = written(tmp_path, [{**schema, "choices": ["A cat,", "A dog,"]}])
    expected = ("A cat, it purred.", "A dog, it purred.")
    assert only(benchmark.model_copy(update={"name": "winograd_wsc"})).choices == expected
    assert only(benchmark.model_copy(update={"adapter": "winograd_wsc"})).choices == expected
    assert only(benchmark).choices == ("A cat,", "A dog,")
    with pytest.raises(RecipeError, match=r"no adapter `winograd`.*generic.*winograd_wsc"):
        only(benchmark.model_copy(update={"adapter": "winograd"}))


def test_an_adapter_refuses_records_of_another_benchmark(tmp_path: Path) -> None:
    benchmark = written(tmp_path, [{"id": "1", "question": "?", "answer": "x"}])
    with pytest.raises(InputError, match="none of the context fields prompt"):
        only(benchmark.model_copy(update={"adapter": "lambada"}))


def test_a_record_of_choices_alone_is_matched_by_the_right_one(tmp_path: Path) -> None:
    item = only(written(tmp_path, [{"id": "1", "question": None, "choices": ["bad", "good"], "answer": 1}]))
    assert (item.context, item.match_text) == ("", "good")
    assert [(part.text, part.role) for part in item.searched] == [("bad", "context"), ("good", "context")]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "holds no items"),
        ([{"question": "?", "answer": "x"}], "no field `id`"),
        ([{"id": "1", "question": "?"}], "no field `answer`"),
        ([{"id": "1", "text": "?", "answer": "x"}], "none of the context fields"),
        ([{"id": "1", "question": "?", "choices": ["a", "b"], "answer": 2}], "none of its 2 choices"),
        ([{"id": "1", "question": "?", "choices": ["a", "b"], "answer": True}], "none of its 2 choices"),
        ([{"id": "1", "question": "?", "answer": "x"}] * 2, "in line 1 and in 2"),
    ],
)
def test_a_benchmark_that_cannot_be_used_says_why(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_items((written(tmp_path, records),))


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_items((Benchmark(name="quiz", path=tmp_path / "gone.jsonl"),))
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="cannot be read"):
        read_items((Benchmark(name="quiz", path=tmp_path / "broken.jsonl.gz"),))
    (tmp_path / "broken.jsonl").write_text('{"id": "1"\n')
    with pytest.raises(InputError, match="line 1"):
        read_items((Benchmark(name="quiz", path=tmp_path / "broken.jsonl"),))
    (tmp_path / "list.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match=r"is a list, not .*Write an object a line: `jq"):
        read_items((Benchmark(name="quiz", path=tmp_path / "list.jsonl"),))


def test_two_benchmarks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="quiz"):
        DecontaminateConfig(benchmarks=(Benchmark(name="quiz", path=Path("a")), Benchmark(name="quiz", path=Path("b"))))
    with pytest.raises(ValueError, match="scores of held-out text under such names; rename heldout/books"):
        DecontaminateConfig(benchmarks=(Benchmark(name="heldout/books", path=Path("a")),))


def test_a_context_under_a_key_that_no_map_names_is_refused_and_items_of_choices_alone_say_so(tmp_path: Path) -> None:
    records = [{"id": n, "ctx": f"{n} and 2 are", "choices": ["3", "4"], "answer": 1} for n in range(3)]
    benchmark = written(tmp_path, records)
    with pytest.raises(
        RecipeError, match=r"`context` or `passage` .* \(the keys .* ctx, id\)\. Set `fields\.context`, to"
    ):
        check_first_items(benchmark)
    for fields in (BenchmarkFields(context=("ctx",)), BenchmarkFields(context=())):
        check_first_items(benchmark.model_copy(update={"fields": fields}))
    check_first_items(written(tmp_path, [*records, {**records[0], "id": 4, "question": "Which?"}]))
