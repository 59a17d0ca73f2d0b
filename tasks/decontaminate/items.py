"""Benchmarks in one form: every record of every file becomes one row of ITEMS, or the stage does not begin."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from model.errors import InputError, RecipeError
from tasks.decontaminate.adapters import ADAPTERS, fields_of
from tasks.decontaminate.config import Benchmark, BenchmarkFields
from tasks.schema import ITEMS


@dataclass(frozen=True)
class Item:
    """One benchmark item; `answer` is the index of the right choice as text, or free text where there are none."""

    benchmark: str
    item_id: str
    lang: str | None
    context: str
    choices: tuple[str, ...]
    answer: str
    match_text: str
    parts: tuple[str, ...] = ()
    """Each context field by itself: a question is leaked without its passage, and a passage without its question."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that stand for the item, `match_text` first, each once."""
        return tuple(dict.fromkeys((self.match_text, *self.parts)))


def read_items(benchmarks: tuple[Benchmark, ...]) -> list[Item]:
    """All items in order of the benchmarks and of their files.

    Raises InputError for a file that is missing, unreadable or empty, and for a record without a field it needs.
    """
    return [item for benchmark in benchmarks for item in _read_benchmark(benchmark)]


def items_table(items: list[Item]) -> pa.Table:
    """The items in the ITEMS schema."""
    rows = [{name: getattr(item, name) for name in ITEMS.names} for item in items]
    return pa.Table.from_pylist(rows, schema=ITEMS)


def _read_benchmark(benchmark: Benchmark) -> list[Item]:
    if benchmark.adapter is not None and benchmark.adapter not in ADAPTERS:
        raise RecipeError(
            f"benchmark `{benchmark.name}`: there is no adapter `{benchmark.adapter}`. Take one of"
            f" {', '.join(sorted(ADAPTERS))}, or say in `fields` which keys hold what."
        )
    fields = fields_of(benchmark)
    items: list[Item] = []
    seen: dict[str, int] = {}
    for number, record in _records(benchmark):
        item = _to_item(benchmark, fields, number, record)
        if item.item_id in seen:
            raise InputError(
                f"benchmark `{benchmark.name}`: the item `{item.item_id}` stands in lines {seen[item.item_id]} and"
                f" {number} of {benchmark.path}. Each item needs a name of its own: set `fields.id` to the right key."
            )
        seen[item.item_id] = number
        items.append(item)
    if not items:
        raise InputError(
            f"benchmark `{benchmark.name}`: {benchmark.path} holds no items. A model cannot be checked against an empty"
            f" benchmark; point to the right file or take the benchmark out of the recipe."
        )
    return items


def _records(benchmark: Benchmark) -> Iterator[tuple[int, dict[str, Any]]]:
    path = Path(benchmark.path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (json.JSONDecodeError, UnicodeDecodeError) as error:
                    raise InputError(
                        f"benchmark `{benchmark.name}`: line {number} of {path} is not JSON ({error}). Benchmarks are"
                        f" files with one JSON object a line (.jsonl or .jsonl.gz)."
                    ) from error
                if not isinstance(record, dict):
                    raise InputError(
                        f"benchmark `{benchmark.name}`: line {number} of {path} is a {type(record).__name__}, not an"
                        f" object with fields."
                    )
                yield number, record
    except (OSError, EOFError) as error:
        raise InputError(
            f"benchmark `{benchmark.name}`: {path} cannot be read ({error}). Check the path in the recipe."
        ) from error


def _to_item(benchmark: Benchmark, fields: BenchmarkFields, number: int, record: dict[str, Any]) -> Item:
    choices = _choices(fields, record)
    parts = tuple(_text(_value(record, key)) for key in fields.context if _value(record, key) is not None)
    context = "\n".join(parts)
    item_id = _text(_needed(benchmark, number, record, fields.id, "id"))
    answer = _answer(benchmark, number, _needed(benchmark, number, record, fields.answer, "answer"), choices)
    match_text = _text(_value(record, fields.match_text) or context or (choices[int(answer)] if choices else ""))
    if not context and not choices:
        raise InputError(
            f"benchmark `{benchmark.name}`: line {number} of {benchmark.path} has none of the context fields"
            f" {', '.join(fields.context)} (its keys: {', '.join(sorted(record))}). Set `fields.context`."
        )
    lang = _value(record, fields.lang)
    return Item(
        benchmark.name, item_id, None if lang is None else _text(lang), context, choices, answer, match_text, parts
    )


def _needed(benchmark: Benchmark, number: int, record: dict[str, Any], key: str, field: str) -> Any:
    value = _value(record, key)
    if value is None:
        raise InputError(
            f"benchmark `{benchmark.name}`: line {number} of {benchmark.path} has no field `{key}` (its keys:"
            f" {', '.join(sorted(record))}). Set `fields.{field}` of the benchmark to the key that holds it."
        )
    return value


def _answer(benchmark: Benchmark, number: int, answer: Any, choices: tuple[str, ...]) -> str:
    if not choices:
        return _text(answer)
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        index = -1
    elif isinstance(answer, int):
        index = answer
    elif answer in choices:
        index = choices.index(answer)
    elif answer.isascii() and answer.isdigit():
        index = int(answer)
    else:
        index = ord(answer.upper()) - ord("A") if len(answer) == 1 else -1
    if not 0 <= index < len(choices):
        raise InputError(
            f"benchmark `{benchmark.name}`: line {number} of {benchmark.path} answers {answer!r}, which is none of its"
            f" {len(choices)} choices (an index from 0, a choice's text, or its letter)."
        )
    return str(index)


def _choices(fields: BenchmarkFields, record: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(fields.choices, str):
        choices = _value(record, fields.choices) or ()
    else:
        choices = [value for key in fields.choices if (value := _value(record, key)) is not None]
    end = _value(record, fields.continuation) if fields.continuation else None
    return tuple(_text(choice) if end is None else f"{_text(choice)} {_text(end)}" for choice in choices)


def _value(record: dict[str, Any], key: str) -> Any:
    """What stands under `key`, a path of names with dots between; None where nothing does."""
    value: Any = record.get(key)
    if value is None and "." in key:
        value = record
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text.encode("utf-8", errors="replace").decode("utf-8")
