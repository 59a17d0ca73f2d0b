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
from model.errors import InputError
from model.file_content import Content, open_content
from tasks.decontaminate.config import Benchmark, BenchmarkFields

Record = dict[str, Any]

PLACEHOLDER = "@placeholder"

MOST_FIELD_CHARS = 1 << 27
"""Of one cell of a table; Python's own limit is 131,072, which long articles exceed."""

MOST_UNPACKED_BYTES = 1 << 30
"""Of a benchmark's file: all its items are in memory at once."""


class Unbounded(Exception):
    """A document that would have to be read as a whole, though only its beginning may be."""


def read_records(
    benchmark: Benchmark,
    fields: BenchmarkFields,
    most_bytes: int | None = None,
    contents: Mapping[Path, Content] = MappingProxyType({}),
) -> Iterator[tuple[int, Record]]:
    """(number from 1, record) of each item: the line of a file of lines, else a running number.

    `most_bytes` ends the reading at the last whole line within so many bytes (unpacked). Raises InputError for a file
    that cannot be read as what its name says it is, or does not hold what `contents` says, Unbounded where less than
    the whole file tells nothing.
    """
    lines = _Lines(benchmark, most_bytes, contents)
    names = fields.each.split(".") if fields.each else []
    entries = 0
    for number, whole in _whole_records(benchmark, fields, lines):
        for record in _each(whole, names):
            entries += 1
            told = entries if names else number
            if fields.layout == "record":
                record = _entities_filled_in(benchmark, told, record)
            if all(_plain(value_of(record, key)) == wanted for key, wanted in fields.only.items()):
                yield told, record


def value_of(record: Record, key: str) -> Any:
    """What stands under `key`, a path of names with dots between, in lists of each entry; None where nothing does."""
    value: Any = record.get(key)
    if value is None and "." in key:
        value = record
        for name in key.split("."):
            if isinstance(value, list):
                value = [entry.get(name) for entry in value if isinstance(entry, dict)]
            else:
                value = value.get(name) if isinstance(value, dict) else None
    return value


def _whole_records(benchmark: Benchmark, fields: BenchmarkFields, lines: "_Lines") -> Iterator[tuple[int, Record]]:
    path = Path(benchmark.path)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if benchmark.answers_path is not None:
        yield from _parallel_lines(benchmark, Path(benchmark.answers_path), lines)
    elif suffix == ".json" and fields.each:
        text = "".join(lines.of(path, cut=False))
        yield 1, _parsed(benchmark, "", text)
    elif suffix in (".tsv", ".csv"):
        yield from _table(benchmark, fields, path, lines, tab=suffix == ".tsv")
    else:
        for number, line in enumerate(lines.of(path), start=1):
            if line.strip():
                yield number, _parsed(benchmark, f"line {number} of ", line)


def _parsed(benchmark: Benchmark, place: str, text: str) -> Record:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"benchmark `{benchmark.name}`: {place}{benchmark.path} is not JSON ({error}). Benchmarks are files with"
            f" one JSON object a line (.jsonl), a JSON document (.json, with `fields.each`), or tables (.tsv, .csv)."
        ) from error
    if not isinstance(record, dict):
        raise InputError(
            f"benchmark `{benchmark.name}`: {place}{benchmark.path} is a {type(record).__name__}, not an object with"
            f" fields."
        )
    return record


def _table(
    benchmark: Benchmark, fields: BenchmarkFields, path: Path, lines: "_Lines", *, tab: bool
) -> Iterator[tuple[int, Record]]:
    csv.field_size_limit(MOST_FIELD_CHARS)
    told = lines.of(path)
    # In the tab-separated files of GLUE a quotation mark is a quotation mark.
    rows = csv.reader(told, delimiter="\t", quoting=csv.QUOTE_NONE) if tab else csv.reader(told)
    names = list(fields.columns) or next(rows, [])
    for number, row in enumerate(rows, start=1 if fields.columns else 2):
        if len(row) < len(names):
            raise InputError(
                f"benchmark `{benchmark.name}`: row {number} of {path} has {len(row)} columns, and there are"
                f" {len(names)} names ({', '.join(names)}). Mend the file, or name its columns in `fields.columns`."
            )
        yield number, dict(zip(names, row, strict=False))


def _parallel_lines(benchmark: Benchmark, answers: Path, lines: "_Lines") -> Iterator[tuple[int, Record]]:
    asked, right = (list(lines.of(path)) for path in (Path(benchmark.path), answers))
    if lines.most_bytes is None and len(asked) != len(right):
        raise InputError(
            f"benchmark `{benchmark.name}`: {benchmark.path} has {len(asked)} lines and {answers} {len(right)}. Each"
            f" line of the one belongs to that of the other; take two files of one set."
        )
    for number, (line, answer) in enumerate(zip(asked, right, strict=False), start=1):
        yield number, {"line": line.rstrip("\n"), "answer": answer.rstrip("\n")}


@dataclass(frozen=True)
class _Lines:
    """Reads the lines of a benchmark's files."""

    benchmark: Benchmark
    most_bytes: int | None
    contents: Mapping[Path, Content]

    def of(self, path: Path, *, cut: bool = True) -> Iterator[str]:
        """The lines of one of them, up to the last whole one within `most_bytes` where it may be cut."""
        most, content = self.most_bytes, self.contents.get(path)
        name = f"benchmark `{self.benchmark.name}`: {path}"
        try:
            with (
                open_file(path) if content is None else open_content(path, content) as stored,
                # `gzip` leaves a stream that it is given open.
                gzip.open(stored) if path.suffix == ".gz" else nullcontext(stored) as unpacked,
            ):
                stream = io.BufferedReader(_Bounded(unpacked, name))
                if most is not None:
                    head = stream.read(most)
                    if len(head) == most and stream.read(1):
                        if not cut or b"\n" not in head:
                            raise Unbounded
                        head = head[: head.rindex(b"\n") + 1]
                    stream = io.BytesIO(head)
                yield from io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name} cannot be read ({error}). Check the path in the recipe.") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{name} is not UTF-8 ({error}). Save it as UTF-8.") from error


class _Bounded(io.RawIOBase):
    """A stream that is refused behind the largest size of a benchmark."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, name: str) -> None:
        self._stream, self._name, self._left = stream, name, MOST_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        block = self._stream.read(len(buffer))
        self._left -= len(block)
        if self._left < 0:
            raise InputError(
                f"{self._name} holds more than {MOST_UNPACKED_BYTES:,} bytes (unpacked), and all items of a benchmark"
                f" are in memory at once. Take the items that are to be found, or split the file."
            )
        buffer[: len(block)] = block
        return len(block)


def _each(record: Record, names: list[str]) -> Iterable[Record]:
    """The entries of nested lists, each under the name of its list, beside what surrounds it."""
    if not names:
        return [record]
    inner = record.get(names[0])
    entries = inner if isinstance(inner, list) else [inner] if isinstance(inner, dict) else []
    found: list[Record] = []
    for entry in (entry for entry in entries if isinstance(entry, dict)):
        for nested in _each(entry, names[1:]):
            # Deeper entries are lifted beside their own surroundings, which stay under the name of this list.
            deeper = {name: nested[name] for name in names[1:] if name in nested}
            found.append({**record, **deeper, names[0]: entry})
    return found


def _entities_filled_in(benchmark: Benchmark, number: int, record: Record) -> Record:
    """ReCoRD (Zhang et al. 2018): the query with each entity of the passage in place of the placeholder; of several
    right entities the first stands for all."""
    passage, query = record.get("passage"), record.get("qas")
    if not isinstance(passage, dict) or not isinstance(query, dict):
        raise InputError(
            f"benchmark `{benchmark.name}`: record {number} of {benchmark.path} has no `passage` and `qas`, as those of"
            f" ReCoRD have (its keys: {', '.join(sorted(record))})."
        )
    text = passage["text"]
    named = dict.fromkeys(text[span["start"] : span["end"] + 1] for span in passage["entities"])
    right = dict.fromkeys(answer["text"] for answer in query["answers"])
    choices = [next(iter(right)), *(name for name in named if name not in right)]
    return {
        **record,
        "filled": [query["query"].replace(PLACEHOLDER, choice) for choice in choices],
        "right": 0,
    }


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
