"""Machine code of kernels on disk, keyed by the fingerprint of the kernel and of all code that it reaches.

numba's own cache only looks at the file of a function: it misses a helper that changed in another file, and compiles a
whole file again after one edit. Here an edit recompiles the kernels that reach the edited code, and a second checkout
of the same code loads what the first one compiled. numba adds its version and the processor to the key."""

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
from model.files import user_cache
from tasks.common.code_cache import cached_code_of, project_state
from tasks.common.code_fingerprint import PROJECT

_SETTINGS: Any = config
"""numba's settings, whose names are set at import, so that no type checker knows them."""


def cached(dispatcher: Any) -> Any:
    """Return the compiled function, cached in NUMBA_CACHE_DIR if set, else in the user's cache, else next to the
    module.

    If none of them is writable, and for functions outside of the project, every process compiles for itself.
    """
    function = dispatcher.py_func
    if _Locator.from_function(function, function.__code__.co_filename) is not None:
        dispatcher._cache = _Cache(function)
    return dispatcher


class _Locator(_CacheLocator):
    """Names the folder and file of a kernel for numba. A file of that name is never out of date."""

    def __init__(self, folder: Path, file: str, fingerprint: str) -> None:
        self._folder = folder
        self._py_file = file
        self._fingerprint = fingerprint

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator | None":
        """Return the locator of a function; None for a function outside of the project or without a writable folder."""
        fingerprint = _fingerprint(py_func.__module__, py_func.__qualname__, py_file)
        source_folder = Path(py_file).resolve().parent
        folder = _writable(str(_SETTINGS.CACHE_DIR), source_folder) if fingerprint is not None else None
        if fingerprint is None or folder is None:
            return None
        return cls(folder / py_func.__module__, py_file, fingerprint)

    def get_cache_path(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the folder, one for each module."""
        return os.fspath(self._folder)

    def get_source_stamp(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the stamp by which numba recognises a file that is out of date."""
        return self._fingerprint

    def get_disambiguator(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the part of the file name that differs between versions of the code."""
        return self._fingerprint


class _Impl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (numba reads this list)


class _Cache(FunctionCache):
    _impl_class = _Impl


@functools.cache
def _fingerprint(module: str, name: str, file: str) -> str | None:
    if not Path(file).resolve().is_relative_to(PROJECT):
        return None  # a foreign module that has the name of one of ours
    try:
        code = cached_code_of((f"{module}:{name}",), _state_at_import(module))
    except Bug:
        return None
    # Machine code refers to modules by name, so it cannot be loaded after a definition moved to another module.
    modules = {definition.partition(":")[0] for definition in code.definitions}
    return digest_bytes("\n".join([code.digest, *sorted(modules)]).encode())


@functools.cache
def _state_at_import(module: str) -> str:
    """Return the state of the project, looked at once for all kernels of a module, which are defined together."""
    del module  # part of the cache key
    return project_state()


@functools.cache
def _writable(configured: str, source_folder: Path) -> Path | None:
    for base in [Path(configured)] if configured else [user_cache(), source_folder / "__pycache__"]:
        folder = base / "kernels"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            # A read-only home or installation: the next folder may be writable, and compiling again always works.
            continue
    return None
