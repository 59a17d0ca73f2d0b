"""Building an artifact once: identity, lock, resume, conservation, atomic publication, reuse.

The root of all artifacts holds `artifacts/STAGE/IDENTITY`, `work/IDENTITY` (unfinished builds), `locks/`,
`inputs.json` and `runs/RUN_ID`. A stage calls `build_artifact` in its task body; Prefect only watches.
"""

import errno
import functools
import json
import logging
import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from model.durable import sync_directory, write_atomically
from model.errors import BessemerError, Infra, InputError, IntegrityError
from tasks.artifact import BUILT, MANIFEST, REPRODUCED, Artifact, content_digest
from tasks.code import PROJECT, code_closure
from tasks.config import StrictConfig
from tasks.identity import FORMAT, Identity, count_differences, first_difference, library_versions
from tasks.lock import build_lock
from tasks.provenance import git_state
from tasks.report import StageReport
from tasks.workspace import Workspace

log = logging.getLogger(__name__)

COMPARED_ARTIFACTS = 20
"""Latest artifacts of a stage among which the one most alike is looked for, to name the cause of a rebuild."""


@dataclass(frozen=True)
class Stage:
    """What the identity of a stage needs to know about it."""

    name: str
    roots: tuple[str, ...]
    """Modules of the pure stage functions, where the code closure begins."""
    libraries: tuple[str, ...]
    """Distributions whose versions decide the result."""


class Watcher:
    """Hears what happens to the stages of a run; this one stays silent, a flow's draws bars and keeps a record."""

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """`done` of `total` units of the named kind are finished (`total` None where nobody can know)."""

    def note(self, stage: str, sentence: str) -> None:
        """Something worth knowing: a wait, the cause of a rebuild."""

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        """The stage's artifact stands; its `outcome` and `cause` tell how it came to."""


@dataclass(frozen=True)
class RunContext:
    """Where a run builds, what it may build, and who watches."""

    root: Path
    run_id: str
    buildable: frozenset[str] | None = None
    """Stages that may be built in this run; None for all. Others must exist already."""
    forced: frozenset[str] = frozenset()
    """Stages to rebuild and compare even if they exist."""
    watcher: Watcher = field(default_factory=Watcher, compare=False)

    def progress_of(self, stage: str) -> Callable[[int, int | None, str], None]:
        """The progress listener bound to a stage."""
        return functools.partial(self.watcher.progress, stage)

    def note(self, stage: str, sentence: str) -> None:
        """Tell the watcher a sentence about a stage."""
        log.info("%s: %s", stage, sentence)
        self.watcher.note(stage, sentence)


Run = Callable[[Workspace], StageReport]


def stage_identity(
    stage: Stage, config: StrictConfig, parents: Mapping[str, Artifact], external: Mapping[str, str]
) -> Identity:
    """The identity of a stage's build: parents count by content, external files by their digests."""
    return Identity(
        stage=stage.name,
        code=code_closure(stage.roots),
        params=config.identity_params(),
        parents={**{name: parent.content for name, parent in parents.items()}, **external},
        libs=library_versions(stage.libraries),
    )


def build_artifact(
    context: RunContext,
    stage: Stage,
    config: StrictConfig,
    parents: Mapping[str, Artifact],
    run: Run,
    external: Mapping[str, str] | None = None,
) -> Artifact:
    """The stage's artifact under its identity: reused if it exists, else built by `run` and published atomically.

    Raises InputError when the stage may not be built in this run and no artifact exists, IntegrityError when a forced
    rebuild differs from what stands, Infra when the disk is full or fails, Bug when documents vanish.
    """
    began = time.monotonic()
    identity = stage_identity(stage, config, parents, external or {})
    target = context.root / "artifacts" / stage.name / identity.key
    forced = stage.name in context.forced
    if target.exists() and not forced:
        artifact = Artifact.open(target)
        context.watcher.finished(stage.name, artifact, time.monotonic() - began)
        return artifact
    cause = miss_cause(context.root, identity)
    if context.buildable is not None and stage.name not in context.buildable:
        raise InputError(
            f"{stage.name}: this run may only build {', '.join(sorted(context.buildable))}, and no artifact of"
            f" `{stage.name}` exists under the current identity {identity.key} ({cause})."
            f" Run without --only, or --from {stage.name}."
        )
    try:
        artifact = _build_locked(context, stage, identity, parents, run, target, forced, cause)
    except OSError as error:
        raise _infrastructure_error(stage, context.root, error) from error
    except MemoryError as error:
        raise Infra(
            f"{stage.name}: memory ran out. Finished parts are kept: run again with fewer workers, or with smaller"
            f" parts (sample.part_bytes), and the build goes on from them."
        ) from error
    context.watcher.finished(stage.name, artifact, time.monotonic() - began)
    return artifact


def _build_locked(
    context: RunContext,
    stage: Stage,
    identity: Identity,
    parents: Mapping[str, Artifact],
    run: Run,
    target: Path,
    forced: bool,
    cause: str,
) -> Artifact:
    work = context.root / "work" / (f"{identity.key}.force" if forced else identity.key)

    def on_wait(holder: str) -> None:
        context.note(stage.name, f"waiting: {holder} builds the same identity {identity.key}")

    with build_lock(context.root / "locks" / f"{identity.key}.lock", on_wait):
        if target.exists() and not forced:
            shutil.rmtree(work, ignore_errors=True)
            return Artifact.open(target)
        resumed = work.exists()
        why = "forced" if forced else f"{cause}; going on from what was finished" if resumed else cause
        context.note(stage.name, f"building {identity.key}: {why}")
        work.mkdir(parents=True, exist_ok=True)
        workspace = Workspace(work, context.progress_of(stage.name))
        workspace.clear_temporary()
        started = time.time()
        report = run(workspace)
        report.check_conservation(stage.name)
        manifest = _manifest(identity, parents, workspace, report, started, resumed, context.run_id)
        if forced and target.exists():
            return _compare(target, manifest, workspace, work)
        _publish(workspace, manifest, target)
        shutil.rmtree(work, ignore_errors=True)
    return Artifact.open(target, outcome=BUILT, cause=cause)


def _manifest(
    identity: Identity,
    parents: Mapping[str, Artifact],
    workspace: Workspace,
    report: StageReport,
    started: float,
    resumed: bool,
    run_id: str,
) -> dict[str, Any]:
    records = workspace.records()
    return {
        "format": FORMAT,
        "stage": identity.stage,
        "identity": identity.key,
        "identity_parts": identity.parts(),
        "content": content_digest(records),
        "files": [asdict(record) for record in records],
        "rows": {
            table: sum(record.rows for record in records if record.table == table)
            for table in sorted({record.table for record in records if record.table})
        },
        "bytes": sum(record.bytes for record in records),
        "report": report.to_json(),
        "parents": {
            name: {"stage": parent.stage, "identity": parent.identity, "content": parent.content}
            for name, parent in sorted(parents.items())
        },
        "exact": report.facts.get("exact", True),
        "timings": {"started": started, "seconds": time.time() - started, "resumed": resumed},
        "run": run_id,
        "host": platform.node(),
        "git": git_state(PROJECT),
    }


def _publish(workspace: Workspace, manifest: dict[str, Any], target: Path) -> None:
    """Links and manifest into a fresh folder, all durable, then one rename: no reader ever sees a part of it."""
    staging = workspace.folder / f"publish-{uuid.uuid4().hex[:8]}"
    staging.mkdir()
    workspace.publish_files(staging)
    write_atomically(staging / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(staging, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Another builder that slipped past the lock was first; the same identity holds the same bytes.
    sync_directory(target.parent)


def _compare(target: Path, manifest: dict[str, Any], workspace: Workspace, work: Path) -> Artifact:
    standing = Artifact.open(target)
    if standing.content == manifest["content"]:
        shutil.rmtree(work, ignore_errors=True)
        return replace(standing, outcome=REPRODUCED, cause="forced")
    conflict = target.with_name(f"{target.name}.conflict-{manifest['content'][:8]}")
    if not conflict.exists():
        _publish(workspace, manifest, conflict)
    shutil.rmtree(work, ignore_errors=True)
    before = {record.name: record.digest for record in standing.records}
    differing = [file["name"] for file in manifest["files"] if before.get(file["name"]) != file["digest"]]
    raise IntegrityError(
        f"{standing.stage}: a forced rebuild of {standing.identity} gave other bytes than the artifact that stands"
        f" (first difference: {differing[0] if differing else 'the set of files'}). Something outside the identity"
        f" decides the result. Both stay: {target} and {conflict}."
    )


def miss_cause(root: Path, identity: Identity) -> str:
    """Why no artifact stands under this identity: the first difference from the one of the stage that is most alike."""
    folder = root / "artifacts" / identity.stage
    candidates = [path for path in folder.glob(f"*/{MANIFEST}") if ".conflict-" not in path.parent.name]
    if not candidates:
        return "no artifact of this stage exists yet"
    latest = sorted(candidates, key=lambda path: path.stat().st_mtime_ns, reverse=True)[:COMPARED_ARTIFACTS]
    others = [json.loads(path.read_text())["identity_parts"] for path in latest]
    nearest = min(others, key=lambda other: count_differences(other, identity.parts()))
    return first_difference(nearest, identity.parts()) or "its folder was removed"


def _infrastructure_error(stage: Stage, root: Path, error: OSError) -> BessemerError:
    where = error.filename or root
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(root).free if root.exists() else 0
        return Infra(
            f"{stage.name}: no space left while writing {where} ({free / 1e9:.1f} GB free under {root})."
            f" Finished parts are kept: free some space and run again, and the build goes on from them."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(
            f"{stage.name}: {where} cannot be written ({error.strerror}). Give this user write permission, or choose"
            f" another root with --root."
        )
    if isinstance(error, FileNotFoundError):
        return InputError(f"{stage.name}: {where} disappeared while the stage ran; put it back and run again.")
    return Infra(f"{stage.name}: the operating system reported `{error}` at {where}; the stage will be retried.")
