"""The commit of a build: manifest last, one rename, and what to do with a rebuild of something that stands."""

import errno
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from model.errors import IntegrityError
from model.files import make_folders, sync_directory
from tasks.artifacts.artifact import REPRODUCED, Artifact
from tasks.artifacts.identity import Identity, git_state
from tasks.artifacts.manifest import content_digest, parents_told, rows_by_table, write_manifest
from tasks.artifacts.report import StageReport
from tasks.artifacts.schema import FORMAT
from tasks.artifacts.workspace import Workspace
from tasks.common.code_fingerprint import PROJECT

FORCED = "forced"
"""Why a rebuild was made of something that stands and is whole."""


def make_manifest(
    identity: Identity,
    parents: Mapping[str, Artifact],
    workspace: Workspace,
    report: StageReport,
    *,
    started: float,
    seconds: float,
    resumed: bool,
    run_id: str,
) -> dict[str, Any]:
    """The manifest of a finished build; `started` in seconds since the epoch, `seconds`
    what it took."""
    records = workspace.records()
    return {
        "format": FORMAT,
        "stage": identity.stage,
        "identity": identity.key,
        "identity_parts": identity.parts(),
        "content": content_digest(records),
        "files": [asdict(record) for record in records],
        "rows": rows_by_table(records),
        "bytes": sum(record.bytes for record in records),
        "report": report.to_json(),
        "parents": parents_told({name: parent.manifest for name, parent in parents.items()}),
        "exact": report.facts.get("exact", True),
        "timings": {"started": started, "seconds": seconds, "resumed": resumed},
        "run": run_id,
        "host": platform.node(),
        "git": git_state(PROJECT),
    }


def publish(workspace: Workspace, manifest: dict[str, Any], target: Path) -> None:
    """Links and manifest into a fresh folder, all durable, then one rename: no reader ever sees a part of it.

    Files of which the manifest says other bytes, since another machine's build of the identity was first, are left out
    and come from the store when they are asked for.
    """
    staging = _stage(workspace, manifest)
    make_folders(target.parent)
    try:
        os.rename(staging, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Another builder, whose lease had passed on, was first; the same identity holds the same bytes.
    sync_directory(target.parent)


def compare(standing: Artifact, manifest: dict[str, Any], workspace: Workspace, target: Path) -> Artifact:
    """A rebuild beside what stands: reproduced where all bytes agree, else IntegrityError and both stay.

    Where the rebuild agrees with the manifest that stands but files on disk no longer do, they are replaced, and the
    damaged folder is set aside.
    """
    if standing.content == manifest["content"]:
        damaged = standing.verify()
        if damaged:
            aside = standing.path.with_name(f"{standing.path.name}.damaged-{uuid.uuid4().hex[:8]}")
            staging = _stage(workspace, manifest)
            os.rename(standing.path, aside)
            os.rename(staging, standing.path)
            sync_directory(standing.path.parent)
            return replace(standing, outcome=REPRODUCED, cause=f"damaged {', '.join(damaged)} restored")
        return replace(standing, outcome=REPRODUCED, cause=FORCED)
    before = {record.name: record.digest for record in standing.records}
    raise conflict(workspace, manifest, before, target, "a forced rebuild", str(standing.path))


def conflict(
    workspace: Workspace, manifest: dict[str, Any], before: Mapping[str, str], target: Path, what: str, where: str
) -> IntegrityError:
    """Keep a build beside the artifact that stands `where` with other bytes (`before`, digests by name of file), and
    give the error that says so; `what` is the build in words."""
    aside = target.with_name(f"{target.name}.conflict-{manifest['content'][:8]}")
    if not aside.exists():
        publish(workspace, manifest, aside)
    differing = [file["name"] for file in manifest["files"] if before.get(file["name"]) != file["digest"]]
    return IntegrityError(
        f"{manifest['stage']}: {what} of {target.name} gave other bytes than the artifact that stands"
        f" (first difference: {differing[0] if differing else 'the set of files'}). Something outside the identity"
        f" decides the result. Both stay: {where} and {aside}."
    )


def _stage(workspace: Workspace, manifest: dict[str, Any]) -> Path:
    staging = workspace.folder / f"publish-{uuid.uuid4().hex[:8]}"
    staging.mkdir()
    workspace.publish_files(staging, {file["name"]: file["digest"] for file in manifest["files"]})
    write_manifest(staging, manifest)
    return staging
