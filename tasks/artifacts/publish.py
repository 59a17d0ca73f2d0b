"""Publish a build: manifest last, then one rename; and compare a rebuild with the published artifact."""

import errno
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from model.errors import IntegrityError
from model.files import make_folders, sync_directory
from tasks.artifacts.artifact import REPRODUCED, Artifact, manifest_of
from tasks.artifacts.identity import FORMAT, Identity, git_state
from tasks.artifacts.manifest import Manifest, content_digest, parent_entries, rows_by_table, write_manifest
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.common.code_fingerprint import PROJECT

FORCED = "forced"
"""Cause of a rebuild of an artifact that exists and is whole."""


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
) -> Manifest:
    """Return the manifest of a finished build that `started` at that Unix time and took `seconds`."""
    records = workspace.records()
    return {
        "format": FORMAT,
        "stage": identity.stage,
        "identity": identity.key,
        "identity_parts": identity.parts(),
        "content": content_digest(records),
        "files": [record.to_json() for record in records],
        "rows": rows_by_table(records),
        "bytes": sum(record.bytes for record in records),
        "report": report.to_json(),
        "parents": parent_entries({name: manifest_of(parent) for name, parent in parents.items()}),
        "exact": report.facts.get("exact", True),
        "timings": {"started": started, "seconds": seconds, "resumed": resumed},
        "run": run_id,
        "host": platform.node(),
        "git": git_state(PROJECT),
    }


def publish(workspace: Workspace, manifest: Manifest, target: Path) -> None:
    """Link the files and write the manifest into a new folder, durably, then rename it: no reader sees a part of it.

    Files whose bytes differ from the manifest, because another machine's build of the identity was first, are left out
    and fetched from the store when they are read.
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


def compare(existing: Artifact, manifest: Manifest, workspace: Workspace, target: Path) -> Artifact:
    """Compare a rebuild with the existing artifact, and return the latter as REPRODUCED if their contents agree.

    If the rebuild agrees with the existing manifest and files on disk do not, they are replaced and the damaged folder
    is set aside. Raises IntegrityError if the contents differ; both are kept.
    """
    if existing.content == manifest["content"]:
        damaged = existing.verify()
        if damaged:
            aside = existing.path.with_name(f"{existing.path.name}.damaged-{uuid.uuid4().hex[:8]}")
            staging = _stage(workspace, manifest)
            os.rename(existing.path, aside)
            os.rename(staging, existing.path)
            sync_directory(existing.path.parent)
            return replace(existing, outcome=REPRODUCED, cause=f"damaged {', '.join(damaged)} restored")
        return replace(existing, outcome=REPRODUCED, cause=FORCED)
    before = {record.name: record.digest for record in existing.records}
    raise conflict(workspace, manifest, before, target, "a forced rebuild", str(existing.path))


def conflict(
    workspace: Workspace, manifest: Manifest, before: Mapping[str, str], target: Path, what: str, where: str
) -> IntegrityError:
    """Keep a build next to the existing artifact at `where`, which has other bytes (`before`: file name -> digest), and
    return the error about it; `what` describes the build."""
    aside = target.with_name(f"{target.name}.conflict-{manifest['content'][:8]}")
    if not aside.exists():
        publish(workspace, manifest, aside)
    differing = [file["name"] for file in manifest["files"] if before.get(file["name"]) != file["digest"]]
    return IntegrityError(
        f"{manifest['stage']}: {what} of {target.name} produced other bytes than the existing artifact"
        f" (first difference: {differing[0] if differing else 'the set of files'}). Something outside the identity"
        f" decides the result. Both are kept: {where} and {aside}."
    )


def _stage(workspace: Workspace, manifest: Manifest) -> Path:
    staging = workspace.folder / f"publish-{uuid.uuid4().hex[:8]}"
    staging.mkdir()
    workspace.publish_files(staging, {file["name"]: file["digest"] for file in manifest["files"]})
    write_manifest(staging, manifest)
    return staging
