"""Compiled kernels: numba functions that release the GIL and are kept on disk under the fingerprint of their code.

numba's own cache looks at the file of the function alone and misses a changed helper in a neighbouring file. Here the
cache folder's name is a digest over every Python file of the kernel's room and over this file, so any edit there makes
a new folder. Kernels import numba, numpy and their own room only (a test checks it), so nothing else can reach them.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config

from tasks.digests import combined_digest, digest_file

_SETTINGS: Any = config


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba (nopython, without the GIL), cached under its room's fingerprint.

    The cache stands in NUMBA_CACHE_DIR if set, else in the room's `__pycache__`, else in the user's cache; where none
    can be written, every process compiles for itself.
    """
    cache = _cache_folder(Path(function.__code__.co_filename).resolve().parent)
    if cache is None:
        return numba.njit(nogil=True)(function)
    standing = _SETTINGS.CACHE_DIR
    _SETTINGS.CACHE_DIR = str(cache)
    try:
        return numba.njit(nogil=True, cache=True)(function)
    finally:
        _SETTINGS.CACHE_DIR = standing


def room_fingerprint(folder: Path) -> str:
    """BLAKE3-128 over the Python files of a folder and this module: what a kernel of that folder is compiled from."""
    files = [*sorted(folder.glob("*.py")), Path(__file__)]
    return combined_digest((path.name, digest_file(path)) for path in files)


@functools.cache
def _cache_folder(room: Path) -> Path | None:
    bases = [Path(_SETTINGS.CACHE_DIR)] if _SETTINGS.CACHE_DIR else [room / "__pycache__", _user_cache()]
    for base in bases:
        folder = base / f"kernels-{room.name}-{room_fingerprint(room)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            # A read-only installation: the next place may be writable, and compiling anew is always possible.
            continue
    return None


def _user_cache() -> Path:
    return Path(os.path.expanduser("~")) / ".cache" / "bessemer"
