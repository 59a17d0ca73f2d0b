"""What one rank writes of a checkpoint, in a thread of its own, and what the first rank does when all have."""

import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from model.checkpoint import discard, standing_steps
from model.complete import marker
from model.durable import sync_directory, write_synced
from model.errors import Infra
from model.reading import DIGEST_BYTES
from model.retention import superseded
from model.run_folder import COMPLETE, checkpoint_folder

WRITING, WRITTEN, COMPLETING, STANDS, FAILED = range(5)
"""How far a rank is. Only the first one completes a checkpoint, and knows when it stands."""
CURE = "The checkpoints before it stand. Make room, or lower train.keep_checkpoints, and run again to go on."


def room(needed: int, free: int) -> str:
    """What a checkpoint needs on disk and what there is, in words."""
    return f"needs {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free"


class Share:
    """One rank's share of the checkpoint after `step` steps, of which others hold `shards` of the optimizer's state.

    The loop reads `progress` while the thread moves it on.
    """

    def __init__(self, folder: Path, step: int, shards: int, needed: int, keep: int, healthy: Collection[int]) -> None:
        self.step = step
        self.shards = shards
        self.temporary = folder / f"tmp-{step:09d}"
        self.progress = WRITING
        self.error: BaseException | None = None
        """Why it failed."""
        self.digest_of_moments = bytes(DIGEST_BYTES)
        """Of this rank's part of the optimizer's state, once it is written."""
        self._needed = needed
        self._keep, self._healthy = keep, healthy
        self._target = checkpoint_folder(folder, step)
        self._digests: dict[str, str] = {}
        self._at = self.temporary
        """What is being written or removed."""
        self._thread: threading.Thread | None = None

    def write(self, files: Mapping[str, Callable[[], list[Any]]]) -> None:
        """Begin to write files, given as blocks of bytes that are asked for when a file's turn has come."""

        def write() -> int:
            for name, blocks in files.items():
                self._at = self.temporary / name
                self._digests[name] = write_synced(self._at, blocks())
                if name.startswith("optimizer"):
                    self.digest_of_moments = bytes.fromhex(self._digests[name])
            return WRITTEN

        self._begin(write)

    def complete(self, digests_of_others: Mapping[str, str]) -> None:
        """Begin to make a checkpoint of what all ranks have written, given the digests of what others wrote."""
        self.progress = COMPLETING

        def complete() -> int:
            self._at = self.temporary / COMPLETE
            write_synced(self._at, [marker({**self._digests, **digests_of_others})])
            sync_directory(self.temporary)
            self._at = self._target
            if self._target.exists():
                discard(self._target)
            os.rename(self.temporary, self._target)
            folder = self._target.parent
            sync_directory(folder)
            gone = superseded(standing_steps(folder), self.step, self._keep, self._healthy)
            for old in [*(checkpoint_folder(folder, step) for step in gone), *folder.glob("damaged-*")]:
                self._at = old
                discard(old)
            return STANDS

        self._begin(complete)

    def wait(self) -> None:
        """Until the thread has done what it was given."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, work: Callable[[], int]) -> None:
        self._thread = threading.Thread(target=self._do, args=(work,), name=f"checkpoint-{self.step}", daemon=True)
        self._thread.start()

    def _do(self, work: Callable[[], int]) -> None:
        try:
            self.progress = work()
        except BaseException as error:
            # Whatever it is: a thread that ended without a word would be waited for for ever.
            self.error = self._explained(error) if isinstance(error, OSError) else error
            self.progress = FAILED

    def _explained(self, error: OSError) -> Infra:
        try:
            free = shutil.disk_usage(self.temporary.parent).free
        except OSError:
            free = 0
        return Infra(
            f"the checkpoint after step {self.step} could not be written: {self._at}: {error.strerror}. The whole"
            f" {room(self._needed, free)}. {CURE}"
        )
