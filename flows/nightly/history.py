"""The record of each nightly run, `ROOT/nights/RUN_ID.json`, and which files nightly runs have read."""

import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TypedDict

from flows.runs.roots import put_nightly_record
from model.checksummed_json import read_sealed, write_sealed
from tasks.artifacts.remote.metadata import NIGHT_LOST
from tasks.artifacts.remote.metadata import NIGHTS as FOLDER

UNDER_WAY, PROMOTED, BLOCKED, FAILED = "under way", "promoted", "blocked", "failed"

NOTHING, TOO_LITTLE, INTERRUPTED = "nothing new", "too little", "interrupted"

TAKEN = (PROMOTED, BLOCKED, NOTHING)
"""States of nightly runs whose files the next one does not read again."""

Files = dict[str, dict[str, str]]
"""Source -> root-relative path -> digest."""


class JudgedFigure(TypedDict):
    """A `Regression` as JSON, and whether it blocks the promotion."""

    what: str
    n: int
    before: float
    after: float
    worse_by: float
    chance: float
    blocks: bool


@dataclass
class Night:
    """The record of a nightly run."""

    run_id: str
    recipe: str
    state: str = UNDER_WAY
    why: str = ""
    began: float = field(default_factory=time.time)
    ended: float | None = None
    base: str | None = None
    """Run whose model it continued from; None for the first nightly run."""
    chain: list[str] = field(default_factory=list)
    """Runs that led to the base, the first nightly run first, the base last."""
    files: Files = field(default_factory=dict)
    """The new files."""
    documents: int | None = None
    """Documents of new text in these, without leaked and held-out ones."""
    tokens: int | None = None
    """Tokens that training read."""
    read_bytes: int | None = None
    """Bytes of the new files."""
    data_seconds: float | None = None
    """Time of the stages before training."""
    epochs: dict[str, float] = field(default_factory=dict)
    """Source -> how many times training read its new text."""
    unique_tokens: dict[str, int] = field(default_factory=dict)
    """Source -> tokens of new text, each counted once."""
    bits_before: float | None = None
    bits_after: float | None = None
    """Bits per byte of held-out text, mean of the sources, of the previous model and of the new one."""
    verdict: list[JudgedFigure] = field(default_factory=list)
    """Each figure of both models, and the probability that the new one is no worse."""
    warnings: list[str] = field(default_factory=list)
    """Sentences without full stop about what the comparison cannot find."""
    notified: list[str] = field(default_factory=list)
    """Outcome of each notification."""

    def save(self, root: Path) -> None:
        """Write the record, also to the object store behind the root."""
        write_sealed(root / FOLDER / f"{self.run_id}.json", asdict(self))
        put_nightly_record(root, self.run_id)


def list_nights(root: Path) -> list[Night]:
    """Return all nightly runs under a root, oldest first."""
    known = {one.name for one in fields(Night)}
    found = [read_sealed(path, NIGHT_LOST) for path in (root / FOLDER).glob("*.json")]
    nights = [Night(**{key: value for key, value in one.items() if key in known}) for one in found]
    return sorted(nights, key=lambda night: (night.began, night.run_id))


def taken_files(nights: Iterable[Night], again: Collection[str] = ()) -> Files:
    """Return the files that nightly runs finished reading, each with its latest digest, without those of `again`."""
    taken: Files = {}
    for night in nights:
        if night.state in TAKEN and night.run_id not in again:
            for source, files in night.files.items():
                taken.setdefault(source, {}).update(files)
    return taken


def new_files(found: Files, taken: Files) -> Files:
    """Return the files of `found` that are not in `taken` with the same digest, without sources that have none."""
    new = {
        source: {path: digest for path, digest in files.items() if taken.get(source, {}).get(path) != digest}
        for source, files in found.items()
    }
    return {source: files for source, files in new.items() if files}


def chain_epochs(nights: Iterable[Night], chain: Collection[str]) -> dict[str, float]:
    """Return by source how many times a chain of nightly runs read its text: tokens read over tokens available."""
    read: dict[str, float] = {}
    there: dict[str, int] = {}
    for night in nights:
        if night.run_id in chain:
            for source, tokens in night.unique_tokens.items():
                there[source] = there.get(source, 0) + tokens
                read[source] = read.get(source, 0.0) + night.epochs[source] * tokens
    return {source: read[source] / tokens for source, tokens in there.items() if tokens}
