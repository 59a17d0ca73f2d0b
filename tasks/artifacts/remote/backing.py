"""What a build owes to the store that its root stands before; for a root that is a folder and nothing else, nothing."""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.lease import no_word
from tasks.artifacts.publish import conflict, publish
from tasks.artifacts.remote.artifacts import fetch_manifest, manifest_key, put_artifact
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.leases import store_lease
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.remote.partial_builds import Keeper, Kept, forget, take_from_store
from tasks.artifacts.workspace import Workspace

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backing:
    """The store behind `root`, if there is one, as the build of an artifact sees it."""

    root: Path
    store: ObjectStore | None

    @staticmethod
    def of(root: Path) -> "Backing":
        """The backing of a root."""
        return Backing(root, store_of(root))

    def find(self, stage: str, identity: str) -> None:
        """Let an artifact that stands in the store alone stand here, by its manifest."""
        if self.store is not None and not self._folder(stage, identity).exists():
            fetch_manifest(self.root, self.store, stage, identity)

    def put_back(self, artifact: Artifact) -> bool:
        """Put an artifact that stands here alone into the store; whether it was not there.

        Raises IntegrityError where its bytes are damaged.
        """
        if self.store is None or self.store.exists(manifest_key(artifact.stage, artifact.identity)):
            return False
        put_artifact(self.store, artifact.manifest, artifact.file)
        return True

    def lease(
        self,
        identity: str,
        on_wait: Callable[[str], None],
        seconds: float,
        on_alive: Callable[[str], None] = no_word,
    ) -> AbstractContextManager[Any]:
        """Hold the lease of an identity among machines."""
        return nullcontext() if self.store is None else store_lease(self.store, identity, on_wait, seconds, on_alive)

    @contextmanager
    def going_on(
        self, stage: str, identity: str, folder: Path, kept: Kept, is_lost: Callable[[], bool]
    ) -> Iterator[int]:
        """Take over what the store keeps of an unfinished build, and keep there what the block finishes.

        Yields how many files came.
        """
        if self.store is None:
            yield 0
            return
        writer = secrets.token_hex(8)
        came = take_from_store(self.root, self.store, stage, identity, folder, writer)
        with Keeper(self.store, stage, identity, folder, kept, writer=writer, is_lost=is_lost):
            yield came

    def publish(self, workspace: Workspace, manifest: dict[str, Any], target: Path) -> bool:
        """Make an artifact stand, in the store first; whether it is this build's that stands.

        Of two builders the first one's stands, in the store and here. Raises IntegrityError where the first one's has
        another content.
        """
        if self.store is None:
            publish(workspace, manifest, target)
            return True
        standing = put_artifact(self.store, manifest, workspace.file)
        if standing["content"] != manifest["content"]:
            before = {file["name"]: file["digest"] for file in standing["files"]}
            where = f"{self.store.address}/{manifest_key(manifest['stage'], manifest['identity'])}"
            raise conflict(workspace, manifest, before, target, "a build on this machine", where)
        publish(workspace, standing, target)
        forget(self.store, manifest["stage"], manifest["identity"])
        return standing == manifest

    def restore(self, artifact: Artifact) -> None:
        """Put what a rebuild restored over what the store has."""
        if self.store is not None:
            put_artifact(self.store, artifact.manifest, artifact.file, replace=True)

    def _folder(self, stage: str, identity: str) -> Path:
        return self.root / "artifacts" / stage / identity
