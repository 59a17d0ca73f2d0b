"""What the benchmarks share: real text, tools that take turns on one core, and the table of what they took.

Nothing but the standard library is imported, since the programs in `peers/` run in the tools' own environments.

Rates are MB (10^6 bytes) of UTF-8 text per second of processor time, the best of all turns: wall-clock time on a busy
machine was five times too low. `memory` is the most that a tool's process had resident.
"""

import gzip
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

PROJECT = Path(__file__).resolve().parents[1]
OURS = "bessemer"
EDITED_CORPORA = (
    "en_books",
    "en_techdocs_md",
    "zh_techdocs",
    "ru_novels",
    "ru_techdocs",
    "zh_classic_prose",
    "en_wiki",
    "it_techdocs",
)
_TOKEN_AND_REST = re.compile(r"[㐀-鿿]\W*|[^\W㐀-鿿]+\W*|\W+")
_EDITED_TOKENS = 7
AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True)
class Row:
    """One tool on one text."""

    stage: str
    text: str
    megabytes: float
    tool: str
    rate: float
    """MB a second of one core's processor time."""
    memory: float
    """Peak, in MB."""
    target: float | None = None
    """The rate to reach; for our own rows."""


@dataclass(frozen=True)
class Side:
    """A tool and the command that measures it, which prints {"seconds", "bytes", "peak_bytes"} as its last line."""

    tool: str
    command: tuple[object, ...]


def compare(stage: str, text: str, sides: Sequence[Side], turns: int, target: float | None = None) -> Iterator[Row]:
    """Yield a row per side; sides take turns, so that a busy machine is busy for all."""
    of_tool: dict[str, list[dict[str, float]]] = {side.tool: [] for side in sides}
    for _ in range(turns):
        for side in sides:
            of_tool[side.tool].append(on_one_core(*side.command))
    for tool, results in of_tool.items():
        best = max(result["bytes"] / result["seconds"] for result in results) / 1e6
        memory = max(result["peak_bytes"] for result in results) / 1e6
        yield Row(stage, text, results[0]["bytes"] / 1e6, tool, best, memory, target if tool == OURS else None)


def sides(
    program: str, words: Mapping[str, Sequence[object]], peers: Path | None, own: Collection[str] = (OURS,)
) -> list[Side]:
    """Return a side for each tool that is there, which `peers/PROGRAM TOOL WORDS` measures in the tool's environment;
    `own` tools are in this one."""
    found = {tool: Path(sys.executable) if tool in own else python_of(peers, tool) for tool in words}
    path = PROJECT / "benchmarks" / "peers" / program
    return [Side(tool, (python, path, tool, *words[tool])) for tool, python in found.items() if python is not None]


def on_one_core(*command: object) -> dict[str, Any]:
    """Run a program on one core, in a process of its own; return its last line as JSON, or raise SystemExit."""
    core = os.sched_getaffinity(0).pop()
    words = ["taskset", "-c", str(core), *map(str, command)]
    paths = {"PYTHONPATH": os.pathsep.join([str(PROJECT / "benchmarks"), str(PROJECT)])}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **paths})
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def print_rate(seconds: float, size: int) -> None:
    """Print what `on_one_core` reads; `size` is in bytes of text."""
    print(json.dumps({"seconds": seconds, "bytes": size, "peak_bytes": peak_bytes()}))


def fastest(work: Callable[[], object], rounds: int) -> float:
    """Return the processor seconds of the fastest of `rounds` calls."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def peak_bytes() -> int:
    """Return the most bytes that this process had resident; getrusage's peak counts its parent's, too."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def python_of(peers: Path | None, name: str) -> Path | None:
    """Return the interpreter of a peer's environment, None where it was not made."""
    found = peers / name / "bin" / "python" if peers else None
    return found if found and found.exists() else None


def records(data: Path, corpora: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the documents of the named corpora, in order."""
    for corpus in corpora:
        with gzip.open(data / corpus / "part-000.jsonl.gz", "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def write_texts(target: Path, texts: Iterable[str]) -> None:
    """Write one JSON line a text, with its number as id."""
    with target.open("w", encoding="utf-8") as stream:
        for number, text in enumerate(texts):
            stream.write(json.dumps({"id": str(number), "text": text}, ensure_ascii=False) + "\n")


def read_texts(source: Path, most_bytes: float = float("inf")) -> tuple[list[str], int]:
    """Return the texts of a file of JSON lines, from its beginning to about `most_bytes`, and their UTF-8 bytes."""
    texts: list[str] = []
    size = 0
    with source.open(encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            size += len(texts[-1].encode())
            if size >= most_bytes:
                break
    return texts, size


def edited_texts(data: Path, corpora: Sequence[str] = EDITED_CORPORA, seed: int = 0) -> Iterator[str]:
    """Yield real documents without end; in each copy every seventh word is another word of the document.

    Two copies share 2 of 7 shingles of five words at most, so that none is a near duplicate; in Chinese a character
    is a word.
    """
    known: dict[str, str] = {}
    documents = []
    for record in records(data, corpora):
        documents.append([known.setdefault(token, token) for token in _TOKEN_AND_REST.findall(record["text"])])
    generator = random.Random(seed)
    generator.shuffle(documents)
    while True:
        for tokens in documents:
            copy = list(tokens)
            begin = generator.randrange(min(_EDITED_TOKENS, len(copy)) or 1)
            places = range(begin, len(copy), _EDITED_TOKENS)
            copy[begin::_EDITED_TOKENS] = generator.choices(tokens, k=len(places)) if places else []
            yield "".join(copy)


def processor() -> str:
    """Return the name of this machine's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def arguments(description: str | None) -> ArgumentParser:
    """Return a parser of `--data`, `--peers` and `--json`, which the side-by-side benchmarks have in common."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpora")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments, as `peers/install.sh` makes it")
    parser.add_argument("--json", type=Path, help="file that takes the same rows as JSON")
    return parser


def show(rows: Iterable[Row], json_file: Path | None = None) -> None:
    """Print the table row by row as it comes, and write the rows down at the end."""
    print(f"one core of {processor()}; load {os.getloadavg()[0]:.1f} at the start")
    print(f"{'stage':<15}{'text':<28}{'MB':>6}  {'tool':<22}{'MB/s':>8}{'peak MB':>9}{'ratio':>9}  target")
    write_down([asdict(row) for row in shown_rows(rows, _line)], json_file)


def shown_rows(rows: Iterable[AnyRow], line: Callable[[AnyRow, Sequence[AnyRow]], str]) -> list[AnyRow]:
    """Print the line of each row as it comes, given the rows so far, and return all."""
    shown: list[AnyRow] = []
    for row in rows:
        shown.append(row)
        print(line(row, shown), flush=True)
    return shown


def write_down(rows: Sequence[dict[str, Any]], json_file: Path | None) -> None:
    """Write rows as JSON with the machine that they are from, if a file is given."""
    if json_file is not None:
        machine = {"processor": processor(), "load": os.getloadavg()[0]}
        json_file.write_text(json.dumps({**machine, "rows": rows}, indent=1))


def _line(row: Row, shown: Sequence[Row]) -> str:
    ours = [other.rate for other in shown if (other.stage, other.text, other.tool) == (row.stage, row.text, OURS)]
    ratio = f"{ours[0] / row.rate:>8.1f}x" if ours and row.tool != OURS else " " * 9
    held = "" if row.target is None else f"  {row.target:g} {'reached' if row.rate >= row.target else 'MISSED'}"
    return (
        f"{row.stage:<15}{row.text:<28}{row.megabytes:>6.1f}  {row.tool:<22}{row.rate:>8.1f}{row.memory:>9.0f}"
        f"{ratio}{held}"
    )
