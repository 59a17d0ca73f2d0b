"""Run a pilot: the stages from sample to chunk on a small share of every source, with time and memory measured.

A pilot has artifacts of its own under `ROOT/pilots`, which are reused like any. A record is selected by the hash of its
id, so the pilot is a simple random sample of what the recipe would select. Every file is read to its end, which also
counts the documents exactly.
"""

import importlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from flows.inspection.file_head import StoredFile, count_records
from flows.planning.preconditions import find_source_files
from flows.recipe.schema import Recipe
from flows.reports.progress import ProgressBars
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.shredding import PILOTS
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.build import ProgressListener, RunContext
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import SourceFiles
from tasks.sample.mixture import plan_mixture
from tasks.vocab.config import VocabConfig

HEAVY = (
    "tasks.sample.sampler",
    "tasks.clean.pipeline",
    "tasks.dedup.pipeline",
    "tasks.decontaminate.pipeline",
    "tasks.vocab.train",
    "tasks.chunk.pipeline",
)
"""Modules that are imported before time is measured, because a pilot may take only seconds."""

SMALLEST_VOCABULARY = 300

MEMORY_POLL_SECONDS = 0.02

MIN_DOCUMENTS = 300
"""Minimum of documents per source: the share that a rule drops is then known to 3 points, if it is a tenth."""

BYTES_PER_TOKEN_TYPE = 200
"""Minimum of stored bytes in the pilot for each vocabulary entry; with less, tokens per byte mislead."""


@dataclass(frozen=True)
class PilotShare:
    """The share (0 to 1) of one source in a pilot."""

    of_selected: float
    """Share of the documents that the recipe would select."""
    recipe_rate: float
    """Share of all documents that the recipe would select."""
    text_bytes: int
    """Bytes of text in the source's files."""
    raised: bool
    """Whether the share was raised above the requested one, because the source or the whole corpus is small."""


@dataclass(frozen=True)
class Measurement:
    """Time and memory of building one stage."""

    seconds: float
    peak_bytes: int | None
    """Peak memory of this process and its children together; None where the artifact was built elsewhere."""


@dataclass
class Pilot:
    """A pilot: artifacts and measurements by stage."""

    root: Path
    shares: dict[str, PilotShare]
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    measured: dict[str, Measurement] = field(default_factory=dict)


def run_pilot(recipe: Recipe, root: Path, share: float, watcher: ProgressListener) -> Pilot:
    """Build the pilot of `recipe`, a `share` (0 to 1) of what it would select from each source.

    Raises what a run would raise, such as for a missing input or a limit that stops a stage.
    """
    place = root / PILOTS
    listings = find_source_files(recipe)
    shares = pilot_shares(recipe, listings, share)
    # Nothing is held out: how much a run holds out follows from the recipe's limits, not from a pilot.
    small = recipe.model_copy(
        update={
            "sample": pilot_sample(recipe.sample, shares),
            "decontaminate": recipe.decontaminate.model_copy(update={"heldout_share": 0.0}),
        }
    )
    pilot = Pilot(place, shares)
    context = RunContext(place, run_id="pilot", listener=watcher)
    for name in HEAVY:
        importlib.import_module(name)

    def step(stage: str, *inputs: Any) -> Artifact:
        build = partial(_measured_build, context, stage, *inputs[:-1])
        found = _vocabulary(build, inputs[-1], context) if stage == "vocab" else build(inputs[-1])
        artifact, pilot.measured[stage] = found
        return artifact

    pilot.artifacts = run_stages(small, step, until="chunk")
    return pilot


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
        return artifact, Measurement(**read_sealed(path, "Remove it, and the pilot measures again."))
    return artifact, Measurement(manifest_of(artifact)["timings"]["seconds"], None)


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yield a list of one number: the peak resident bytes of this process and its children until the block ends."""
    peak = [0]
    done = threading.Event()
    this_process = psutil.Process()

    def poll() -> None:
        while True:
            total = 0
            for process in (this_process, *this_process.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # The process ended after it was listed.
            peak[0] = max(peak[0], total)
            if done.wait(MEMORY_POLL_SECONDS):
                return

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _vocabulary(
    build: Callable[[VocabConfig], tuple[Artifact, Measurement]], config: VocabConfig, context: RunContext
) -> tuple[Artifact, Measurement]:
    """Build a vocabulary of the recipe's size, halved until the pilot's text is enough for it."""
    while True:
        try:
            return build(config)
        except InputError:
            smaller = config.halved()
            least = SMALLEST_VOCABULARY if config.base is None else 1
            if smaller.pieces_to_find < least:
                raise
            wanted, trying = config.pieces_to_find, smaller.pieces_to_find
            context.note("vocab", f"the pilot's text is too small for {wanted:,} tokens; trying {trying:,}")
            config = smaller


def pilot_shares(recipe: Recipe, listings: list[SourceFiles], share: float) -> dict[str, PilotShare]:
    """Return the share of each source in the pilot: `share`, or more for small sources."""
    plans = plan_mixture(recipe.sample, listings)
    selected = sum(plan["rate"] * plan["bytes"] for plan in plans.values())
    min_share = min(1.0, BYTES_PER_TOKEN_TYPE * recipe.vocab.pieces_to_find / max(1.0, selected))
    shares: dict[str, PilotShare] = {}
    for listing in listings:
        name = listing.source.name
        # Remote files are not opened here; their share is not raised for the number of documents.
        files = [
            StoredFile(file.path, file.format, file.compression, file.size)
            for file in listing.files
            if isinstance(file.path, Path)
        ]
        documents = count_records(files).records * plans[name]["rate"]
        enough_documents = MIN_DOCUMENTS / max(1.0, documents) if files else 0.0
        minimum = min(1.0, max(min_share, enough_documents))
        shares[name] = PilotShare(max(share, minimum), plans[name]["rate"], plans[name]["bytes"], minimum > share)
    return shares


def pilot_sample(config: SampleConfig, shares: Mapping[str, PilotShare]) -> SampleConfig:
    """Return the sample stage's settings that select each source at its share in the pilot.

    The stage selects weight x budget tokens of a source; here a token is a byte, the budget is the pilot's bytes, and
    a source's weight is its share of them.
    """
    kept = {name: share.of_selected * share.recipe_rate * max(1, share.text_bytes) for name, share in shares.items()}
    budget = sum(kept.values())
    sources = tuple(
        source.model_copy(update={"weight": kept[source.name] / budget, "tokens": None}) for source in config.sources
    )
    return config.model_copy(
        update={
            "sources": sources,
            "budget_tokens": math.ceil(budget),
            "bytes_per_token": 1.0,
            "tokens_per_byte": {},
            "temperature": None,
            "slack": 1.0,
            "limit": 1.0,
            "normalise_weights": True,
        }
    )


class PilotBars(ProgressBars):
    """Progress bars that print only notes that affect the estimate."""

    def note(self, stage: str, sentence: str) -> None:
        if not sentence.startswith("building "):
            super().note(f"pilot {stage}", sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        if stage in self._bars:
            self._progress.remove_task(self._bars.pop(stage))
