"""Errors in a benchmark's file are reported with their place, before any work."""

import re
from pathlib import Path
from typing import Any

import pytest

from model.errors import InputError
from tasks.decontaminate.benchmark_readers import value_of
from tasks.decontaminate.benchmarks import read_items
from tasks.decontaminate.config import Benchmark, BenchmarkFields, DecontaminateConfig
from tasks.decontaminate.stage import benchmark_contents


def read(path: Path, text: str, **fields: Any) -> list[Any]:
    path.write_text(text, encoding="utf-8")
    return read_items((Benchmark.model_validate({"name": "quiz", "path": path, "fields": fields}),))


def test_values_in_lists_of_objects_are_lists() -> None:
    record = {"a": [{"b": 1}, {"b": 2}], "c": {"d": {"e": "x"}}, "f.g": "flat"}
    assert value_of(record, "a.b") == [1, 2]
    assert value_of(record, "c.d.e") == "x"
    assert value_of(record, "f.g") == "flat"
    assert value_of(record, "c.x.y") is None


@pytest.mark.parametrize(
    ("name", "text", "fields", "message"),
    [
        ("a.tsv", "id\tanswer\nonly\n", {}, "row 2 .* has 1 columns, and there are 2 names"),
        ("a.json", "[1]", {"each": "data"}, "is a list, not an object"),
        ("a.json", "{", {"each": "data"}, "is not JSON"),
        ("a.jsonl", '\n{"id": 1,}', {}, r"line 2 of .* is not JSON \(.* at character 10 of the line\)"),
        pytest.param("a.jsonl", "[" * 200_000, {}, "is not JSON", id="nested"),
        pytest.param("a.jsonl", f'{{"id": 1{"0" * 5000}}}', {}, "line 1 of .* is not JSON", id="digits"),
        ("a.tsv", "id\tquestion\tanswer\n1\ta\rb\tc\n", {}, "is no table near line 2"),
        ("a.csv", 'id,question,answer\n1,"two\nlines",x\n2,?,\n2,?,\n', {}, "in row 3 and in 4 of"),
        ("a.json", '{"data": [{"id": "1", "question": "?"}]}', {"each": "data"}, "entry 1 of .* has no field `answer`"),
        (
            "a.jsonl",
            '{"id": "1", "question": "?", "answer": "A", "choices": {"text": ["a", "b"], "label": ["A", "B"]}}',
            {},
            "an object under `choices`, where a list of choices is needed",
        ),
        ("a.jsonl", '{"id": "1", "question": "?", "answer": "a", "choices": "abc"}', {}, "a text under `choices`"),
        ("a.jsonl", '{"id": "1", "question": "?", "answer": "a", "choices": 4}', {}, "a number under"),
        pytest.param(
            "a.jsonl",
            f'{{"id": "1", "question": "?", "answer": "{"1" * 5000}", "choices": ["a", "b"]}}',
            {},
            "none of its 2 choices",
            id="long answer",
        ),
        ("a.json", '{"data": []}', {"each": "data"}, "holds no items"),
        ("a.jsonl", '{"id": "1", "question": "?", "answer": []}', {}, "an empty list of answers"),
        ("a.jsonl", '{"id": "1", "question": "?", "answer": "2"}', {"labels": {"1": "yes"}}, "answers '2'"),
        ("a.jsonl", '{"id": "1", "question": "?", "answer": "2"}', {"template": "{who}"}, "has no field `who`"),
        (
            "a.jsonl",
            '{"id": "1", "question": "?", "answer": "2"}',
            {"template": "{id}", "words": {"id": {"2": "two"}}},
            "has no words",
        ),
        ("a.jsonl", '{"id": "1", "question": "?", "answer": "2"}', {"layout": "record"}, "no `passage` and `qas`"),
        (
            "a.jsonl",
            '{"passage": {"text": "A", "entities": []}, "qas": [{"id": 1, "query": "@placeholder"}]}',
            {"layout": "record", "each": "qas"},
            "no answer; files of tests",
        ),
        (
            "a.jsonl",
            '{"passage": {"text": "A"}, "qas": [{"id": 1, "query": "@placeholder", "answers": [{"text": "A"}]}]}',
            {"layout": "record", "each": "qas"},
            "not as those of ReCoRD are .KeyError: 'entities'",
        ),
        (
            "a.jsonl",
            '{"id": "1", "question": "?", "choices": ["a", "b"], "answer": "\u00df"}',
            {},
            "none of its 2 choices",
        ),
    ],
)
def test_a_file_that_does_not_fit_says_why(
    tmp_path: Path, name: str, text: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / name, text, **fields)


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(InputError, match="is not UTF-8"):
        read_items((Benchmark(name="quiz", path=tmp_path / "a.jsonl"),))


def test_a_file_that_does_not_exist_is_named_from_the_root_of_the_file_system() -> None:
    place = re.escape(str(Path("none.jsonl").absolute()))
    with pytest.raises(InputError, match=rf"benchmark `quiz`: {place} cannot be read \(No such file or directory\)"):
        read_items((Benchmark(name="quiz", path=Path("none.jsonl")),))


def test_parallel_files_of_different_lengths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n")
    benchmark = Benchmark(name="quiz", path=tmp_path / "a.en", answers_path=tmp_path / "a.de")
    with pytest.raises(InputError, match=r"has 2 lines and .* 1"):
        read_items((benchmark,))


def test_line_ends_of_windows_are_no_part_of_parallel_lines(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\r\ntwo\r\n")
    (tmp_path / "a.de").write_bytes(b"eins\r\nzwei\r\n")
    fields = BenchmarkFields(context=("line",), id="")
    benchmark = Benchmark(name="quiz", path=tmp_path / "a.en", answers_path=tmp_path / "a.de", fields=fields)
    assert [(item.context, item.answer) for item in read_items((benchmark,))] == [("one", "eins"), ("two", "zwei")]


def test_empty_lines_of_a_table_are_no_rows(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", "question,answer\none?,1\n\ntwo?,2\n\n", id="")
    assert [(item.item_id, item.context) for item in found] == [("quiz/2", "one?"), ("quiz/4", "two?")]


def test_items_without_a_name_are_numbered(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", "question\tanswer\none?\t1\ntwo?\t2\n", id="")
    assert [(item.item_id, item.context, item.answers) for item in found] == [
        ("quiz/2", "one?", ("1",)),
        ("quiz/3", "two?", ("2",)),
    ]


def test_the_answers_of_a_benchmark_and_a_benchmark_of_their_name_are_two_inputs(tmp_path: Path) -> None:
    for name in ("lines", "answers", "others"):
        (tmp_path / name).write_text(name)
    benchmarks = (
        Benchmark(name="flores", path=tmp_path / "lines", answers_path=tmp_path / "answers"),
        Benchmark(name="flores/answers", path=tmp_path / "others"),
    )
    found = {of.name: of.path.name for of in benchmark_contents(tmp_path, DecontaminateConfig(benchmarks=benchmarks))}
    assert found == {"benchmark/flores": "lines", "answers/flores": "answers", "benchmark/flores/answers": "others"}
