"""Machine code of kernels on disk, each under the fingerprint of its own code: the kernel and all that it reaches.

numba's own cache looks at the file of a function alone: it misses a helper that changed in another file, and compiles a
whole file anew for one edit. Here an edit compiles those kernels again that reach what was edited, and a second
checkout of the same code loads what the first one compiled. numba adds its version and the processor.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

from model.digests import digest_bytes
from model.errors import Bug
from tasks.common.code_fingerprint import PROJECT, code_of

_SETTINGS: Any = config


def kept(dispatcher: Any) -> Any:
    """The compiled function, kept in NUMBA_CACHE_DIR if set, else in the user's cache, else beside the module.

    Where none can be written, and for a function that is none of the project's, every process compiles for itself.
    """
    function = dispatcher.py_func
    if _Locator.from_function(function, function.__code__.co_filename) is not None:
        dispatcher._cache = _Cache(function)
    return dispatcher


class _Locator(_CacheLocator):
    """Says where a kernel is kept, under which name, and that it is never out of date there."""

    def __init__(self, folder: Path, file: str, fingerprint: str) -> None:
        self._folder = folder
        self._py_file = file
        self._fingerprint = fingerprint

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator | None":
        """The place of a function's code; None for a function or a machine that has none."""
        fingerprint = _fingerprint(py_func.__module__, py_func.__qualname__, py_file)
        room = Path(py_file).resolve().parent
        folder = _writable(str(_SETTINGS.CACHE_DIR), room) if fingerprint is not None else None
        if fingerprint is None or folder is None:
            return None
        return cls(folder / py_func.__module__, py_file, fingerprint)

    def get_cache_path(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The folder: one for each module."""
        return os.fspath(self._folder)

    def get_source_stamp(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What would be another in a file that is out of date."""
        return self._fingerprint

    def get_disambiguator(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What tells the file's name from those of other code under the same name."""
        return self._fingerprint


class _Impl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (numba reads this list)


class _Cache(FunctionCache):
    _impl_class = _Impl


@functools.cache
def _fingerprint(module: str, name: str, file: str) -> str | None:
    if not Path(file).resolve().is_relative_to(PROJECT):
        return None  # of the name of a module of ours
    try:
        code = code_of([f"{module}:{name}"], PROJECT)
    except Bug:
        return None
    # Machine code refers to modules by name: what moved to another module cannot be loaded from there any more.
    modules = {definition.partition(":")[0] for definition in code.definitions}
    return digest_bytes("\n".join([code.digest, *sorted(modules)]).encode())


@functools.cache
def _writable(asked: str, room: Path) -> Path | None:
    for base in [Path(asked)] if asked else [_user_cache(), room / "__pycache__"]:
        folder = base / "kernels"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            # A read-only home or installation: the next place may be writable, and compiling anew is always possible.
            continue
    return None


def _user_cache() -> Path:
    return Path(os.path.expanduser("~")) / ".cache" / "bessemer"
