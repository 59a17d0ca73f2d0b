"""Building an artifact once: identity, lease, resume, conservation, atomic publication, reuse.

The root of all artifacts holds `artifacts/STAGE/IDENTITY`, `aliases/STAGE/IDENTITY.json` (what a person accepted),
`work/IDENTITY.TOKEN` (unfinished builds), `locks/IDENTITY`, `inputs.json` and `runs/RUN_ID`. A stage calls
`build_artifact` in its task body; Prefect only watches.
"""

import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from model.config.environment import trainer_environment
from model.errors import BessemerError, Infra, InputError, IntegrityError
from model.files import DISK_FULL, NOT_WRITABLE
from tasks.artifacts.artifact import ACCEPTED, BUILT, Artifact
from tasks.artifacts.identity import Identity, library_versions
from tasks.artifacts.lease import LEASE_SECONDS, Lease, build_lease, is_held
from tasks.artifacts.limits import Limits
from tasks.artifacts.manifest import CURE, MANIFEST, parent_problem, rows_by_table
from tasks.artifacts.publish import FORCED, compare, make_manifest
from tasks.artifacts.remote.backing import Backing
from tasks.artifacts.remote.object_store import heard_waits
from tasks.artifacts.remote.partial_builds import Kept
from tasks.artifacts.report import StageReport
from tasks.artifacts.reuse import Miss, explain_miss, read_alias, tell_identity
from tasks.artifacts.workspace import Workspace, sweep, take_over
from tasks.common.code_fingerprint import code_of
from tasks.common.config import StrictConfig

log = logging.getLogger(__name__)

DOCUMENTS = "documents"
"""The parent whose documents a stage takes in, and the table that they stand in."""


def nothing_kept(scratch: Path) -> tuple[tuple[Path, ...], ...]:
    """For stages whose finished units are all that they go on from."""
    del scratch
    return ()


@dataclass(frozen=True)
class Stage:
    """What the identity of a stage needs to know about it."""

    name: str
    roots: tuple[str, ...]
    """Where the code that counts begins: `module:name` of functions, or a module that counts whole."""
    libraries: tuple[str, ...]
    """Distributions whose versions decide the result."""
    given: Mapping[str, str] | None = None
    """Variables that the process of its own has in which it works; None for a stage that works in ours."""
    kept: Kept = nothing_kept
    """Files of an unfinished build's scratch folder from which another machine goes on."""


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
    dry: bool = False
    """Build nothing: raise WouldBuild where a build would begin."""
    guessing: bool = False
    """The inputs stand in for what will be built: what is reused of them is held against no limit."""
    watcher: Watcher = field(default_factory=Watcher, compare=False)
    lease_seconds: float = LEASE_SECONDS
    """Silence after which the builder of an artifact that this run waits for is passed over."""

    def progress_of(self, stage: str) -> Callable[[int, int | None, str], None]:
        """The progress listener bound to a stage."""
        return functools.partial(self.watcher.progress, stage)

    def note(self, stage: str, sentence: str) -> None:
        """Tell the watcher a sentence about a stage."""
        log.info("%s: %s", stage, sentence)
        self.watcher.note(stage, sentence)


class WouldBuild(Exception):
    """Raised in a dry run at the first artifact that does not stand."""

    def __init__(self, identity: Identity, miss: Miss) -> None:
        super().__init__(f"{identity.stage}: {miss.cause}")
        self.identity = identity
        self.miss = miss


Run = Callable[[Workspace], StageReport]

NO_LIMITS = Limits()


def stage_identity(
    stage: Stage, config: StrictConfig, parents: Mapping[str, Artifact], external: Mapping[str, str]
) -> Identity:
    """The identity of a stage's build: parents count by content, external files by their digests."""
    return Identity(
        stage=stage.name,
        code=code_of(stage.roots),
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
    """The stage's artifact under its identity: reused if it exists, else built by `run` and published atomically.

    `limits` are asked before it is published, and of an artifact that is reused. Raises GuardError where it passes
    one, InputError when the stage may not be built in this run and no artifact exists, IntegrityError when a forced
    rebuild differs from what stands, Infra when the disk is full or fails, Bug when documents vanish, WouldBuild in a
    dry run.
    """
    began = time.monotonic()
    identity = stage_identity(stage, config, parents, external or {})
    forced = stage.name in context.forced
    # A forecast (`explain`) does not wait for a store.
    waits = nullcontext() if context.dry else heard_waits(functools.partial(context.note, stage.name))
    with waits:
        artifact = None if forced else _standing(context, identity)
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
            with heard_waits(functools.partial(context.note, stage.name)):
                artifact = _build(
                    context, stage, identity, parents, run, "forced" if forced else miss.cause, forced, limits
                )
        except OSError as error:
            raise _infrastructure_error(stage, context.root, error) from error
        except MemoryError as error:
            raise Infra(
                f"{stage.name}: memory ran out. Finished parts are kept: run again with fewer workers, or with smaller"
                f" parts (sample.part_bytes), and the build goes on from them."
            ) from error
    else:
        _check_parents(artifact, parents)
        if not context.dry and Backing.of(context.root).put_back(artifact):
            context.note(stage.name, f"{artifact.identity} stood here alone, and is in the store again")
    if artifact.reused and not context.guessing:
        limits.check(artifact.report)
    context.watcher.finished(stage.name, artifact, time.monotonic() - began)
    return artifact


def _check_parents(child: Artifact, parents: Mapping[str, Artifact]) -> None:
    """Raise IntegrityError where the manifest of a parent is not what it was when the child was made from it."""
    for name, parent in parents.items():
        told = child.manifest["parents"].get(name)
        # Another build with the same content may have taken the parent's place.
        if told is None or told["identity"] != parent.identity:
            continue
        if problem := parent_problem(child.manifest, told, parent.manifest):
            raise IntegrityError(f"{problem}: one of the two was changed. {CURE}")


def _standing(context: RunContext, identity: Identity) -> Artifact | None:
    """What stands under the identity, of its own or by a person's word."""
    path = context.root / "artifacts" / identity.stage / identity.key
    backing = Backing.of(context.root)
    backing.find(identity.stage, identity.key)
    if path.exists():
        return Artifact.open(path)
    alias = read_alias(context.root, identity.stage, identity.key)
    if alias is None:
        return None
    accepted = path.with_name(alias.accepted)
    backing.find(identity.stage, alias.accepted)
    if not (accepted / MANIFEST).exists():
        context.note(identity.stage, f"{alias.accepted} was {alias.words()}, but it no longer stands")
        return None
    found = Artifact.open(accepted, outcome=ACCEPTED, cause=alias.words())
    return replace(found, accepted_for=identity.key)


def _build(
    context: RunContext,
    stage: Stage,
    identity: Identity,
    parents: Mapping[str, Artifact],
    run: Run,
    cause: str,
    forced: bool,
    limits: Limits,
) -> Artifact:
    """Build under the lease of the identity; a builder that lost its lease while it was paused starts over."""

    def on_wait(holder: str) -> None:
        context.note(identity.stage, f"waiting: {holder} builds the same identity {identity.key}")

    backing = Backing.of(context.root)
    while True:
        with (
            build_lease(context.root / "locks" / identity.key, on_wait, context.lease_seconds) as lease,
            backing.lease(identity.key, on_wait, context.lease_seconds),
        ):
            standing = _standing(context, identity)
            if standing is not None and not forced:
                return standing
            try:
                return _build_alone(context, stage, identity, parents, run, cause, standing, lease, forced, limits)
            except Exception as error:
                if not lease.is_lost():
                    raise
                ghost = f"{_build_name(identity, forced)}.{lease.token}"
                shutil.rmtree(context.root / "work" / ghost, ignore_errors=True)
                lost = f"another builder took over while this one stood still ({type(error).__name__}: {error})"
                context.note(identity.stage, lost)


def _build_alone(
    context: RunContext,
    stage: Stage,
    identity: Identity,
    parents: Mapping[str, Artifact],
    run: Run,
    cause: str,
    standing: Artifact | None,
    lease: Lease,
    forced: bool,
    limits: Limits,
) -> Artifact:
    _sweep(context.root)
    folder, resumed = take_over(context.root / "work", _build_name(identity, forced), lease.token)
    # By a clock that nobody sets: nights plan by how long a stage took.
    started, began = time.time(), time.monotonic()
    backing = Backing.of(context.root)
    # A forced build takes nothing over from others: on another machine it begins anew.
    unfinished = Backing(context.root, None) if forced else backing
    with unfinished.going_on(stage.name, identity.key, folder, stage.kept, lease.is_lost) as came:
        if came:
            context.note(identity.stage, f"{came} files of what was finished came from the store")
        resumed = resumed or came > 0
        if resumed:
            cause = f"{cause}; going on from what was finished"
        context.note(identity.stage, f"building {identity.key}: {cause}")
        workspace = Workspace(folder, context.progress_of(identity.stage), tell_identity(folder, identity), limits)
        workspace.clear_temporary()
        report = run(workspace)
    report.check_conservation(identity.stage)
    report.check_rows(identity.stage, rows_by_table(workspace.records()).get(DOCUMENTS))
    if DOCUMENTS in parents and report.sources:
        report.check_taken_in(identity.stage, parents[DOCUMENTS].stage, parents[DOCUMENTS].report)
    limits.check(report)
    target = context.root / "artifacts" / identity.stage / identity.key
    manifest = make_manifest(
        identity,
        parents,
        workspace,
        report,
        started=started,
        seconds=time.monotonic() - began,
        resumed=resumed,
        run_id=context.run_id,
    )
    if standing is not None:
        try:
            compared = compare(standing, manifest, workspace, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if compared.cause != FORCED:
            backing.restore(compared)
        return compared
    if not backing.publish(workspace, manifest, target):
        context.note(identity.stage, "another machine was first, with the same content: its artifact stands")
    shutil.rmtree(folder, ignore_errors=True)
    return Artifact.open(target, outcome=BUILT, cause=cause)


def _build_name(identity: Identity, forced: bool) -> str:
    return f"{identity.key}.force" if forced else identity.key


def _sweep(root: Path) -> None:
    standing = {path.name for path in root.glob("artifacts/*/*")}
    sweep(root / "work", standing.__contains__, lambda identity: is_held(root / "locks" / identity))


def _infrastructure_error(stage: Stage, root: Path, error: OSError) -> BessemerError:
    where = error.filename or root
    if error.errno in DISK_FULL:
        free = shutil.disk_usage(root).free if root.exists() else 0
        return Infra(
            f"{stage.name}: no space left while writing {where} ({free / 1e9:.1f} GB free under {root})."
            f" Finished parts are kept: free some space and run again, and the build goes on from them."
        )
    if error.errno in NOT_WRITABLE:
        return InputError(
            f"{stage.name}: {where} cannot be written ({error.strerror}). Give this user write permission, or choose"
            f" another root with --root."
        )
    if isinstance(error, FileNotFoundError):
        return InputError(f"{stage.name}: {where} disappeared while the stage ran; put it back and run again.")
    return Infra(
        f"{stage.name}: the operating system reported `{error}` at {where}. Finished parts are kept: look at the disk,"
        f" and run again to go on."
    )
