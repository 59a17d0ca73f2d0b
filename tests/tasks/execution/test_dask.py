"""A stage on a real cluster: the bytes of one machine, with workers that die, lie about their version, or all go away.

`deployments/local/dask.sh` starts scheduler and workers, each a process of its own.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from model.errors import Infra, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener, RunContext
from tasks.chunk.config import ChunkConfig
from tasks.chunk.stage import build_chunk
from tasks.clean.config import CleanConfig
from tasks.clean.stage import build_clean
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.stage import build_decontaminate
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.execution.machines import Machines
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab

pytestmark = pytest.mark.prove

PROJECT = Path(__file__).parents[3]
SCRIPT = PROJECT / "deployments" / "local" / "dask.sh"
PARTS = 12
WORDS = [
    "iron",
    "steel",
    "coke",
    "blast",
    "furnace",
    "melt",
    "pour",
    "cast",
    "mould",
    "slag",
    "heat",
    "air",
    "carbon",
    "vessel",
    "ladle",
    "ingot",
    "roll",
    "rail",
]
RULE = """
import os, signal
def deadly(text, about):
    if "poison" in text:
        os.kill(os.getpid(), signal.SIGKILL)
    return None
"""


@dataclass
class Cluster:
    """A scheduler and its workers."""

    folder: Path
    address: str

    @property
    def machines(self) -> Machines:
        return Machines(executor="dask", address=self.address)

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)

    def start(self, workers: int) -> str:
        done = _script("start", self.folder, str(workers))
        return done.splitlines()[-1]


def _script(*words: str | Path) -> str:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three workers."""
    folder = tmp_path / "cluster"
    found = Cluster(folder, "")
    found.address = found.start(3)
    try:
        yield found
    finally:
        _script("stop", folder)


class At(ProgressListener):
    """Does something once, when a stage has finished so many parts."""

    def __init__(self, stage: str, parts: int, action: Callable[[], None]) -> None:
        self._stage, self._parts, self._action = stage, parts, action
        self.acted = False

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        if not self.acted and stage == self._stage and unit == "parts" and done >= self._parts:
            self.acted = True
            self._action()


def text(number: int, words: int = 300) -> str:
    state, chosen = number * 2654435761 % 2**32, []
    for _ in range(words):
        state = (state * 1664525 + 1013904223) % 2**32
        chosen.append(WORDS[(state >> 16) % len(WORDS)])
    sentences = [" ".join(chosen[place : place + 12]).capitalize() + "." for place in range(0, words, 12)]
    return "\n".join(sentences) + "\n"


@pytest.fixture
def documents(make_documents: Any) -> Artifact:
    """Twelve parts; each shares a document with the one before, and one holds what the benchmark asks."""
    return make_documents(
        [
            [("web", text(1000 * part + row)) for row in range(8)] + [("web", text(1000 * (part - 1)))]
            for part in range(PARTS)
        ]
    )


QUIET = CleanConfig(preset="minimal")


def data_stages(context: RunContext, documents: Artifact, machines: Machines, workers: int, quiz: Path) -> list[str]:
    """The content of all that the data stages make."""
    where: dict[str, Any] = {"machines": machines}
    cleaned = build_clean(context, documents, QUIET.model_copy(update={**where, "workers": workers}))
    unique = build_dedup(context, cleaned, DedupConfig(**where, threads=workers))
    config = DecontaminateConfig(benchmarks=(Benchmark(name="quiz", path=quiz),), **where, workers=workers)
    unseen = build_decontaminate(context, unique, config)
    vocab = build_vocab(context, unseen, VocabConfig(vocab_size=300))
    chunked = ChunkConfig(row_length=65, budget_tokens=5000, weights={"web": 1.0}, **where, workers=workers)
    rows = build_chunk(context, unseen, vocab, chunked)
    return [artifact.content for artifact in (cleaned, unique, unseen, vocab, rows)]


def elsewhere(context: RunContext, documents: Artifact, root: Path) -> tuple[RunContext, Artifact]:
    """The same run under another root that holds the documents alone."""
    path = root / documents.path.relative_to(context.root)
    shutil.copytree(documents.path, path)
    return replace(context, root=root), Artifact.open(path)


def test_many_machines_make_the_bytes_of_one_though_a_worker_is_killed_in_each_stage(
    context: RunContext, documents: Artifact, cluster: Cluster, tmp_path: Path
) -> None:
    quiz = tmp_path / "quiz.jsonl"
    passage = " ".join(text(3003).split()[:40])
    quiz.write_text(f'{{"id": "q", "context": "{passage}", "choices": ["a", "b"], "answer": 0}}\n')
    contents: dict[str, list[str]] = {}
    for executor, workers in (("threads", 1), ("threads", 2), ("processes", 2)):
        machines = Machines(executor=executor)  # pyright: ignore[reportArgumentType]
        run, own = elsewhere(context, documents, tmp_path / f"{executor}-{workers}")
        contents[f"{executor}, {workers}"] = data_stages(run, own, machines, workers, quiz)
    killed: list[str] = []

    def kill_another() -> None:
        cluster.kill(f"worker-{len(killed)}")
        killed.append(f"worker-{len(killed)}")

    run, own = elsewhere(context, documents, tmp_path / "dask")
    watcher = At("clean", 2, kill_another)
    contents["dask"] = data_stages(replace(run, listener=watcher), own, cluster.machines, 1, quiz)
    assert killed == ["worker-0"]
    run, own = elsewhere(context, documents, tmp_path / "dask-again")
    watcher = At("dedup", 2, kill_another)
    contents["dask again"] = data_stages(replace(run, listener=watcher), own, cluster.machines, 1, quiz)
    assert killed == ["worker-0", "worker-1"]
    assert len({tuple(found) for found in contents.values()}) == 1, contents


def test_a_part_that_kills_two_workers_ends_the_build_with_its_name(
    context: RunContext, make_documents: Any, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "my_rules.py").write_text(RULE)
    documents = make_documents([[("web", "poison " * 50 if part == 4 else text(part))] for part in range(PARTS)])
    extensions = {"path": str(tmp_path), "rules": ["my_rules:deadly"]}
    config = CleanConfig.model_validate(
        {"preset": "minimal", "extensions": extensions, "machines": cluster.machines.model_dump()}
    )
    with pytest.raises(Infra, match=r"2 workers died while they processed part 4, part-00004\.arrow"):
        build_clean(context, documents, config)
    alive = [name for name in ("worker-0", "worker-1", "worker-2") if _lives(cluster.pid(name))]
    assert len(alive) == 1
    (work,) = (context.root / "work").glob("*.*")
    assert len(list((work / "units").glob("*.json"))) >= 1


def test_a_worker_with_other_code_is_refused(
    context: RunContext, documents: Artifact, cluster: Cluster, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    for package in ("flows", "tasks", "model"):
        shutil.copytree(PROJECT / package, other / package, ignore=shutil.ignore_patterns("__pycache__"))
    edited = other / "tasks" / "clean" / "cleaning.py"
    edited.write_text(edited.read_text().replace("clean_part", "clean_another_part"))
    for number in range(3):
        cluster.kill(f"worker-{number}")
    words = [sys.executable, "-m", "dask", "worker", cluster.address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    environment = {**os.environ, "PYTHONPATH": str(other)}
    worker = subprocess.Popen(
        words, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with pytest.raises(InputError, match=r"other versions than the build of clean \(code: tasks.clean.pipeline\."):
            build_clean(context, documents, QUIET.model_copy(update={"machines": cluster.machines}))
    finally:
        worker.kill()
        worker.wait()


def test_without_a_scheduler_the_build_ends_and_goes_on_later_from_what_was_finished(
    context: RunContext, documents: Artifact, cluster: Cluster, tmp_path: Path
) -> None:
    lost = replace(context, listener=At("clean", 3, lambda: cluster.kill("scheduler")))
    with pytest.raises(Infra, match=r"scheduler at .* is lost"):
        build_clean(lost, documents, QUIET.model_copy(update={"machines": cluster.machines}))
    with pytest.raises(Infra, match="no Dask scheduler responds at tcp://127"):
        build_clean(context, documents, QUIET.model_copy(update={"machines": cluster.machines}))
    again = build_clean(context, documents, QUIET)
    assert "continued from the finished parts" in again.cause
    run, own = elsewhere(context, documents, tmp_path / "whole")
    assert again.content == build_clean(run, own, QUIET).content


def _lives(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.2)
    return True
