"""One builder per identity: an advisory lock that the kernel gives back when its holder dies.

The lock saves work and never carries correctness: two builders that slip past it write the same bytes under the same
names. `flock` is released by the kernel at the death of the process, so a killed builder leaves nothing to expire.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.2


@contextmanager
def build_lock(path: Path, on_wait: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock at `path`; yields True when another builder had to be waited for.

    `on_wait` is called once with the holder in words ("process 4711 on host since 12:30:01").
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    waited = False
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waited:
                    on_wait(_holder(path))
                waited = True
                time.sleep(POLL_SECONDS)
        holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)
        yield waited
    finally:
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (json.JSONDecodeError, KeyError):
        return "another process that has just begun"
