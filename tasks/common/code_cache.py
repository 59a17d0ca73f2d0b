"""Fingerprints of code that were computed before, kept in the user's cache by the content of the whole project.

Following all references of eight stages takes over a second, and of all kernels another one; reading and hashing the
project's 3.7 MB takes 15 ms. An answer therefore holds for these bytes of every file of the project, not for its times
and sizes, and any edit makes it another one. An answer that cannot be read, or was changed, is computed again.
"""

import functools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import digest_bytes
from model.files import user_cache
from tasks.common.code_fingerprint import PROJECT, Code, code_of
from tasks.common.definition_text import PACKAGES

FOLDER = "code"

MAX_STATES = 12
"""States of the code whose fingerprints are kept: those for which one was computed last."""

Mark = tuple[str, int, int]


def cached_code_of(roots: tuple[str, ...]) -> Code:
    """Return `code_of` these roots in this project, from the cache where it is known.

    Raises Bug as `code_of`, which is not cached.
    """
    state = project_state()
    path = user_cache() / FOLDER / state / f"{digest_bytes(chr(10).join(roots).encode())}.json"
    try:
        known = json.loads(unseal(path.read_bytes()))["code"]
        return Code(known["digest"], tuple(known["roots"]), known["definitions"])
    except (OSError, BrokenSeal):
        code = code_of(roots)
    # A file that was edited meanwhile would put the code of other bytes under this state.
    if project_state() == state:
        with suppress(OSError):
            _keep(path, seal({"code": code.to_json()}, indent=None))
    return code


def project_state() -> str:
    """Return the digest of all files of the project and of this Python; read again where a size or time changed."""
    while True:
        # A file that is gone before it was read makes another state.
        with suppress(FileNotFoundError):
            return _state(tuple(sorted(_marks())))


@functools.lru_cache(maxsize=4)
def _state(marks: tuple[Mark, ...]) -> str:
    lines = [f"{sys.version_info[:3]} {sys.implementation.name}"]
    lines += [f"{path[len(str(PROJECT)) :]} {digest_bytes(Path(path).read_bytes())}" for path, *_ in marks]
    return digest_bytes("\n".join(lines).encode())


def _marks() -> Iterator[Mark]:
    folders = [path for package in PACKAGES if os.path.isdir(path := os.path.join(PROJECT, package))]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith((".", "__pycache__")):
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                elif os.path.exists(entry.path):  # and no link to nothing
                    status = entry.stat()
                    yield entry.path, status.st_mtime_ns, status.st_size


def _keep(path: Path, data: bytes) -> None:
    """Write an answer in place and without waiting for the disk: its digest shows one that is not whole."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        others = sorted(path.parent.parent.iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
        for old in others[:-MAX_STATES]:
            shutil.rmtree(old, ignore_errors=True)
    path.write_bytes(data)
