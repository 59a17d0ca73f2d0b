"""The records of a benchmark's file: JSON lines, a JSON document, a table, or parallel lines of text."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from model.digests import open_file
from model.errors import InputError, json_problem, json_type
from model.file_content import Content, open_content
from tasks.decontaminate.config import Benchmark, BenchmarkFields

Record = dict[str, Any]
PLACEHOLDER = "@placeholder"
TABLES = (".tsv", ".csv")

MAX_FIELD_CHARS = 1 << 27
"""Of one cell of a table; Python's own limit is 131,072, which long articles exceed."""

MAX_UNPACKED_BYTES = 1 << 30
"""Of a benchmark's file: all its items are in memory at once."""


class NeedsWholeFile(Exception):
    """Raised where only the beginning of a file may be read, and its format must be read as a whole."""


def read_records(
    benchmark: Benchmark,
    fields: BenchmarkFields,
    max_bytes: int | None = None,
    contents: Mapping[Path, Content] = MappingProxyType({}),
) -> Iterator[tuple[int, Record]]:
    """Yield (number from 1, record) of each item; `counted_unit` names what the numbers count.

    `max_bytes` ends the reading at the last whole line within so many bytes (unpacked). Raises InputError for a file
    that is not in the format that its name says, or does not have the digest in `contents`; NeedsWholeFile where
    `max_bytes` cuts a format that must be read as a whole.
    """
    lines = _LineReader(benchmark, max_bytes, contents)
    names = fields.each.split(".") if fields.each else []
    entries = 0
    for number, whole in _whole_records(benchmark, fields, lines):
        for record in _nested_entries(whole, names):
            entries += 1
            item_number = entries if names else number
            if fields.layout == "record":
                where = f"benchmark `{benchmark.name}`: {counted_unit(benchmark, fields)} {item_number}"
                record = _fill_in_entities(f"{where} of {benchmark.path}", record)
            if all(as_text(value_of(record, key)) == wanted for key, wanted in fields.only.items()):
                yield item_number, record


def counted_unit(benchmark: Benchmark, fields: BenchmarkFields) -> str:
    """Return what the numbers of a benchmark's items count: lines, rows of a table (which may be of several lines), or
    entries of `fields.each`."""
    if fields.each:
        return "entry"
    return "row" if benchmark.answers_path is None and _suffix(benchmark) in TABLES else "line"


def _suffix(benchmark: Benchmark) -> str:
    path = benchmark.path
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def value_of(record: Record, key: str) -> Any:
    """Return the value under `key`, a path of names with dots between; None where there is none.

    Of a list on the path, the values of all entries are returned.
    """
    value: Any = record.get(key)
    if value is None and "." in key:
        value = record
        for name in key.split("."):
            if isinstance(value, list):
                value = [entry.get(name) for entry in value if isinstance(entry, dict)]
            else:
                value = value.get(name) if isinstance(value, dict) else None
    return value


def _whole_records(benchmark: Benchmark, fields: BenchmarkFields, lines: "_LineReader") -> Iterator[tuple[int, Record]]:
    suffix = _suffix(benchmark)
    if benchmark.answers_path is not None:
        yield from _read_parallel_lines(benchmark, benchmark.answers_path, lines)
    elif suffix == ".json" and fields.each:
        text = "".join(lines.of(benchmark.path, cut=False))
        yield 1, _parse_record(benchmark, "", text)
    elif suffix in TABLES:
        yield from _read_table(benchmark, fields, lines, tab=suffix == ".tsv")
    else:
        for number, line in enumerate(lines.of(benchmark.path), start=1):
            if line.strip():
                yield number, _parse_record(benchmark, f"line {number} of ", line)


def _parse_record(benchmark: Benchmark, where: str, text: str) -> Record:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = json_problem(error) if where else error
        raise InputError(
            f"benchmark `{benchmark.name}`: {where}{benchmark.path} is not JSON ({problem}). Benchmarks are files with"
            f" one JSON object a line (.jsonl), a JSON document (.json, with `fields.each`), or tables (.tsv, .csv)."
        ) from error
    if not isinstance(record, dict):
        raise InputError(
            f"benchmark `{benchmark.name}`: {where}{benchmark.path} is {json_type(record)}, not an object with"
            f" fields. Write an object a line: `jq -c '.[]' LIST.json > ITEMS.jsonl` does so with a list of them."
        )
    return record


def _read_table(
    benchmark: Benchmark, fields: BenchmarkFields, lines: "_LineReader", *, tab: bool
) -> Iterator[tuple[int, Record]]:
    csv.field_size_limit(MAX_FIELD_CHARS)
    path = benchmark.path
    stream = lines.of(path)
    # In the tab-separated files of GLUE quotation marks are plain text.
    rows = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE) if tab else csv.reader(stream)
    try:
        names = list(fields.columns) or next(rows, [])
        for number, row in enumerate(rows, start=1 if fields.columns else 2):
            if not row:
                continue  # a line without a character, often the last
            if len(row) < len(names):
                raise InputError(
                    f"benchmark `{benchmark.name}`: row {number} of {path} has {len(row)} columns, and there are"
                    f" {len(names)} names ({', '.join(names)}). Correct the file, or name its columns in"
                    f" `fields.columns`."
                )
            yield number, dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise InputError(
            f"benchmark `{benchmark.name}`: {path} is no table near line {rows.line_num} ({error}). Correct the file."
        ) from error


def _read_parallel_lines(benchmark: Benchmark, answers: Path, lines: "_LineReader") -> Iterator[tuple[int, Record]]:
    questions, answer_lines = (list(lines.of(path)) for path in (benchmark.path, answers))
    if lines.max_bytes is None and len(questions) != len(answer_lines):
        raise InputError(
            f"benchmark `{benchmark.name}`: {benchmark.path} has {len(questions)} lines and {answers}"
            f" {len(answer_lines)}. Each line of the one belongs to the same line of the other; use files of one set."
        )
    for number, (line, answer) in enumerate(zip(questions, answer_lines, strict=False), start=1):
        yield number, {"line": line.rstrip("\r\n"), "answer": answer.rstrip("\r\n")}


@dataclass(frozen=True)
class _LineReader:
    """Reads the lines of a benchmark's files."""

    benchmark: Benchmark
    max_bytes: int | None
    contents: Mapping[Path, Content]

    def of(self, path: Path, *, cut: bool = True) -> Iterator[str]:
        """Yield the lines of a file, up to the last whole one within `max_bytes` where it may be cut."""
        limit, content = self.max_bytes, self.contents.get(path)
        name = f"benchmark `{self.benchmark.name}`: {path.absolute()}"
        try:
            with (
                open_file(path) if content is None else open_content(path, content) as stored,
                # `gzip` does not close a stream that it is given.
                gzip.open(stored) if path.suffix == ".gz" else nullcontext(stored) as unpacked,
            ):
                stream = io.BufferedReader(_SizeLimited(unpacked, name))
                if limit is not None:
                    head = stream.read(limit)
                    if len(head) == limit and stream.read(1):
                        if not cut or b"\n" not in head:
                            raise NeedsWholeFile
                        head = head[: head.rindex(b"\n") + 1]
                    stream = io.BytesIO(head)
                yield from io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
        except (OSError, EOFError, zlib.error) as error:
            problem = getattr(error, "strerror", None) or error
            raise InputError(f"{name} cannot be read ({problem}). Check the path in the recipe.") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{name} is not UTF-8 ({error}). Save it as UTF-8.") from error


class _SizeLimited(io.RawIOBase):
    """A stream that raises InputError beyond the largest size of a benchmark."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, name: str) -> None:
        self._stream, self._name, self._left = stream, name, MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        block = self._stream.read(len(buffer))
        self._left -= len(block)
        if self._left < 0:
            raise InputError(
                f"{self._name} holds more than {MAX_UNPACKED_BYTES:,} bytes (unpacked), and all items of a benchmark"
                f" are in memory at once. Keep only the items to search for, or split the file."
            )
        buffer[: len(block)] = block
        return len(block)


def _nested_entries(record: Record, names: list[str]) -> Iterable[Record]:
    """Return the entries of nested lists, each under the name of its list, in a copy of the record around it."""
    if not names:
        return [record]
    inner = record.get(names[0])
    entries = inner if isinstance(inner, list) else [inner] if isinstance(inner, dict) else []
    found: list[Record] = []
    for entry in (entry for entry in entries if isinstance(entry, dict)):
        for nested in _nested_entries(entry, names[1:]):
            # Deeper entries are lifted to the top level; the record around them is kept under the name of this list.
            deeper = {name: nested[name] for name in names[1:] if name in nested}
            found.append({**record, **deeper, names[0]: entry})
    return found


def _fill_in_entities(where: str, record: Record) -> Record:
    """Fill each entity of the passage into the placeholder of the query (ReCoRD, Zhang et al. 2018).

    Of several right entities only the first is a choice.
    """
    passage, query = record.get("passage"), record.get("qas")
    if not isinstance(passage, dict) or not isinstance(query, dict):
        raise InputError(
            f"{where} has no `passage` and `qas`, as those of ReCoRD have (its keys: {', '.join(sorted(record))})."
        )
    if not query.get("answers"):
        raise InputError(
            f"{where} has no answer; files of tests without answers cannot be scored. Name the file of the validation"
            f" set."
        )
    try:
        text = passage["text"]
        named = dict.fromkeys(text[span["start"] : span["end"] + 1] for span in passage["entities"])
        right = dict.fromkeys(answer["text"] for answer in query["answers"])
        choices = [next(iter(right)), *(name for name in named if name not in right)]
        return {**record, "filled": [query["query"].replace(PLACEHOLDER, choice) for choice in choices], "right": 0}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{where} is not as those of ReCoRD are ({type(error).__name__}: {error}): a passage has `text` and"
            f" `entities`, a question `query` and `answers`."
        ) from error


def as_text(value: Any) -> str:
    """Return a text as it is, another value as JSON; halves of surrogate pairs, which are no characters, as `?`."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text.encode("utf-8", errors="replace").decode("utf-8")
