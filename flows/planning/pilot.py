"""A small share of every source, taken down the road from sample to chunk for real, and measured on the way.

The pilot lives under `ROOT/pilots` with artifacts of its own, which are reused like any. Each record is in it or not
by the hash of its id, so that it is a simple random sample of what the recipe would select; every file is read once to
the end, which also counts the documents exactly.
"""

import importlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows.builders import BUILDERS
from flows.planning.pilot_shares import PilotShare, pilot_sample, pilot_shares
from flows.recipe import Recipe
from model.errors import InputError
from model.sealed import read_sealed, write_sealed
from tasks.artifact import Artifact
from tasks.build import RunContext, Watcher
from tasks.sample.discovery import find_files
from tasks.vocab.config import VocabConfig

PILOTS = "pilots"
STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk")
HEAVY = (
    "tasks.sample.sampling",
    "tasks.clean.cleaning",
    "tasks.dedup.deduplicate",
    "tasks.decontaminate.decontaminate",
    "tasks.vocab.training",
    "tasks.chunk.chunking",
)
"""Loaded before any clock starts: a pilot of seconds would otherwise measure imports."""
SMALLEST_VOCABULARY = 300
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Measurement:
    """What building one stage took."""

    seconds: float
    peak_bytes: int | None
    """Most memory of this process and its children together; None where the artifact was built elsewhere."""


@dataclass
class Pilot:
    """A finished pilot: artifacts and measurements by stage."""

    root: Path
    recipe: Recipe
    """The recipe as the pilot ran it."""
    shares: dict[str, PilotShare]
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    measured: dict[str, Measurement] = field(default_factory=dict)


def run_pilot(recipe: Recipe, root: Path, share: float, watcher: Watcher) -> Pilot:
    """Build the pilot of `recipe`, a `share` (0 to 1) of what it would select from each source.

    Raises what a run would raise: a missing input, a guard that stops a stage.
    """
    place = root / PILOTS
    listings = find_files(recipe.sample)
    shares = pilot_shares(recipe, listings, share)
    # Held-out documents are left in: how many the whole holds out follows from the recipe's limits, not from a pilot.
    small = recipe.model_copy(
        update={
            "sample": pilot_sample(recipe.sample, listings, shares),
            "decontaminate": recipe.decontaminate.model_copy(update={"heldout_share": 0.0}),
        }
    )
    pilot = Pilot(place, small, shares)
    context = RunContext(place, run_id="pilot", watcher=watcher)
    for name in HEAVY:
        importlib.import_module(name)

    def step(stage: str, *inputs: Any) -> Artifact:
        artifact, pilot.measured[stage] = _measured_build(context, stage, *inputs)
        pilot.artifacts[stage] = artifact
        return artifact

    documents = step("sample", small.sample)
    cleaned = step("clean", documents, small.clean)
    unique = step("dedup", cleaned, small.dedup)
    unseen = step("decontaminate", unique, small.decontaminate)
    tokenizer = _vocabulary(lambda config: step("vocab", unseen, config), small.vocab, context)
    step("chunk", unseen, tokenizer, small.chunk)
    return pilot


def _vocabulary(build: Callable[[VocabConfig], Artifact], config: VocabConfig, context: RunContext) -> Artifact:
    """A vocabulary of the recipe's size, or half of it, or a quarter: as many pieces as the pilot's text can give."""
    while True:
        try:
            return build(config)
        except InputError:
            smaller = config.halved()
            least = SMALLEST_VOCABULARY if config.base is None else 1
            if smaller.pieces_to_find < least:
                raise
            asked, trying = config.pieces_to_find, smaller.pieces_to_find
            context.note("vocab", f"the pilot's text cannot give {asked:,} pieces; trying {trying:,}")
            config = smaller


def _measured_build(context: RunContext, stage: str, *inputs: Any) -> tuple[Artifact, Measurement]:
    began = time.perf_counter()
    with _peak_memory() as peak:
        artifact = BUILDERS[stage](context, *inputs)
    seconds = time.perf_counter() - began
    path = context.root / "measurements" / f"{stage}-{artifact.identity}.json"
    if not artifact.reused:
        measurement = Measurement(seconds, peak[0])
        write_sealed(path, asdict(measurement))
        return artifact, measurement
    if path.is_file():
        return artifact, Measurement(**read_sealed(path, "Remove it: the pilot measures again."))
    return artifact, Measurement(artifact.manifest["timings"]["seconds"], None)


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yields a list of one number: the most resident bytes of this process and its children until the block ends."""
    peak = [0]
    over = threading.Event()
    mine = psutil.Process()

    def look() -> None:
        while True:
            total = 0
            for process in (mine, *mine.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # A worker that has ended since it was listed.
            peak[0] = max(peak[0], total)
            if over.wait(_LOOK_SECONDS):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
