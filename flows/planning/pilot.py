"""A small share of every source, taken down the road from sample to chunk for real, and measured on the way.

The pilot lives under `ROOT/pilots` with artifacts of its own, which are reused like any. Each record is in it or not
by the hash of its id, so that it is a simple random sample of what the recipe would select; every file is read once to
the end, which also counts the documents exactly.

How much of each source a pilot takes: the share asked for, and never so little that it tells nothing.

The pilot's bars: live while a stage works, and only the notes that change what the plan means.
"""

import importlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows.inspection.scan import StoredFile, count_records
from flows.recipe.schema import Recipe
from flows.reports.progress import ProgressBars
from flows.runs.pipeline import BUILDERS
from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener, RunContext
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import SourceFiles, find_files
from tasks.sample.mixture import plan_mixture
from tasks.vocab.config import VocabConfig

PILOTS = "pilots"

STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk")

HEAVY = (
    "tasks.sample.sampler",
    "tasks.clean.pipeline",
    "tasks.dedup.pipeline",
    "tasks.decontaminate.pipeline",
    "tasks.vocab.train",
    "tasks.chunk.pipeline",
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


@dataclass(frozen=True)
class PilotShare:
    """What a pilot takes of one source, as shares (0 to 1)."""

    of_selected: float
    """Of the documents that the recipe would select."""
    recipe_rate: float
    """The share of all documents that the recipe would select."""
    text_bytes: int
    """Bytes of text in the source's files."""
    raised: bool
    """Whether that is more than was asked for, because the source or the whole is small."""

    @property
    def of_all(self) -> float:
        """Of all documents in the files."""
        return self.of_selected * self.recipe_rate


@dataclass
class Pilot:
    """A finished pilot: artifacts and measurements by stage."""

    root: Path
    recipe: Recipe
    """The recipe as the pilot ran it."""
    shares: dict[str, PilotShare]
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    measured: dict[str, Measurement] = field(default_factory=dict)


def run_pilot(recipe: Recipe, root: Path, share: float, watcher: ProgressListener) -> Pilot:
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
    context = RunContext(place, run_id="pilot", listener=watcher)
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


LEAST_DOCUMENTS = 300
"""Documents of a source at least: a rule that drops a tenth is then known to 3 points either way."""

BYTES_PER_PIECE = 200
"""Stored bytes of the whole pilot for each piece of the vocabulary; on less, tokens per byte mislead."""


def pilot_shares(recipe: Recipe, listings: list[SourceFiles], share: float) -> dict[str, PilotShare]:
    """Source -> what the pilot takes of it."""
    plans = plan_mixture(recipe.sample, listings)
    selected = sum(plan.rate * plan.bytes for plan in plans.values())
    least_share = min(1.0, BYTES_PER_PIECE * recipe.vocab.pieces_to_find / max(1.0, selected))
    shares: dict[str, PilotShare] = {}
    for listing in listings:
        name = listing.source.name
        # What lies elsewhere is not looked at beforehand; its pilot is then decided by the share alone.
        files = [
            StoredFile(file.path, file.format, file.compression, file.size)
            for file in listing.files
            if isinstance(file.path, Path)
        ]
        documents = count_records(files).records * plans[name].rate
        enough_documents = LEAST_DOCUMENTS / max(1.0, documents) if files else 0.0
        least = min(1.0, max(least_share, enough_documents))
        shares[name] = PilotShare(max(share, least), plans[name].rate, plans[name].bytes, least > share)
    return shares


def pilot_sample(config: SampleConfig, listings: list[SourceFiles], shares: Mapping[str, PilotShare]) -> SampleConfig:
    """The sample stage's settings under which each source is kept at its pilot's rate.

    The stage keeps weight x budget tokens of a source; here a token is a byte, the budget is the pilot's bytes, and a
    source's weight is its share of them.
    """
    wanted = {listing.source.name: shares[listing.source.name] for listing in listings}
    kept = {name: share.of_all * max(1, share.text_bytes) for name, share in wanted.items()}
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
    """Bars without the sentences that a run would leave on the screen."""

    def note(self, stage: str, sentence: str) -> None:
        if not sentence.startswith("building "):
            super().note(f"pilot {stage}", sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        if stage in self._bars:
            self._progress.remove_task(self._bars.pop(stage))
