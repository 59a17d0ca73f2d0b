"""Build an artifact once: identity, reuse, lease, resume, conservation, atomic publication.

The root of all artifacts holds `artifacts/STAGE/IDENTITY`, `aliases/STAGE/IDENTITY.json` (manually accepted artifacts),
`work/IDENTITY.TOKEN` (unfinished builds), `locks/IDENTITY`, `inputs.json` and `runs/RUN_ID`. A stage calls
`build_artifact` in its task body; Prefect only observes.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from model.checksummed_json import find_sealed, seal
from model.environment import trainer_environment
from model.errors import BessemerError, Infra, InputError, IntegrityError
from model.files import DISK_FULL, NOT_WRITABLE, replace_durably
from tasks.artifacts.artifact import ACCEPTED, BUILT, Artifact, manifest_of
from tasks.artifacts.identity import Identity, library_versions
from tasks.artifacts.lease import LEASE_SECONDS, FolderLease, build_lease, is_held
from tasks.artifacts.limits import Limits
from tasks.artifacts.manifest import HINT, MANIFEST, parent_problem, rows_by_table
from tasks.artifacts.publish import FORCED, compare, make_manifest
from tasks.artifacts.remote.mirror import RemoteMirror
from tasks.artifacts.remote.partial_builds import ResumeFiles
from tasks.artifacts.remote.retries import report_waits
from tasks.artifacts.report import StageReport
from tasks.artifacts.reuse import NONE_YET, CacheMiss, explain_miss, read_alias, write_identity
from tasks.artifacts.workspace import Workspace, sweep, take_over
from tasks.common.code_cache import cached_code_of

if TYPE_CHECKING:
    from tasks.common.config import StrictConfig

log = logging.getLogger(__name__)

SPENT = "seconds.json"
"""File in the folder of an unfinished build: the seconds of its attempts that an error, a pause or a signal ended."""

DOCUMENTS = "documents"
"""The parent whose documents a stage reads, and the table that holds them."""


@dataclass(frozen=True)
class Stage:
    """The declaration of a stage: what its identity counts besides configuration and parents."""

    name: str
    roots: tuple[str, ...]
    """The roots of the code that counts: `module:name` of functions, or a module that counts whole."""
    libraries: tuple[str, ...]
    """Distributions whose versions decide the result."""
    given: Mapping[str, str] | None = None
    """Environment variables of the separate process in which it runs; None for a stage that runs in this process."""
    resume_files: ResumeFiles = lambda scratch: ()
    """Files of an unfinished build's scratch folder that another machine needs to resume it; none for stages that
    resume from their finished units alone."""


class ProgressListener:
    """Receives what happens to the stages of a run; this one ignores it, those of a flow draw bars and keep a
    record."""

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Receive that `done` of `total` units of the named kind are finished; `total` is None if it is unknown."""

    def note(self, stage: str, sentence: str) -> None:
        """Receive a sentence worth showing: a wait, the cause of a rebuild."""

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        """Receive the stage's artifact; its `outcome` and `cause` say how the run got it."""


@dataclass(frozen=True)
class RunContext:
    """Where a run builds, what it may build, and who is informed."""

    root: Path
    run_id: str
    buildable: frozenset[str] | None = None
    """Stages that may be built in this run; None for all. The artifacts of others must exist."""
    forced: frozenset[str] = frozenset()
    """Stages to rebuild and compare even if they exist."""
    dry: bool = False
    """Build nothing: raise WouldBuild before the first build."""
    guessing: bool = False
    """The parents are placeholders for artifacts yet to be built: no limits are checked for what is reused."""
    listener: ProgressListener = field(default_factory=ProgressListener, compare=False)
    replay_of: Path | None = field(default=None, compare=False)
    """A trained model whose checkpoints train may continue, as far as its order began with the same rows."""
    lease_seconds: float = LEASE_SECONDS
    """Silence, in seconds, after which this run takes over from the builder of an artifact that it waits for."""

    def note(self, stage: str, sentence: str) -> None:
        """Log a sentence about a stage and pass it to the listener."""
        log.info("%s: %s", stage, sentence)
        self.listener.note(stage, sentence)


class WouldBuild(Exception):
    """Raised in a dry run at the first artifact that does not exist."""

    def __init__(self, identity: Identity, miss: CacheMiss) -> None:
        super().__init__(f"{identity.stage}: {miss.cause}")
        self.identity = identity
        self.miss = miss


Run = Callable[[Workspace], StageReport]

NO_LIMITS = Limits()


def stage_identity(
    stage: Stage, config: StrictConfig, parents: Mapping[str, Artifact], external: Mapping[str, str]
) -> Identity:
    """Return the identity of a stage's build: parents count by content, external files by their digests."""
    return Identity(
        stage=stage.name,
        code=cached_code_of(stage.roots),
        params=config.identity_params(),
        parents={**{name: parent.content for name, parent in parents.items()}, **external},
        libs=library_versions(
            stage.libraries, None if stage.given is None else trainer_environment(os.environ, stage.given)
        ),
    )


def build_artifact(
    context: RunContext,
    stage: Stage,
    config: StrictConfig,
    parents: Mapping[str, Artifact],
    run: Run,
    external: Mapping[str, str] | None = None,
    limits: Limits = NO_LIMITS,
) -> Artifact:
    """Return the stage's artifact under its identity: reused if it exists, else built by `run` and published
    atomically.

    `limits` are checked before publication, and for an artifact that is reused. Raises GuardError if one is exceeded,
    InputError if the stage may not be built in this run and no artifact exists, IntegrityError if a forced rebuild
    differs from the published artifact, Infra if the disk is full or fails, Bug if documents vanish, WouldBuild in a
    dry run.
    """
    began = time.monotonic()
    identity = stage_identity(stage, config, parents, external or {})
    forced = stage.name in context.forced
    # A dry run (`plan`) does not wait for a store.
    waits = nullcontext() if context.dry else report_waits(functools.partial(context.note, stage.name))
    with waits:
        artifact = None if forced else _existing_artifact(context, identity)
    if artifact is None:
        miss = explain_miss(context.root, identity)
        if context.dry:
            raise WouldBuild(identity, miss)
        if context.buildable is not None and stage.name not in context.buildable:
            raise InputError(
                f"{stage.name}: this run may only build {', '.join(sorted(context.buildable))}, and no artifact of"
                f" `{stage.name}` exists under the current identity {identity.key} ({miss.cause})."
                f" Run without --only, or --from {stage.name}."
            )
        try:
            with report_waits(functools.partial(context.note, stage.name)):
                artifact = _Build(
                    context, stage, identity, parents, run, limits, FORCED if forced else miss.cause
                ).under_lease()
        except OSError as error:
            raise _infrastructure_error(stage, context.root, error) from error
        except MemoryError as error:
            raise Infra(
                f"{stage.name}: memory ran out. Finished parts are kept: run again with fewer workers, or with smaller"
                f" parts (sample.part_bytes), and the build continues from them."
            ) from error
    else:
        _check_parents(artifact, parents)
        if not context.dry and RemoteMirror.of(context.root).reupload(artifact):
            context.note(stage.name, f"{artifact.identity} was missing in the store and was uploaded again")
    if artifact.reused and not context.guessing:
        limits.check(artifact.report)
    context.listener.finished(stage.name, artifact, time.monotonic() - began)
    return artifact


def _check_parents(child: Artifact, parents: Mapping[str, Artifact]) -> None:
    """Raise IntegrityError if the manifest of a parent is not what it was when the child was made from it."""
    for name, parent in parents.items():
        recorded = manifest_of(child)["parents"].get(name)
        # Another build with the same content may have taken the parent's place.
        if recorded is None or recorded["identity"] != parent.identity:
            continue
        if problem := parent_problem(manifest_of(child), recorded, manifest_of(parent)):
            raise IntegrityError(f"{problem}: one of the two manifests was changed. {HINT}")


def _existing_artifact(context: RunContext, identity: Identity) -> Artifact | None:
    """Return the published artifact for this identity, or one accepted in its place; None if there is neither."""
    path = context.root / "artifacts" / identity.stage / identity.key
    mirror = RemoteMirror.of(context.root)
    mirror.fetch_manifest(identity.stage, identity.key)
    if path.exists():
        return Artifact.open(path)
    alias = read_alias(context.root, identity.stage, identity.key)
    if alias is None:
        return None
    accepted = path.with_name(alias.accepted)
    mirror.fetch_manifest(identity.stage, alias.accepted)
    if not (accepted / MANIFEST).exists():
        context.note(identity.stage, f"{alias.accepted} was {alias.describe()}, but it no longer exists")
        return None
    found = Artifact.open(accepted, outcome=ACCEPTED, cause=alias.describe())
    return replace(found, accepted_for=identity.key)


@dataclass(frozen=True)
class _Build:
    """A build of an artifact that this run may have to make."""

    context: RunContext
    stage: Stage
    identity: Identity
    parents: Mapping[str, Artifact]
    run: Run
    limits: Limits
    cause: str
    """Why it is built; FORCED if the artifact is built again and compared."""

    def under_lease(self) -> Artifact:
        """Build under the lease of the identity; a builder that lost its lease while it was suspended starts over."""
        root, key, seconds = self.context.root, self.identity.key, self.context.lease_seconds

        def on_wait(holder: str) -> None:
            self._note(f"waiting: {holder} builds the same identity {key}")

        mirror = RemoteMirror.of(root)
        while True:
            with build_lease(root / "locks" / key, on_wait, seconds) as lease, mirror.lease(key, on_wait, seconds):
                existing = _existing_artifact(self.context, self.identity)
                if existing is not None and self.cause != FORCED:
                    return existing
                try:
                    return self._alone(existing, lease)
                except Exception as error:
                    if not lease.is_lost():
                        raise
                    shutil.rmtree(root / "work" / f"{self._work_name}.{lease.token}", ignore_errors=True)
                    self._note(
                        f"another builder took over while this one was suspended ({type(error).__name__}: {error})"
                    )

    def _alone(self, existing: Artifact | None, lease: FolderLease) -> Artifact:
        root, identity, cause = self.context.root, self.identity, self.cause
        _sweep(root)
        folder, resumed = take_over(root / "work", self._work_name, lease.token)
        started = time.time()
        mirror = RemoteMirror.of(root)
        # A forced build takes nothing over from other machines.
        unfinished = RemoteMirror(root, None) if cause == FORCED else mirror
        files = self.stage.resume_files
        with (
            _timed(folder) as began,
            unfinished.sync_partial_build(self.stage.name, identity.key, folder, files, lease.is_lost) as fetched,
        ):
            if fetched:
                self._note(f"{fetched} files of the unfinished build were fetched from the store")
            resumed = resumed or fetched > 0
            if resumed:
                cause = f"{cause}; continued from the finished parts"
            why = "" if cause == NONE_YET else f": {cause}"  # A first run would say it eight times.
            self._note(f"building {identity.key[:12]}{why}")
            advance = functools.partial(self.context.listener.progress, identity.stage)
            workspace = Workspace(folder, advance, write_identity(folder, identity), self.limits)
            workspace.clear_temporary()
            report = self.run(workspace)
        report.check_conservation(identity.stage)
        report.check_rows(identity.stage, rows_by_table(workspace.records()).get(DOCUMENTS))
        if DOCUMENTS in self.parents and report.sources:
            report.check_taken_in(identity.stage, self.parents[DOCUMENTS].stage, self.parents[DOCUMENTS].report)
        self.limits.check(report)
        target = root / "artifacts" / identity.stage / identity.key
        manifest = make_manifest(
            identity,
            self.parents,
            workspace,
            report,
            started=started,
            seconds=time.monotonic() - began,
            resumed=resumed,
            run_id=self.context.run_id,
        )
        if existing is not None:
            try:
                compared = compare(existing, manifest, workspace, target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if compared.cause != FORCED:
                mirror.restore(compared)
            return compared
        if not mirror.publish(workspace, manifest, target):
            self._note("another machine was first, with the same content: its artifact is used")
        shutil.rmtree(folder, ignore_errors=True)
        return Artifact.open(target, outcome=BUILT, cause=cause)

    @property
    def _work_name(self) -> str:
        return f"{self.identity.key}.force" if self.cause == FORCED else self.identity.key

    def _note(self, sentence: str) -> None:
        self.context.note(self.identity.stage, sentence)


@contextmanager
def _timed(folder: Path) -> Iterator[float]:
    """Yield when the build in `folder` began by a monotonic clock, as if its earlier attempts had ended just now; costs
    are counted and nightly runs planned by how long a stage took. The time of an attempt that fails is noted there."""
    spent = find_sealed(folder / SPENT, "The time of earlier attempts is not counted.")
    began = time.monotonic() - (spent["seconds"] if spent else 0.0)
    try:
        yield began
    except BaseException:
        with suppress(OSError):  # A full disk, or another builder took the folder.
            replace_durably(folder / SPENT, seal({"seconds": time.monotonic() - began}, indent=None))
        raise


def _sweep(root: Path) -> None:
    existing = {path.name for path in root.glob("artifacts/*/*")}
    sweep(root / "work", existing.__contains__, lambda identity: is_held(root / "locks" / identity))


def _infrastructure_error(stage: Stage, root: Path, error: OSError) -> BessemerError:
    where = error.filename or root
    if error.errno in DISK_FULL:
        free = shutil.disk_usage(root).free if root.exists() else 0
        return Infra(
            f"{stage.name}: no space left while writing {where} ({free / 1e9:.1f} GB free under {root})."
            f" Finished parts are kept: free some space and run again, and the build continues from them."
        )
    if error.errno in NOT_WRITABLE:
        return InputError(
            f"{stage.name}: {where} cannot be written ({error.strerror}). Give this user write permission, or choose"
            f" another root with --root."
        )
    if isinstance(error, FileNotFoundError):
        return InputError(f"{stage.name}: {where} disappeared while the stage ran; put it back and run again.")
    return Infra(
        f"{stage.name}: the operating system reported `{error}` at {where}. Finished parts are kept: check the disk,"
        f" and run again to continue."
    )
