"""Each data stage on real text, by the code that a run uses: the same bytes for any number of workers and after
kill -9 at ten random moments, and for every document that came in one outcome."""

import gzip
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.artifacts.artifact import Artifact

pytestmark = pytest.mark.prove_data

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "stage_build.py"
CORPORA = {
    "readme_changelog_md": "markdown",
    "zh_techdocs": "markdown",
    "ru_techdocs": "text",
    "it_techdocs": "text",
    "en_speech_drama": "text",
    "social_emoji": "text",
    "zh_poetry": "text",
    "web_html_raw": "html",
}
TWICE = '{"id": "twice", "text": "An id that is here twice."}\n'
DAMAGED = '{"id": "torn", "text": "A line that was cut\n' + TWICE + TWICE
CASES = {
    "sample": {},
    "clean": {"preset": "fineweb", "wipe_out_limit": 1.0},
    "dedup": {"planted_pairs": 300},
    "dedup, lines and passages": {
        "planted_pairs": 300,
        "repeated_lines": "line",
        "repeated_bytes": 100,
        "memory_bytes": 1 << 30,
    },
    "decontaminate": {"planted_per_form": 10},
}
KILLS = 10
MOST_ROOTS = 40
DEADLINE = 300.0

Measured = Callable[..., None]


@dataclass(frozen=True)
class Builder:
    """Builds one stage in processes of their own, each time under another root."""

    stage: str
    settings: dict[str, Any]
    parent: str
    folder: Path

    def start(self, root: str, workers: int) -> subprocess.Popen[str]:
        """A build under way."""
        words = [self.stage, str(self.folder / root), self.parent, json.dumps(self.settings), str(workers)]
        return subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE, text=True)

    def finished(self, root: str, workers: int) -> dict[str, Any]:
        """What a build that nothing disturbs says of its artifact."""
        build = self.start(root, workers)
        reported, _ = build.communicate(timeout=DEADLINE)
        assert build.returncode == 0
        return json.loads(reported)

    def is_under_way(self, root: str) -> bool:
        """Whether work on the artifact has begun."""
        return any((self.folder / root).glob("work/*"))

    def is_published(self, root: str) -> bool:
        """Whether the artifact exists."""
        return any((self.folder / root).glob(f"artifacts/{self.stage}/*/manifest.json"))

    def finished_units(self, root: str) -> int:
        """Units of an unfinished build that need not be done again."""
        return len(list((self.folder / root).glob("work/*/units/*.json")))

    def seconds_of_work(self, root: str, workers: int) -> float:
        """From the moment at which work begins until the process has ended."""
        build = self.start(root, workers)
        self.wait_for_work(build, root)
        began = time.monotonic()
        build.communicate(timeout=DEADLINE)
        return time.monotonic() - began

    def wait_for_work(self, build: subprocess.Popen[str], root: str) -> None:
        """Return when the build has begun its work, or has ended."""
        while build.poll() is None and not self.is_under_way(root):
            time.sleep(0.002)

    def killed(self, root: str, workers: int, delay: float) -> bool:
        """Kill -9 a build `delay` seconds after its work began; False where the artifact existed already.

        No process that it started may outlive it.
        """
        build = self.start(root, workers)
        self.wait_for_work(build, root)
        time.sleep(delay)
        try:
            children = psutil.Process(build.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        build.send_signal(signal.SIGKILL)
        build.communicate()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, "a worker outlived its build"
        return not self.is_published(root)


@pytest.fixture(scope="module")
def sample_settings(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    damaged = tmp_path_factory.mktemp("damaged") / "damaged.jsonl"
    damaged.write_text(DAMAGED)
    sources = [
        {"name": name, "paths": [str(data / name / "*.jsonl.gz")], "content": content}
        for name, content in CORPORA.items()
    ]
    sources.append({"name": "damaged", "paths": [str(damaged)], "content": "text"})
    shared = {"format": "jsonl", "id_field": "id", "weight": 1 / len(sources)}
    return {
        "sources": [{**source, **shared} for source in sources],
        "budget_tokens": 10**12,
        "part_bytes": 1_000_000,
    }


@pytest.fixture(scope="module")
def documents(sample_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    builder = Builder("sample", sample_settings, "-", tmp_path_factory.mktemp("documents"))
    return Artifact.open(Path(builder.finished("root", 1)["artifact"]))


@pytest.fixture
def builder(
    request: pytest.FixtureRequest, sample_settings: dict[str, Any], documents: Artifact, data: Path, tmp_path: Path
) -> Builder:
    stage = request.param.partition(",")[0]
    settings = dict(CASES[request.param])
    if stage == "sample":
        return Builder(stage, sample_settings, "-", tmp_path)
    if stage == "decontaminate":
        paths = sorted((data / "benchmarks").glob("*.jsonl.gz"))
        settings["benchmarks"] = [{"name": path.name.partition(".")[0], "path": str(path)} for path in paths]
    return Builder(stage, settings, str(documents.path), tmp_path)


@pytest.mark.parametrize("builder", CASES, indirect=True)
def test_the_same_bytes_for_any_workers_and_after_kills(
    builder: Builder, request: pytest.FixtureRequest, measured: Measured
) -> None:
    outputs = [builder.finished(f"workers{workers}", workers) for workers in (1, 2, 4)]
    seconds = builder.seconds_of_work("timed", 2)
    chance = random.Random(1)
    units: list[int] = []
    for number in range(MOST_ROOTS):
        # Every other build is killed again while it goes on from what the first left.
        for _ in range(1 + number % 2):
            delay = chance.uniform(0.0, seconds)
            if builder.killed(f"killed{number}", 2, delay):
                units.append(builder.finished_units(f"killed{number}"))
            else:
                seconds = delay  # The machine is less busy than it was, and a build takes no longer than this.
                break
        outputs.append(builder.finished(f"killed{number}", 4))
        if len(units) >= KILLS:
            break
    assert len(units) >= KILLS
    name = request.node.callspec.id
    assert len({reported["identity"] for reported in outputs}) == 1, "the code was edited while the proof ran"
    different = {json.dumps(reported["digests"], sort_keys=True) for reported in outputs}
    files = len(outputs[0]["digests"])
    note = f"{files} files, 1, 2 and 4 workers, {len(units)} x kill -9 with {min(units)} to {max(units)} parts finished"
    measured(builder.stage, f"{name}: different outputs", len(different), at_most=1, note=note)


@pytest.mark.parametrize("builder", CASES, indirect=True)
def test_every_document_has_one_outcome(
    builder: Builder, request: pytest.FixtureRequest, documents: Artifact, data: Path, measured: Measured
) -> None:
    artifact = Artifact.open(Path(builder.finished("root", 2)["artifact"]))
    stayed = ids(artifact, "documents")
    if builder.stage == "sample":
        rejected = artifact.table("rejects").num_rows
        came = sum(lines_of(path) for path in (data / name / "part-000.jsonl.gz" for name in CORPORA))
        came += len(DAMAGED.splitlines())
        assert rejected == 2
        lost, fates = came - len(stayed) - rejected, f"{rejected} rejected"
    else:
        dropped = [row["doc_id"] for row in artifact.table("ledger").to_pylist() if row["action"] == "drop"]
        held = ids(artifact, "heldout") if builder.stage == "decontaminate" else set()
        once = [*stayed, *held, *dropped]
        came = len(ids(documents, "documents"))
        lost = len(ids(documents, "documents") ^ set(once)) + len(once) - len(set(once))
        fates = f"{len(dropped)} dropped, {len(held)} held out, a row of the ledger each"
    name = request.node.callspec.id
    note = f"{came} in, {len(stayed)} out, {fates}"
    measured(builder.stage, f"{name}: documents without one outcome", lost, at_most=0, note=note)


def ids(artifact: Artifact, table: str) -> set[bytes]:
    return set(artifact.table(table).column("doc_id").to_pylist())


def lines_of(path: Path) -> int:
    with gzip.open(path, "rb") as lines:
        return sum(1 for _ in lines)
