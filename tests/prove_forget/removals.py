"""Removals and what they are compared with: a training in an empty root, in another process, without the documents.

Of the run before, that training gets the recipe that the removal wrote, and files with the kept aggregates alone.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.removal.certificate import commitment
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import RunData, stage_paths
from model.checkpoint.metrics import final_rows, final_steps
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import MANIFEST
from tasks.artifacts.tables.files import read_table
from tasks.tokenizer.open import open_tokenizer

AGGREGATES: dict[str, tuple[str, ...] | None] = {
    "sample": (),
    "clean": ("quality",),
    "decontaminate": ("rarity", "heldout_draw"),
    "vocab": None,
    "chunk": ("slots",),
}
"""Tables that are copied of each stage besides its manifest; None for all."""
CLOCKS = ("events", "perf", "COMPLETE", "state.json", "reproduction.json", "packages.lock")
LASTING = 20
"""Checkpoints that stay with each model."""
WINDOW = 50
SECONDS = 1200.0


@dataclass(frozen=True)
class Cost:
    """What a removal repeated, and how long that was predicted to take and took."""

    documents: int
    step: int
    steps: int
    tokens: int
    tokens_in_all: int
    predicted: float
    """Seconds of the repeated steps."""
    seconds: float
    command: float
    """Seconds of the whole command."""

    @property
    def share(self) -> float:
        """The tokens that were read again, of those of a training."""
        return self.tokens / self.tokens_in_all


def python(*words: str | Path) -> str:
    """Run Python in another process, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=SECONDS, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def bessemer(*words: str | Path) -> str:
    """Run a command in another process, and return what it prints."""
    return python("-m", "flows.cli", *words)


def run(recipe: Path, root: Path | str, *settings: str) -> None:
    """Run a recipe with other settings."""
    bessemer("run", recipe, "--root", root, "--json", *(word for one in settings for word in ("--set", one)))


def first_reads(artifacts: dict[str, Artifact]) -> dict[str, int]:
    """Return the id of each document that training reads -> the first position of ORDER that reads it."""
    rows = artifacts["chunk"].table("order").column("row").to_pylist()
    first = {row: position for position, row in reversed(list(enumerate(rows)))}
    found: dict[str, int] = {}
    for span in artifacts["chunk"].table("spans").select(["row", "doc_id"]).to_pylist():
        if span["row"] in first:
            one = span["doc_id"].hex()
            found[one] = min(found.get(one, len(rows)), first[span["row"]])
    return found


@dataclass(frozen=True)
class Removal:
    """What a removal printed and made."""

    leaving: set[str]
    certificate: dict[str, Any]
    salt: str
    trained: Artifact
    cost: Cost


def forget(root: Path, words: list[str]) -> Removal:
    """Forget what `words` name, and check that it read again what the plan says."""
    began = time.monotonic()
    said = bessemer("data", "forget", *words, "--root", root, "--yes", "--json")
    command = time.monotonic() - began
    plan: dict[str, Any] = json.loads(said)["plan"]
    leaving = {*plan["leaving"]["requested"], *(plan["leaving"]["duplicates"] if "--promote" not in words else ())}
    trained, replay = run_artifacts(open_run(root, None))["train"], plan["replay"]
    cost = _measured(trained, len(leaving), replay["seconds"], command)
    assert (cost.step, cost.steps) == (replay["step"], replay["steps"])
    assert (cost.tokens, cost.tokens_in_all) == (replay["tokens"], replay["tokens_in_all"])
    certificate, salt = certificate_and_salt(said)
    assert [certificate[name] for name in ("step", "steps", "tokens")] == [cost.step, cost.steps, cost.tokens]
    return Removal(leaving, certificate, salt, trained, cost)


def forget_and_compare(root: Path, words: list[str], folder: Path) -> Cost:
    """Forget what `words` name, check the result against a training from the start, and return what it cost."""
    before = run_artifacts(open_run(root, None))
    texts = {row["doc_id"].hex(): row["text"] for row in before["sample"].table("documents").to_pylist()}
    done = forget(root, words)
    after = open_run(root, None)

    expected = from_scratch(root, after, folder)
    exact = {record.name: record.digest for record in done.trained.records if not is_of_clocks(record.name)}
    assert {"model.safetensors", "metrics.arrow", "steps.arrow"} <= {*exact}
    rolled_back = json.loads((done.trained.path / "model.json").read_text())["decisions"]
    assert len({name.partition(".")[0] for name in exact if "optimizer" in name}) == (0 if rolled_back else LASTING)
    assert exact == {name: expected[name] for name in exact}
    assert done.certificate["model"] == done.trained.content
    assert set(done.certificate["commitments"]) == {commitment(done.salt, texts[one]) for one in done.leaving}
    # Passages of benchmarks that a document held are in the benchmarks' own files, too.
    items = run_artifacts(after)["decontaminate"].table("items")
    others = [texts[one] for one in texts if one not in done.leaving] + items.column("match_text").to_pylist()
    assert not _passages(root, [texts[one] for one in done.leaving], others)
    bessemer("store", "verify", "--root", root)
    return done.cost


def is_of_clocks(name: str) -> bool:
    """Return whether a file of a model records times or the machine."""
    return any(clock in name for clock in CLOCKS)


def _measured(trained: Artifact, documents: int, predicted: float, command: float) -> Cost:
    steps, step = final_steps(trained.table("steps")), resumed_at(trained)
    tokens, walls = (final_rows(trained.table(name), steps) for name in ("metrics", "perf"))
    total = pc.max(tokens.column("tokens")).as_py()
    read = pc.max(tokens.filter(pc.less(tokens.column("step"), step)).column("tokens")).as_py() or 0
    seconds = pc.sum(walls.filter(pc.greater_equal(walls.column("step"), step)).column("wall_s")).as_py()
    return Cost(documents, step, steps.num_rows, total - read, total, predicted, seconds, command)


def resumed_at(trained: Artifact) -> int:
    """Return the steps that a model took over from the training before."""
    events = trained.table("events")
    resumes = pc.and_(pc.equal(events.column("kind"), "resume"), pc.equal(events.column("attempt"), 0))
    steps = events.filter(resumes).column("step").to_pylist()
    return steps[-1] if steps else 0


def certificate_and_salt(said: str) -> tuple[dict[str, Any], str]:
    """Return what a removal printed at its end."""
    end = json.loads(said)
    return json.loads(Path(end["certificate"]).read_text()), end["salt"]


def from_scratch(root: Path, after: RunData, folder: Path) -> dict[str, str]:
    """Train by the recipe of the run `after` in an empty root, and return the digests of the result's files."""
    kept = folder / "kept"
    for stage, tables in AGGREGATES.items():
        path = stage_paths(after)[stage]
        (kept / stage).mkdir(parents=True)
        names = [file.name for file in Artifact.open(path).records if tables is None or file.table in tables]
        for file in (path / MANIFEST, *map(Artifact.open(path).file, names)):
            shutil.copy(file, kept / stage / file.name)
    recipe = shutil.copy(root / "runs" / after["run_id"] / "recipe.json", folder / "recipe.json")
    said = python(Path(__file__).with_name("from_scratch.py"), recipe, kept, folder / "scratch")
    return json.loads(said.splitlines()[-1])


def _passages(root: Path, gone: list[str], others: list[str]) -> list[str]:
    """Return the passages of removed texts, in no other document, that are still in a file or a row under the root."""
    rest = "\n".join(others).encode()
    probes = {
        text.encode()[begin : begin + WINDOW] for text in gone for begin in range(0, len(text.encode()) - WINDOW, 10)
    }
    own = [probe for probe in probes if probe not in rest]
    everything = b"\n".join(_bytes_of(path) for path in sorted(root.rglob("*")) if path.is_file())
    tokenizer = open_tokenizer(run_artifacts(open_run(root, None))["vocab"])
    for path in (root / "artifacts" / "chunk").glob("*/*sequences*"):
        for row in read_table(path).column("tokens").to_pylist():
            everything += tokenizer.decode_bytes([token for token in row if token not in tokenizer.special])
    return [probe.decode(errors="replace") for probe in own if probe in everything]


def _bytes_of(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".arrow":
        return data
    table = read_table(path)
    return b"\n".join(_texts_of(column.combine_chunks()) for column in table.columns)


def _texts_of(column: pa.Array) -> bytes:
    if pa.types.is_dictionary(column.type):
        return _texts_of(column.dictionary)
    if pa.types.is_struct(column.type):
        return b"\n".join(_texts_of(child) for child in column.flatten())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return "\n".join(text or "" for text in column.to_pylist()).encode()
    return b""
