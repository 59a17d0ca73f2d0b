"""What became of each night: `ROOT/nights/RUN_ID.json`, and which files nights have taken."""

import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from flows.runs.roots import put_nightly_record
from model.checksummed_json import read_sealed, write_sealed
from tasks.artifacts.remote.metadata import NIGHT_LOST
from tasks.artifacts.remote.metadata import NIGHTS as FOLDER

UNDER_WAY, PROMOTED, BLOCKED, FAILED = "under way", "promoted", "blocked", "failed"

NOTHING, TOO_LITTLE, INTERRUPTED = "nothing new", "too little", "interrupted"

TAKEN = (PROMOTED, BLOCKED, NOTHING)
"""Ends of nights whose files the next one does not read again."""

Files = dict[str, dict[str, str]]
"""Source -> root-relative path -> digest."""


@dataclass
class Night:
    """One night, as far as it came."""

    run_id: str
    recipe: str
    state: str = UNDER_WAY
    why: str = ""
    began: float = field(default_factory=time.time)
    ended: float | None = None
    base: str | None = None
    """Run whose model it went on from; None of the first night."""
    chain: list[str] = field(default_factory=list)
    """Runs that the base went through, the first night first, the base last."""
    files: Files = field(default_factory=dict)
    """What was new."""
    documents: int | None = None
    """Documents of these that were new text, none of the benchmarks' and not held out."""
    tokens: int | None = None
    """Tokens that training read."""
    read_bytes: int | None = None
    """Bytes of the new files."""
    data_seconds: float | None = None
    """What the stages before training took for them."""
    epochs: dict[str, float] = field(default_factory=dict)
    """Source -> how often training read its new text."""
    unique_tokens: dict[str, int] = field(default_factory=dict)
    """Source -> tokens of new text, each counted once."""
    bits_before: float | None = None
    bits_after: float | None = None
    """Bits per byte of held-out text, mean of the sources, of the model before and of the night's."""
    verdict: list[dict[str, Any]] = field(default_factory=list)
    """Each figure of both models, and the chance that it is none the worse."""
    told: list[str] = field(default_factory=list)
    """What became of telling people."""

    def save(self, root: Path) -> None:
        """Write the record, in the store behind the root too."""
        write_sealed(root / FOLDER / f"{self.run_id}.json", asdict(self))
        put_nightly_record(root, self.run_id)


def list_nights(root: Path) -> list[Night]:
    """All nights under a root, oldest first."""
    known = {one.name for one in fields(Night)}
    found = [read_sealed(path, NIGHT_LOST) for path in (root / FOLDER).glob("*.json")]
    nights = [Night(**{key: value for key, value in one.items() if key in known}) for one in found]
    return sorted(nights, key=lambda night: (night.began, night.run_id))


def taken_files(nights: Iterable[Night], again: Collection[str] = ()) -> Files:
    """The files that nights have read to their end, each with its latest content; those of the nights `again` are left
    out."""
    taken: Files = {}
    for night in nights:
        if night.state in TAKEN and night.run_id not in again:
            for source, files in night.files.items():
                taken.setdefault(source, {}).update(files)
    return taken


def new_files(found: Files, taken: Files) -> Files:
    """What of `found` is not among `taken` with the same content; sources without anything new are left out."""
    new = {
        source: {path: digest for path, digest in files.items() if taken.get(source, {}).get(path) != digest}
        for source, files in found.items()
    }
    return {source: files for source, files in new.items() if files}


def chain_epochs(nights: Iterable[Night], chain: Collection[str]) -> dict[str, float]:
    """Source -> how often the text of a chain's nights was read, on the whole: tokens read over tokens there are."""
    read: dict[str, float] = {}
    there: dict[str, int] = {}
    for night in nights:
        if night.run_id in chain:
            for source, tokens in night.unique_tokens.items():
                there[source] = there.get(source, 0) + tokens
                read[source] = read.get(source, 0.0) + night.epochs[source] * tokens
    return {source: read[source] / tokens for source, tokens in there.items() if tokens}
