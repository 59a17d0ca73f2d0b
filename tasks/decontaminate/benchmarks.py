"""Benchmarks in one form: every record of every file becomes one row of ITEMS, or the stage does not begin.

A field map says which keys of a record make up an item's context, choices and answer. A benchmark has its own map, that
of its `adapter`, that of its name, or GENERIC. The maps are for files with one JSON object an item and the keys `id`,
`lang`, `match_text`; benchmarks differ in how an item is composed.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from model.errors import InputError, RecipeError, json_type
from model.file_content import Content
from tasks.artifacts.tables.schema import ITEMS
from tasks.common.text import none_of_first
from tasks.decontaminate.benchmark_readers import NeedsWholeFile, Record, as_text, counted_unit, read_records, value_of
from tasks.decontaminate.config import Benchmark, BenchmarkFields

CHECKED_RECORDS = 64
CHECKED_BYTES = 16 * 1024**2
_KEY = re.compile(r"\{([^{}]+)\}")

GENERIC = BenchmarkFields()
"""A passage, question or prompt, where present; choices, or a free answer."""

_QUESTIONS = """arc_challenge arc_easy bigbench_conceptual_combinations bigbench_logical_deduction
    bigbench_misconceptions bigbench_strategy_qa bigbench_understanding_fables commonsense_qa copa gsm8k hellaswag mmlu
    ntrex piqa svamp truthfulqa xcopa"""

ADAPTERS: dict[str, BenchmarkFields] = {
    "generic": GENERIC,
    **dict.fromkeys(_QUESTIONS.split(), BenchmarkFields(context=("question",))),
    **dict.fromkeys(("boolq", "cmrc2018", "drcd", "xquad"), BenchmarkFields(context=("passage", "question"))),
    **dict.fromkeys(("humaneval", "lambada"), BenchmarkFields(context=("prompt",))),
    # Only sentences to choose from.
    "blimp": BenchmarkFields(context=()),
    # A premise, and whether its cause or its effect is the question.
    "parus": BenchmarkFields(context=("question", "relation")),
    # Partial scoring: one ending after several beginnings.
    "winograd_wsc": BenchmarkFields(context=(), choices="context_options", continuation="continuation"),
}

CONTEXT, CHOICE = "context", "choice"

NO_CONTEXT = ", to [] for items of choices alone"


@dataclass(frozen=True, slots=True)
class Part:
    """A text of an item, and whether it is of the context or a choice (or a free answer)."""

    text: str
    role: str


@dataclass(frozen=True, slots=True)
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
    """Each context field by itself: a question may leak without its passage, and a passage without its question."""
    answers: tuple[str, ...] = ()
    """Every free text that is right; empty where there are choices."""
    ending: str = ""
    """The text that ends every choice; empty where none does."""

    @property
    def searched(self) -> tuple[Part, ...]:
        """Return the parts to search for, each text once: context, choices, answers.

        `match_text` is a part of the context where it is not made of these. An item of choices alone has them for
        context.
        """
        words = self.match_text.split()
        own = words not in ("\n".join(self.parts).split(), *(choice.split() for choice in self.choices))
        context = (*self.parts, *((self.match_text,) if own else ()))
        role = CHOICE if any(text.strip() for text in context) else CONTEXT
        roles = dict.fromkeys(context, CONTEXT)
        for text in (*self.choices, *self.answers):
            roles.setdefault(text, role)
        return tuple(Part(text, role) for text, role in roles.items())


def read_items(
    benchmarks: tuple[Benchmark, ...], contents: Mapping[Path, Content] = MappingProxyType({})
) -> list[Item]:
    """Read all items in order of the benchmarks and of their files; `contents` are the files' contents as digested.

    Raises InputError for a file that is missing, unreadable, changed or empty, and for a record without a field it
    needs.
    """
    return [item for benchmark in benchmarks for item in _read_benchmark(benchmark, contents)]


def check_first_items(benchmark: Benchmark) -> None:
    """Check the first 64 records and 16 MiB of a benchmark for what `read_items` would raise.

    Raises RecipeError where its field map fits none of them, InputError where the file itself is malformed; returns
    where so little of the file cannot be read by itself.
    """
    fields = _fields_of(benchmark)
    try:
        records = list(itertools.islice(read_records(benchmark, fields, CHECKED_BYTES), CHECKED_RECORDS))
    except NeedsWholeFile:
        return
    failures: list[InputError] = []
    for number, record in records:
        try:
            _to_item(benchmark, fields, number, record)
        except InputError as error:
            failures.append(error)
    if failures and len(failures) == len(records):
        raise RecipeError(f"{none_of_first(len(records), 'item')} fits: {failures[0]}") from failures[0]
    if failures:
        raise failures[0]
    requested = benchmark.fields.model_fields_set if benchmark.fields is not None else set[str]()
    # Items of choices alone are scored without a question, so a context under another key would be lost in silence.
    for name in sorted((requested & {"choices", "continuation", "lang", "match_text"}) | {"context"}):
        value = getattr(fields, name)
        keys = (value,) if isinstance(value, str) else value
        if records and any(keys) and all(value_of(record, key) is None for _, record in records for key in keys):
            raise RecipeError(
                f"benchmark `{benchmark.name}`: {none_of_first(len(records), 'record')} of {benchmark.path} has"
                f" {' or '.join(f'`{key}`' for key in keys)}, which `fields.{name}` names (the keys of the first:"
                f" {', '.join(sorted(records[0][1]))}). Set `fields.{name}`{NO_CONTEXT if name == 'context' else ''}."
            )


def items_table(items: list[Item]) -> pa.Table:
    """Return the items in the ITEMS schema."""
    columns = {name: [getattr(item, name) for item in items] for name in ITEMS.names}
    return pa.table(columns, schema=ITEMS)


def _fields_of(benchmark: Benchmark) -> BenchmarkFields:
    """Return the field map of a benchmark: its own, its adapter's, its namesake's, or the generic one.

    Raises RecipeError for an adapter that does not exist.
    """
    if benchmark.adapter is not None and benchmark.adapter not in ADAPTERS:
        raise RecipeError(
            f"benchmark `{benchmark.name}`: there is no adapter `{benchmark.adapter}`. Choose one of"
            f" {', '.join(sorted(ADAPTERS))}, or set in `fields` which keys hold what."
        )
    if benchmark.fields is not None:
        return benchmark.fields
    return ADAPTERS.get(benchmark.adapter or benchmark.name, GENERIC)


def _read_benchmark(benchmark: Benchmark, contents: Mapping[Path, Content]) -> list[Item]:
    fields = _fields_of(benchmark)
    items: list[Item] = []
    seen: dict[str, int] = {}
    for number, record in read_records(benchmark, fields, contents=contents):
        item = _to_item(benchmark, fields, number, record)
        if item.item_id in seen:
            raise InputError(
                f"benchmark `{benchmark.name}`: the item `{item.item_id}` is in {counted_unit(benchmark, fields)}"
                f" {seen[item.item_id]} and in {number} of {benchmark.path}. Each item needs a unique name: set"
                f" `fields.id` to the key that holds it."
            )
        seen[item.item_id] = number
        items.append(item)
    if not items:
        raise InputError(
            f"benchmark `{benchmark.name}`: {benchmark.path} holds no items. A model cannot be checked against an empty"
            f" benchmark; correct its path or remove the benchmark from the recipe."
        )
    return items


def _to_item(benchmark: Benchmark, fields: BenchmarkFields, number: int, record: Record) -> Item:
    where = f"benchmark `{benchmark.name}`: {counted_unit(benchmark, fields)} {number} of {benchmark.path}"
    choices = tuple(dict.fromkeys(fields.labels.values())) or _choices(where, fields, record)
    parts = tuple(as_text(value_of(record, key)) for key in fields.context if value_of(record, key) is not None)
    matched = "\n".join(parts)
    context = _filled(where, fields, record) if fields.template else matched
    value = _needed(where, record, fields.answer, "answer")
    if fields.labels:
        value = _labelled(where, fields, value)
    elif value == [] and fields.no_answer:
        value = [fields.no_answer]
    answer = _answer(where, value, choices, _choice_labels(fields, record))
    right = choices[int(answer)] if choices and not fields.labels else ""
    match_text = as_text(value_of(record, fields.match_text) or matched or right)
    if not context and not choices:
        raise InputError(
            f"{where} has none of the context fields {', '.join(fields.context)} (its keys:"
            f" {', '.join(sorted(record))}). Set `fields.context`."
        )
    lang = value_of(record, fields.lang)
    return Item(
        benchmark.name,
        _item_id(where, fields, record) if fields.id not in ("", ("",)) else f"{benchmark.name}/{number}",
        None if lang is None else as_text(lang),
        context,
        choices,
        answer,
        match_text,
        parts,
        answers=() if choices else _answers(where, value),
        ending=_ending(fields, record) or "",
    )


def _item_id(where: str, fields: BenchmarkFields, record: Record) -> str:
    keys = (fields.id,) if isinstance(fields.id, str) else fields.id
    return "/".join(as_text(_needed(where, record, key, "id")) for key in keys)


def _filled(where: str, fields: BenchmarkFields, record: Record) -> str:
    """Return the template with the record's texts filled in."""

    def text(match: re.Match[str]) -> str:
        key = match[1]
        value = as_text(_needed(where, record, key, "template"))
        if key not in fields.words:
            return value
        if value not in fields.words[key]:
            raise InputError(
                f"{where} has {value!r} under `{key}`, and `fields.words` has no words for it (it has some for"
                f" {', '.join(fields.words[key])})."
            )
        return fields.words[key][value]

    return _KEY.sub(text, fields.template)


def _labelled(where: str, fields: BenchmarkFields, value: Any) -> str:
    """Return the words for an answer."""
    answer = as_text(value)
    if answer not in fields.labels:
        raise InputError(
            f"{where} answers {answer!r}, which is none of {', '.join(fields.labels)}. Set `fields.labels`; files of"
            f" tests without answers cannot be scored."
        )
    return fields.labels[answer]


def _answers(where: str, value: Any) -> tuple[str, ...]:
    """Return every free text that is right, each once."""
    found = tuple(dict.fromkeys(as_text(one) for one in value)) if isinstance(value, list) else (as_text(value),)
    if not found:
        raise InputError(
            f"{where} has an empty list of answers. Set `fields.no_answer` to what is right where a question has no"
            f" answer."
        )
    return found


def _answer(where: str, answer: Any, choices: tuple[str, ...], labels: Sequence[str]) -> str:
    if not choices:
        return as_text(answer)
    if len(labels) == len(choices) and as_text(answer) in labels:
        index = labels.index(as_text(answer))
    elif isinstance(answer, bool) or not isinstance(answer, int | str):
        index = -1
    elif isinstance(answer, int):
        index = answer
    elif answer in choices:
        index = choices.index(answer)
    elif answer.isascii() and answer.isdigit() and len(answer) < 10:  # `int` refuses thousands of digits
        index = int(answer)
    else:
        index = ascii_uppercase.find(answer.upper()) if len(answer) == 1 else -1
    if not 0 <= index < len(choices):
        raise InputError(
            f"{where} answers {answer!r}, which is none of its {len(choices)} choices (an index from 0, a choice's"
            f" text, or its letter)."
        )
    return str(index)


def _choice_labels(fields: BenchmarkFields, record: Record) -> list[str]:
    """Return the labels that a record gives its choices beside their texts: ARC has A to D, and 1 to 4 elsewhere."""
    if not isinstance(fields.choices, str) or not fields.choices.endswith(".text"):
        return []
    labels = value_of(record, f"{fields.choices.removesuffix('.text')}.label")
    return [as_text(label) for label in labels] if isinstance(labels, list) else []


def _needed(where: str, record: Record, key: str, field: str) -> Any:
    value = value_of(record, key)
    if value is None:
        raise InputError(
            f"{where} has no field `{key}` (its keys: {', '.join(sorted(record))}). Set `fields.{field}` of the"
            f" benchmark to the key that holds it."
        )
    return value


def _choices(where: str, fields: BenchmarkFields, record: Record) -> tuple[str, ...]:
    if isinstance(fields.choices, str):
        choices = value_of(record, fields.choices) or []
        if not isinstance(choices, list):
            raise InputError(
                f"{where} has {json_type(choices)} under `{fields.choices}`, where a list of choices is needed."
                f" Set `fields.choices` to the key of the list, such as `{fields.choices}.text`, or to the keys of one"
                f" choice each."
            )
    else:
        choices = [value for key in fields.choices if (value := value_of(record, key)) is not None]
    end = _ending(fields, record)
    return tuple(as_text(choice) if end is None else f"{as_text(choice)} {end}" for choice in choices)


def _ending(fields: BenchmarkFields, record: Record) -> str | None:
    end = value_of(record, fields.continuation) if fields.continuation else None
    return None if end is None else as_text(end)
