"""The object store of a root as the build of an artifact uses it; does nothing for a root without a store."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.lease import ignore
from tasks.artifacts.manifest import Manifest
from tasks.artifacts.publish import conflict, publish
from tasks.artifacts.remote.artifacts import fetch_manifest, manifest_key, put_artifact
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.leases import store_lease
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.remote.partial_builds import PartialBuildUploader, ResumeFiles, download_partial_build, forget
from tasks.artifacts.workspace import Workspace


@dataclass(frozen=True)
class RemoteMirror:
    """The store of `root`, if it has one."""

    root: Path
    store: ObjectStore | None

    @staticmethod
    def of(root: Path) -> "RemoteMirror":
        """Return the mirror of a root."""
        return RemoteMirror(root, store_of(root))

    def fetch_manifest(self, stage: str, identity: str) -> None:
        """Create a local stub for an artifact that only the store has."""
        if self.store is not None and not (self.root / "artifacts" / stage / identity).exists():
            fetch_manifest(self.root, self.store, stage, identity)

    def reupload(self, artifact: Artifact) -> bool:
        """Upload an artifact that only exists locally; return whether the store did not have it.

        Raises IntegrityError if its bytes are damaged.
        """
        if self.store is None or self.store.exists(manifest_key(artifact.stage, artifact.identity)):
            return False
        put_artifact(self.store, manifest_of(artifact), artifact.file)
        return True

    def lease(
        self, identity: str, on_wait: Callable[[str], None], seconds: float, on_alive: Callable[[str], None] = ignore
    ) -> AbstractContextManager[Any]:
        """Return a context that holds the lease of an identity among machines."""
        return nullcontext() if self.store is None else store_lease(self.store, identity, on_wait, seconds, on_alive)

    @contextmanager
    def sync_partial_build(
        self, stage: str, identity: str, folder: Path, resume_files: ResumeFiles, is_lost: Callable[[], bool]
    ) -> Iterator[int]:
        """Download what the store has of an unfinished build, and upload what the block finishes.

        Yields the number of files downloaded.
        """
        if self.store is None:
            yield 0
            return
        writer = secrets.token_hex(8)
        fetched = download_partial_build(self.root, self.store, stage, identity, folder, writer)
        with PartialBuildUploader(self.store, stage, identity, folder, resume_files, writer=writer, is_lost=is_lost):
            yield fetched

    def publish(self, workspace: Workspace, manifest: Manifest, target: Path) -> bool:
        """Publish an artifact, in the store first; return whether the published artifact is this build's.

        Of two builders the first one's is published, in the store and here. Raises IntegrityError if it has another
        content.
        """
        if self.store is None:
            publish(workspace, manifest, target)
            return True
        stored = put_artifact(self.store, manifest, workspace.file)
        if stored["content"] != manifest["content"]:
            before = {file["name"]: file["digest"] for file in stored["files"]}
            where = f"{self.store.address}/{manifest_key(manifest['stage'], manifest['identity'])}"
            raise conflict(workspace, manifest, before, target, "a build on this machine", where)
        publish(workspace, stored, target)
        forget(self.store, manifest["stage"], manifest["identity"])
        return stored == manifest

    def restore(self, artifact: Artifact) -> None:
        """Overwrite the stored artifact with one that a rebuild restored."""
        if self.store is not None:
            put_artifact(self.store, manifest_of(artifact), artifact.file, replace=True)
