"""One byte changed at a time, in every file of a finished root: `verify` finds it, and what reads the file refuses it.

A refusal is a BessemerError that names the file, or a warning that names it where the file is ignored. Pages, reports
and logs are read by people alone: there a change is harmless.
"""

import json
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from flows.experiments.search_config import SearchConfig
from flows.experiments.study import Study, StudyRequest, add_manual_trial, reopen
from flows.experiments.trial_log import TrialLog
from flows.metrics.run_metrics import read_saved_metrics
from flows.nightly.history import Night, list_nights
from flows.recipe.load import load_recipe
from flows.recipe.resolve import apply_mixture_weights
from flows.reports.page.page import write_run_page
from flows.runs.model_registry import Promotion, history
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import list_runs, recipe_of, warn_once
from flows.runs.run import Run
from flows.service.files import Known, ServiceFiles
from flows.service.processes import started
from flows.upkeep.root_records import records_under
from flows.upkeep.verify import verify
from model.checkpoint.checkpoint import STATE, checkpoint_at
from model.checkpoint.complete_marker import complete, find_damage
from model.checkpoint.metrics import MetricsLog
from model.checkpoint.run_folder import steps_before
from model.checksummed_json import read_sealed, write_sealed
from model.config.train import read_run
from model.digests import digest_bytes
from model.errors import BessemerError, IntegrityError
from model.guard.decisions import Decision, read_decisions
from model.guard.guard import write_decision
from model.launch.failures import RestartLog, read_restarts
from tasks.artifacts import published
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.identity import Identity
from tasks.artifacts.lease import build_lease, ignore, is_held
from tasks.artifacts.published import artifacts_under
from tasks.artifacts.remote.metadata import read_record
from tasks.artifacts.reuse import Alias, other_version, read_alias, write_identity
from tasks.artifacts.reuse import write_alias as write_accepted
from tasks.artifacts.workspace import Workspace
from tasks.common.code_fingerprint import Code
from tasks.common.digests import InputDigests

from .conftest import Joint, Tally

SMALL = (
    'budget_tokens="6K"',
    "train.checkpoint_steps=4",
    "train.model.layers=1",
    "train.model.width=16",
    "vocab.vocab_size=400",
)
FIRST, SECOND = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"
TOKEN, OTHER_TOKEN = "ab" * 16, "cd" * 16
MADE_UP = Identity("sample", Code("ef" * 16, (), {}), {}, {}, {})
"""Of an unfinished build that no stage began."""
EVERYWHERE = 33
"""At one flip in so many the whole root is verified, and not only the artifact or record of the file."""
FOR_PEOPLE = (".html", ".md", ".log")
HARMLESS = "pages and logs"


@dataclass(frozen=True)
class Finished:
    """A root with records of every kind, and all its files that hold a byte."""

    root: Path
    files: tuple[Path, ...]

    def select(self, kind: str) -> list[Path]:
        """Return the files of a kind."""
        return [path for path in self.files if name_kind(path.relative_to(self.root)) == kind]


def name_kind(place: Path) -> str:
    """Return the kind of a file by its place in a root."""
    if place.suffix in FOR_PEOPLE:
        return HARMLESS
    if place.parts[0] == "artifacts":
        return "manifests" if place.name == "manifest.json" else "files of artifacts"
    return {"runs": "runs", "locks": "leases", "work": "unfinished builds"}.get(place.parts[0], "other records")


SHARES = {
    "manifests": 2000,
    "files of artifacts": 2500,
    "runs": 1500,
    "other records": 1700,
    "leases": 600,
    "unfinished builds": 1500,
    HARMLESS: 200,
}
"""Flips of the proof, 10,000 in all; the ordinary tests try one in 33."""


@pytest.fixture(scope="module")
def first_stages(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Build a root in which a run ended after three stages."""
    root = tmp_path_factory.mktemp("first-stages")
    run_recipe(foundry, root, FIRST, until="dedup")
    write_records(foundry, root)
    return list_files(root)


@pytest.fixture(scope="module")
def all_stages(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Build a root with all eight stages, and a training that paused."""
    root = tmp_path_factory.mktemp("all-stages")
    run_recipe(foundry, root, FIRST)
    run_recipe(foundry, root, SECOND, "train.pause_share=0.7", "train.schedule.peak_lr=0.001")
    assert {path.parent.name for path in artifacts_under(root)} == set(BUILDERS)
    assert list(root.glob("work/*/scratch/train/checkpoints/*")), "the second training left no checkpoint"
    write_records(foundry, root)
    return list_files(root)


class Task:
    """A stage as `Run.step` takes it, built in this process."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *inputs: Any) -> Artifact:
        return BUILDERS[self.name](*inputs)


def run_recipe(foundry: Path, root: Path, run_id: str, *settings: str, until: str | None = None) -> None:
    """Run the small recipe in this process, and write its page."""
    recipe = load_recipe(foundry / "foundry.toml", root, (*SMALL, *settings))
    with Run(recipe, root, until=until, run_id=run_id) as run:
        run_stages(recipe, lambda stage, *inputs: run.step(Task(stage), *inputs))
    write_run_page(run)


def write_records(foundry: Path, root: Path) -> None:
    """Write a record of every other kind that this project keeps in a root."""
    words = ("code.x: a -> b",)
    write_accepted(root, Alias("clean", TOKEN, OTHER_TOKEN, OTHER_TOKEN, words, "me", "today", "a comment"))
    write_sealed(root / "promotions" / "000001" / "promotion.json", asdict(Promotion(1, FIRST, "me", "now", "", None)))
    Night(FIRST, "foundry").save(root)
    write_sealed(root / "measurements" / f"clean-{TOKEN}.json", {"seconds": 1.0, "peak": None})
    write_sealed(root / "mixtures" / "foundry" / "weights.json", {"weights": {"notes": 0.25, "code": 0.75}})
    write_sealed(root / "mixtures" / "foundry" / "runs.json", {"runs": [FIRST]})
    write_sealed(root / "ablations" / "foundry" / "runs.json", {"base 1": FIRST})
    space = {"train.schedule.peak_lr": {"low": 1e-4, "high": 1e-2, "log": True}}
    search = SearchConfig.model_validate({"name": "foundry", "space": space})
    study = Study(StudyRequest(foundry / "foundry.toml", SMALL), search, root)
    study.log.begin(study.log.add("recipe", {"train.schedule.peak_lr": 0.001}, FIRST), 0)
    add_manual_trial(study, {"train.schedule.peak_lr": 0.002})
    ServiceFiles(root).remember(Known("here", 4200))
    write_sealed(ServiceFiles(root).server.record, {"pid": os.getpid(), "started": started(os.getpid())})
    with build_lease(root / "locks" / "held", ignore):
        (root / "locks" / "living").mkdir()
        shutil.copy(root / "locks" / "held" / "1.lease", root / "locks" / "living")
    write_unfinished(root)
    for path in (root / "runs" / FIRST / "report.md", root / "runs" / FIRST / "train.log"):
        path.write_text("read by people\n")


def write_unfinished(root: Path) -> None:
    """Write a build with a finished unit, and a training with all that one may keep."""
    workspace = Workspace(root / "work" / f"{MADE_UP.key}.000001-cd")
    workspace.folder.mkdir(parents=True)
    write_identity(workspace.folder, MADE_UP)
    with workspace.unit("00000") as unit:
        unit.path("a.txt").write_text("iron")
        unit.add_file("a.txt")
    out = workspace.scratch("train")
    for folder in (out / "checkpoints" / "step-000000010", out / "result"):
        folder.mkdir(parents=True)
        (folder / STATE).write_text(json.dumps({"attempt": 0}))
        complete(folder)
    write_decision(out, Decision(attempt=1, by="hand", cause="", onset=1, step=1, to_step=0), MetricsLog())
    RestartLog(out).append("restart", step=1)
    RestartLog(out).append("restart", step=2)


def list_files(root: Path) -> Finished:
    """List all files of a root that hold a byte."""
    return Finished(root, tuple(sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)))


class Reading:
    """The ordinary readers of a root's files, each True where it accepts a file; collects their warnings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._warnings: list[str] = []
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self._warnings.append(record.getMessage())

    @contextmanager
    def collect_warnings(self) -> Iterator[None]:
        """Collect the warnings of all modules."""
        logger = logging.getLogger()
        logger.addHandler(self._handler)
        try:
            yield
        finally:
            logger.removeHandler(self._handler)

    def read(self, path: Path) -> str:
        """Read a file with its ordinary reader, as a process that has read nothing yet; return the refusal, empty where
        the reader accepts the file."""
        self._warnings.clear()
        warn_once.cache_clear()
        published._check.cache_clear()
        place = path.relative_to(self.root)
        accepts = next((accepts for pattern, accepts in READERS if place.match(pattern)), None)
        assert accepts is not None, f"no reader is known for {place}"
        try:
            accepted = accepts(self, path)
        except BessemerError as error:
            return str(error)
        return "" if accepted else "; ".join(self._warnings)

    def accepts_manifest(self, path: Path) -> bool:
        return bool(Artifact.open(path.parent))

    def accepts_file_of_artifact(self, path: Path) -> bool:
        artifact = Artifact.open(path.parent)
        (table,) = (record.table for record in artifact.records if record.name == path.name)
        return artifact.table(table).num_columns > 0 if table else artifact.file(path.name) == path

    def accepts_run(self, path: Path) -> bool:
        listed = [record["run_id"] for record in list_runs(self.root)]
        return path.parent.name in listed or not read_record(path)

    def accepts_recipe(self, path: Path) -> bool:
        return bool(recipe_of(path.parent))

    def accepts_metrics(self, path: Path) -> bool:
        return read_saved_metrics(read_record(path.with_name("run.json"))) is not None

    def accepts_inputs(self, path: Path) -> bool:
        InputDigests(path)
        return not self._warnings

    def accepts_alias(self, path: Path) -> bool:
        return read_alias(self.root, path.parent.name, path.stem) is not None

    def accepts_promotion(self, path: Path) -> bool:
        return [one.run_id for one in history(self.root)] == [FIRST]

    def accepts_night(self, path: Path) -> bool:
        return [one.run_id for one in list_nights(self.root)] == [FIRST]

    def accepts_record(self, path: Path) -> bool:
        return bool(read_sealed(path, ""))

    def accepts_weights(self, path: Path) -> bool:
        sources = [{"name": "notes"}, {"name": "code"}]
        return bool(apply_mixture_weights(sources, path, path.parent, "foundry.toml"))

    def accepts_study(self, path: Path) -> bool:
        return bool(reopen(self.root, path.parent.name))

    def accepts_trial_log(self, path: Path) -> bool:
        return len(TrialLog(path).trials) == 1

    def accepts_address(self, path: Path) -> bool:
        known = ServiceFiles(self.root).known
        return (known.host, known.port) == ("here", 4200)

    def accepts_process(self, path: Path) -> bool:
        return ServiceFiles(self.root).server.pid() == os.getpid()

    def accepts_lease(self, path: Path) -> bool:
        given_back = b"    released"
        if not is_held(path.parent):
            if path.read_bytes().startswith(given_back + b" " + digest_bytes(given_back).encode()):
                # The rest, which names the holder, is not read of such a lease.
                self._warnings.append(f"{path} was given back")
            return False

        def refuse_wait(holder: str) -> None:
            self._warnings.append(f"{path} is waited for: {holder}")
            raise IntegrityError(self._warnings[-1])

        with pytest.raises(IntegrityError), build_lease(path.parent, refuse_wait):
            pass
        return "whose lease is damaged" not in self._warnings[-1]

    def accepts_unit(self, path: Path) -> bool:
        workspace = Workspace(path.parents[1])
        records = {record: record.read_bytes() for record in workspace.folder.glob("units/*.json")}
        try:
            return all(workspace.finished(record.stem) is not None for record in records)
        finally:
            for record, data in records.items():
                if not record.exists():
                    record.write_bytes(data)

    def accepts_identity(self, path: Path) -> bool:
        other = replace(MADE_UP, code=Code("01" * 16, (), {}))
        return other_version(self.root, other) is not None and not self._warnings

    def accepts_trainer_run(self, path: Path) -> bool:
        return bool(read_run(path))

    def accepts_restarts(self, path: Path) -> bool:
        return len(read_restarts(path.parent)) == 2

    def accepts_checkpoint(self, path: Path) -> bool:
        return bool(checkpoint_at(path.parents[1], steps_before(path.parent), {}))

    def accepts_decision(self, path: Path) -> bool:
        return len(read_decisions(path.parents[2])) == 1

    def accepts_result(self, path: Path) -> bool:
        if reason := find_damage(path.parent):
            raise IntegrityError(reason)
        return True


READERS: tuple[tuple[str, Callable[[Reading, Path], bool]], ...] = (
    ("artifacts/*/*/manifest.json", Reading.accepts_manifest),
    ("artifacts/*/*/*", Reading.accepts_file_of_artifact),
    ("runs/*/run.json", Reading.accepts_run),
    ("runs/*/recipe.json", Reading.accepts_recipe),
    ("runs/*/findings.json", Reading.accepts_metrics),
    ("inputs.json", Reading.accepts_inputs),
    ("aliases/*/*.json", Reading.accepts_alias),
    ("promotions/*/promotion.json", Reading.accepts_promotion),
    ("nights/*.json", Reading.accepts_night),
    ("measurements/*.json", Reading.accepts_record),
    ("mixtures/*/weights.json", Reading.accepts_weights),
    ("*/*/runs.json", Reading.accepts_record),
    ("searches/*/study.json", Reading.accepts_study),
    ("searches/*/*.jsonl", Reading.accepts_trial_log),
    ("searches/*/*/*.json", Reading.accepts_record),
    ("service/address.json", Reading.accepts_address),
    ("service/server.json", Reading.accepts_process),
    ("locks/*/*.lease", Reading.accepts_lease),
    ("work/*/units/*.json", Reading.accepts_unit),
    ("work/*/files/*", Reading.accepts_unit),
    ("work/*/identity.json", Reading.accepts_identity),
    ("work/*/seconds.json", Reading.accepts_record),
    ("work/*/scratch/train/run.json", Reading.accepts_trainer_run),
    ("work/*/scratch/train/restarts.jsonl", Reading.accepts_restarts),
    ("work/*/scratch/train/checkpoints/*/*", Reading.accepts_checkpoint),
    ("work/*/scratch/train/attempts/*/*", Reading.accepts_decision),
    ("work/*/scratch/train/result/*", Reading.accepts_result),
)
"""The reader of each file: that of the first pattern which its place matches."""


@contextmanager
def change_byte(path: Path, at: int, value: int) -> Iterator[None]:
    """Give one byte of a file another value within the block."""
    (before,) = path.read_bytes()[at : at + 1]

    def write(byte: int) -> None:
        handle = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(handle, bytes([byte]), at)
        finally:
            os.close(handle)

    write(value)
    try:
        yield
    finally:
        write(before)


def find_owners(finished: Finished, path: Path) -> tuple[list[Path], list[Path]]:
    """Find the folders of artifacts, and the records, to which a file belongs."""
    folders = [folder for folder in artifacts_under(finished.root) if folder in path.parents]
    unit = [path.parents[1] / "units" / "00000.json"] if path.parent.name == "files" else []
    records = [record for record in records_under(finished.root) if record in (path, *path.parents, *unit)]
    return folders, records


def find_miss(reading: Reading, path: Path, folders: list[Path], records: list[Path], owner: Path) -> str:
    """Verify and read while a byte of a file is changed; return what did not hold, empty where all did."""
    try:
        damages = verify(folders, records=records).damages
        refusal = reading.read(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    places = {damage.place for damage in damages}
    named = any(path.name in f"{damage.place} {damage.file} {damage.problem}" for damage in damages)
    if places != {owner} or not named:
        return f"verify names {[str(place) for place in places] or 'nothing'}"
    return "" if path.name in refusal else f"its reader answers {refusal!r}"


def draw_flip(kind: str, number: int, files: list[Path]) -> tuple[Path, int, int]:
    """Draw a file, as often a small one as a large one, the place of a byte in it, and another value for the byte."""
    path, draw = files[number % len(files)], random.Random(f"{kind} {number}")
    at = draw.randrange(path.stat().st_size)
    return path, at, (path.read_bytes()[at] + draw.randrange(1, 256)) % 256


def flip_all(finished: Finished, kind: str, flips: int, tally: Tally) -> None:
    """Change `flips` bytes in the files of a kind, and expect each change to be found."""
    files = finished.select(kind)
    assert files, f"the root holds no {kind}"
    everything = artifacts_under(finished.root), records_under(finished.root)
    owners = {path: find_owners(finished, path) for path in files}
    reading, tried = Reading(finished.root), Counter[str]()
    with reading.collect_warnings():
        for number in range(flips):
            path, at, value = draw_flip(kind, number, files)
            folders, records = owners[path]
            tried[path.suffix or path.name] += 1
            if len(folders) + len(records) == 1:
                where = everything if number % EVERYWHERE == 0 else (folders, records)
                with change_byte(path, at, value):
                    miss = find_miss(reading, path, *where, owner=[*folders, *records][0])
            else:
                miss = "`verify` does not cover this file"
            tally.expect(not miss, f"{path.relative_to(finished.root)}, byte {at} to {value:#04x}: {miss}")
    tally.note = f"{len(files)} files; {', '.join(f'{name} {count}' for name, count in tried.most_common())}"


def flip_harmless(finished: Finished, kind: str, flips: int, tally: Tally) -> None:
    """Change `flips` bytes of files that people alone read, and expect that nothing is named."""
    files = finished.select(kind)
    for number in range(flips):
        path, at, value = draw_flip(kind, number, files)
        with change_byte(path, at, value):
            found = verify(artifacts_under(finished.root), records=records_under(finished.root)).damages
        tally.expect(not found, f"{path}, byte {at}: verify names {found}")
    tally.note = f"harmless: {', '.join(sorted({path.name for path in files}))}"


def prove(finished: Finished, kind: str, flips: int, joint: Joint) -> None:
    """Count flips of a kind, and those that were found."""
    with joint(f"flipped bytes: {kind}") as tally:
        (flip_harmless if kind == HARMLESS else flip_all)(finished, kind, flips, tally)


def expect_whole(finished: Finished) -> None:
    """Expect that nothing is named, and that every reader accepts its file, where no byte was changed."""
    found = verify(artifacts_under(finished.root), records=records_under(finished.root))
    assert found.damages == ()
    reading = Reading(finished.root)
    with reading.collect_warnings():
        refusals = {path: reading.read(path) for path in finished.files if path.suffix not in FOR_PEOPLE}
    leases = set(finished.select("leases")) - {finished.root / "locks" / "living" / "1.lease"}
    assert {path: text for path, text in refusals.items() if text} == {
        path: f"{path} was given back" for path in leases
    }


def test_every_file_is_accepted_as_it_is(first_stages: Finished) -> None:
    expect_whole(first_stages)


@pytest.mark.parametrize("kind", SHARES)
def test_a_changed_byte_is_found(first_stages: Finished, joint: Joint, kind: str) -> None:
    prove(first_stages, kind, SHARES[kind] // 33, joint)


@pytest.mark.joints
def test_every_file_of_a_finished_root_is_accepted_as_it_is(all_stages: Finished) -> None:
    expect_whole(all_stages)


@pytest.mark.joints
@pytest.mark.parametrize("kind", SHARES)
def test_a_changed_byte_of_a_finished_root_is_found(all_stages: Finished, joint: Joint, kind: str) -> None:
    assert sum(SHARES.values()) == 10_000
    prove(all_stages, kind, SHARES[kind], joint)
    expect_whole(all_stages)
