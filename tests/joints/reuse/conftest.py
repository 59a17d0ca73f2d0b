"""The pipeline of a recipe in which every kind of input and setting occurs, run once under a tracer."""

import bz2
import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather
from safetensors.numpy import save

from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, WouldBuild
from tasks.artifacts.identity import Identity

PROJECT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
RECIPE = Path(__file__).parent / "alloy.toml"


@pytest.fixture(scope="session")
def alloy(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `alloy.toml` and its inputs: the small corpus in every format, and every kind of setting."""
    folder = tmp_path_factory.mktemp("alloy")
    texts = [path.read_text() for path in sorted((foundry / "notes").glob("note-*.txt"))]
    _write_notes(folder / "notes", foundry, texts[: len(texts) // 4])
    _write_code(folder / "code")
    _write_formats(folder, texts[len(texts) // 4 :])
    _write_chosen(folder / "chosen", texts)
    shutil.copy(foundry / "cloze.jsonl", folder)
    items = (foundry / "cloze.jsonl").read_bytes().replace(b'"choices"', b'"options"')
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(items, mtime=0))
    for name, text in _GIVEN.items():
        (folder / name).write_text(text)
    (folder / "plain.jsonl").write_bytes(_json_lines_of_labels())
    (folder / "calm.safetensors").write_bytes(save({"weight": np.zeros(1 << 18, np.float32), "bias": np.zeros(1)}))
    shutil.copy(RECIPE, folder)
    return folder


_GIVEN = {
    "own_rules.py": (
        "from own_words import LAST\n\n\n"
        "def unfold(text, about):\n    return text.replace('ﬁ', 'fi')\n\n\n"
        "def is_nothing_but_z(text, about):\n    return 'nothing but z' if set(text) == {LAST} else None\n"
    ),
    "own_words.py": "LAST = 'z'\n",
    "rude.txt": "churl\nknave\n",
    "spelling.tsv": "recieve\treceive\n",
    "deny.txt": f"domain banned.example\nid {'0' * 32}\nhash {'1' * 32}\n",
}
"""What a recipe may bring to clean: functions of its own and a module that they import, a word list, a deny-list."""


def _json_lines_of_labels() -> bytes:
    """Fifty texts with a label and fifty with another, the fewest that a classifier learns from."""
    lines = [{"text": f"{label} text {number}", "label": label} for number in range(50) for label in ("plain", "odd")]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _write_notes(folder: Path, foundry: Path, texts: Sequence[str]) -> None:
    """Text files: the documents of the small corpus that prove something, some notes, one that needs repair, and one
    in a legacy encoding."""
    folder.mkdir()
    for path in (foundry / "notes").iterdir():
        if not path.name.startswith("note-"):
            shutil.copy(path, folder)
    for number, text in enumerate(texts):
        (folder / f"note-{number}.txt").write_text(text)
    (folder / "worn.txt").write_text(_WORN + texts[0][::-1])
    (folder / "quoted.txt").write_bytes("".join(f"“{line}”\n" for line in texts[1].splitlines()).encode("cp1252"))


def _write_code(folder: Path) -> None:
    folder.mkdir()
    for module in ("bisect", "heapq", "queue", "sched", "shlex", "string", "textwrap"):
        shutil.copy(Path(shutil.__file__).with_name(f"{module}.py"), folder)


def _write_chosen(folder: Path, texts: Sequence[str]) -> None:
    """As many documents as a classifier of quality wants to learn from: the lines of all texts in another order."""
    folder.mkdir()
    lines = sorted(line for text in texts for line in text.splitlines())
    size = len(lines) // len(texts)
    chosen = ["\n".join(lines[start : start + size]) for start in range(0, len(lines), size)]
    (folder / "a.jsonl").write_bytes(_json_lines(chosen))


def _write_formats(folder: Path, texts: Sequence[str]) -> None:
    """A folder for each other kind of file, all with texts of their own."""
    writers = (
        *(_write_markdown, _write_pages, _write_lines, _write_gzipped_lines, _write_frozen_lines, _write_parquet),
        *(_write_arrow, _write_csv, _write_crawl, _write_threads, _write_remote, _write_gzipped_texts),
        *(_write_wikitext, _write_wiki_dump),
    )
    for number, write in enumerate(writers):
        place = folder / write.__name__.removeprefix("_write_")
        place.mkdir()
        write(place, texts[number :: len(writers)])


def _write_markdown(folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number}.md").write_text(f"# Note {number}\n\n**Bold** [link](http://a.b)\n\n{text}")


def _write_pages(folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number}.html").write_text(_page(text))


def _page(text: str) -> str:
    return f"<html><head><title>A</title></head><body><nav>Home</nav><article><p>{text}</p></article></body></html>"


def _write_lines(folder: Path, texts: Sequence[str]) -> None:
    (folder / "a.jsonl").write_bytes(_json_lines(texts))


def _write_gzipped_lines(folder: Path, texts: Sequence[str]) -> None:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(_json_lines(texts), mtime=0))


def _write_frozen_lines(folder: Path, texts: Sequence[str]) -> None:
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(_json_lines(texts)))


def _write_parquet(folder: Path, texts: Sequence[str]) -> None:
    pq.write_table(_table(texts), folder / "a.parquet")


def _write_arrow(folder: Path, texts: Sequence[str]) -> None:
    feather.write_feather(_table(texts), str(folder / "a.arrow"))


def _table(texts: Sequence[str]) -> pa.Table:
    return pa.table({"id": [f"row {number}" for number in range(len(texts))], "text": list(texts)})


def _write_csv(folder: Path, texts: Sequence[str]) -> None:
    with (folder / "a.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "text"), *((f"row {n}", text) for n, text in enumerate(texts))])


def _write_crawl(folder: Path, texts: Sequence[str]) -> None:
    with gzip.open(folder / "a.warc.gz", "wb") as stream:
        for number, text in enumerate(texts):
            answer = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n{_page(text)}"
            stream.write(
                f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
                f"WARC-Target-URI: http://a.example/{number}\r\nContent-Type: application/http; msgtype=response\r\n"
                f"Content-Length: {len(answer)}\r\n\r\n{answer}\r\n\r\n".encode()
            )


def _write_threads(folder: Path, texts: Sequence[str]) -> None:
    """A question and an answer for each text."""
    rows = [
        {"thread_id": f"thread {number}", "id": f"{number}-{place}", "parent_id": parent, "author": "A", "text": part}
        for number, text in enumerate(texts)
        for place, (parent, part) in enumerate([("", text[:300]), (f"{number}-0", text[300:])])
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_remote(folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)


def _write_gzipped_texts(folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number}.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _write_wikitext(folder: Path, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        (folder / f"{number}.wikitext").write_text(f"== Note {number} ==\n'''Bold''' [[link]]\n\n{text}")


def _write_wiki_dump(folder: Path, texts: Sequence[str]) -> None:
    pages = "".join(
        f"<page><title>Note {number}</title><ns>0</ns><id>{number}</id><revision><id>1</id><model>wikitext</model>"
        f"<text>{text}</text></revision></page>\n"
        for number, text in enumerate(texts)
    )
    site = "<siteinfo><base>https://a.example/wiki/Main_Page</base></siteinfo>"
    (folder / "a.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>{site}\n{pages}</mediawiki>\n".encode()))


_WORN = (
    "The cafÃ© wasnâ€™t open \u200b😀 :-) and\u0007 the ｗｉｄｅ word wrote to smith@forge.example from 10.0.0.1,"
    " or called +44 20 7946 0958 about the card 4111 1111 1111 1111.\r\nThis line stands twice in this note of ours.\n"
    "This line stands twice in this note of ours.\n"
)


def _json_lines(texts: Sequence[str]) -> bytes:
    rows = [{"id": f"line {number}", "text": text} for number, text in enumerate(texts)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _run_program(
    name: str, *arguments: str | Path, project: Path = PROJECT, environment: Mapping[str, str] | None = None
) -> str:
    """What a program of `programs/` prints, run in a fresh process with the code of `project`."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(project), **(environment or {})},
        cwd=project,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def run_program() -> Callable[..., str]:
    """`run_program(name, *arguments, project=..., environment=...)` gives what a program of `programs/` prints."""
    return _run_program


def _identities(
    recipe: Path, root: Path, parents: Mapping[str, Mapping[str, str]] | None = None, settings: Sequence[str] = ()
) -> dict[str, Identity]:
    """Stage -> the identity under which its builder would build, from parents that exist only by name.

    `parents` gives other fields (content, identity) to the artifact of a stage.
    """
    found: dict[str, Identity] = {}
    context = RunContext(root, "run", dry=True)

    def step(stage: str, *inputs: Any) -> Artifact:
        try:
            BUILDERS[stage](context, *inputs)
        except WouldBuild as would:
            found[stage] = would.identity
        named = {"content": f"content of {stage}", "identity": f"identity of {stage}"}
        return Artifact(path=root / stage, stage=stage, **{**named, **(parents or {}).get(stage, {})})

    run_stages(load_recipe(recipe, root, settings), step)
    return found


@pytest.fixture(scope="session")
def identities() -> Callable[..., dict[str, Identity]]:
    """`identities(recipe, root, parents=..., settings=...)` gives each stage's identity as its builder makes it."""
    return _identities


@dataclass(frozen=True)
class Walked:
    """A root in which the whole pipeline was built, and what a tracer saw in each stage."""

    project: Path
    recipe: Path
    root: Path
    functions: dict[str, set[tuple[str, str, int]]]
    """Stage -> (file relative to the project, qualified name, first line) of each function of ours that ran."""
    packages: dict[str, set[str]]
    """Stage -> top-level names of third-party packages whose code ran, imports aside."""

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Stage -> the manifest of its artifact."""
        return {path.parts[-3]: json.loads(path.read_text()) for path in self.root.glob("artifacts/*/*/manifest.json")}


@pytest.fixture(scope="session")
def walked(alloy: Path, tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """The pipeline of the alloy, built once under the tracer; its kernels are compiled, not loaded."""
    trace = tmp_path_factory.mktemp("trace")
    kernels = tmp_path_factory.mktemp("kernels")
    root = tmp_path_factory.mktemp("root")
    paths = os.pathsep.join([str(PROGRAMS), str(PROJECT)])
    tracing = {
        "PYTHONPATH": paths,
        "BESSEMER_TRACE": str(trace),
        "BESSEMER_TRACE_PROJECT": str(PROJECT),
        "NUMBA_CACHE_DIR": str(kernels),
    }
    _run_program("walk_road.py", alloy / "alloy.toml", root, "evaluate", environment=tracing)
    functions: dict[str, set[tuple[str, str, int]]] = {}
    packages: dict[str, set[str]] = {}
    for path in trace.glob("*.json"):
        for stage, seen in json.loads(path.read_text()).items():
            places = [
                (Path(file).relative_to(PROJECT).as_posix(), name, line) for file, name, line in seen["functions"]
            ]
            functions.setdefault(stage, set()).update(places)
            packages.setdefault(stage, set()).update(seen["packages"])
    return Walked(PROJECT, alloy / "alloy.toml", root, functions, packages)


class Forecaster:
    """A process that says what each stage would do, as often as it is asked."""

    def __init__(
        self,
        walked: Walked,
        *,
        project: Path = PROJECT,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, str(PROGRAMS / "forecast.py"), str(walked.recipe), str(walked.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd or project,
            env={**os.environ, "PYTHONPATH": str(project), **(environment or {})},
        )

    def ask(
        self, *settings: str, recipe: Path | None = None, root: Path | None = None, stages: Sequence[str] = ()
    ) -> dict[str, Any]:
        """{stage: {"key", "outcome", "causes"} or {"error"}} with the settings, of another recipe or root if named, for
        all stages if none is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        places = {"recipe": recipe, "root": root}
        request = {
            "settings": settings,
            "stages": stages,
            **{name: str(path) for name, path in places.items() if path is not None},
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the forecaster ended with exit code {self._process.wait()}"
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture
def forecaster(walked: Walked) -> Iterator[Callable[..., Forecaster]]:
    """`forecaster(project=..., cwd=..., environment=...)` starts one; it ends with the test."""
    started: list[Forecaster] = []

    def start(**options: Any) -> Forecaster:
        started.append(Forecaster(walked, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages in a folder of its own, to be mutated."""
    for package in ("flows", "tasks", "model"):
        shutil.copytree(
            PROJECT / package, tmp_path / "checkout" / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path / "checkout"
