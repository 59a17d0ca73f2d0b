"""Machine code of kernels on disk, keyed by the bytecode of the kernel, of all kernels that it calls, and the values of
the constants that they read.

numba freezes these into the machine code, and its own cache only looks at the file of a function: it misses a helper or
a constant that changed in another file, and compiles a whole file again after one edit. Here an edit recompiles the
kernels that reach the edited code, and a second checkout of the same code loads what the first one compiled. numba adds
its version and the processor to the key."""

import fcntl
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, BinaryIO

import llvmlite
import numpy as np
from numba.core import config, event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.types import Type

from model.digests import digest_bytes
from model.files import user_cache

PROJECT = Path(__file__).resolve().parents[1]

_PACKAGES = ("flows", "tasks", "model")

_SETTINGS: Any = config
"""numba's settings, whose names are set at import, so that no type checker knows them."""

_NO_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")
"""Settings that change no machine code."""

MOST_WAITING_SECONDS = 120.0
"""Wait for another process that compiles a kernel; the largest takes 15. A failed compilation keeps its lock."""

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic)


def cached(dispatcher: Any) -> Any:
    """Return the compiled function, cached in NUMBA_CACHE_DIR if set, else in the user's cache, else next to the
    module.

    If none of them is writable, and for functions outside of the project, every process compiles for itself.
    """
    dispatcher._cache = _OnFirstCall(dispatcher)
    return dispatcher


class _OnFirstCall:
    """The cache of a kernel, whose key is made when it is first called: kernels that it calls are defined below it."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    @functools.cached_property
    def _found(self) -> Any:
        function = self._dispatcher.py_func
        _OPTIONS[function] = self._dispatcher.targetoptions
        located = _Locator.from_function(function, function.__code__.co_filename) is not None
        return _Cache(function) if located else NullCache()


_OPTIONS: dict[Callable[..., Any], dict[str, Any]] = {}
"""How kernels with a cache are compiled: numba gives a locator the function alone."""


class _Locator(_CacheLocator):
    """Names the folder and file of a kernel for numba. A file of that name is never out of date."""

    def __init__(self, folder: Path, file: str, fingerprint: str) -> None:
        self._folder = folder
        self._py_file = file
        self._fingerprint = fingerprint

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator | None":
        """Return the locator of a function; None for a function outside of the project or without a writable folder."""
        file = Path(py_file).resolve()
        if py_func.__module__.partition(".")[0] not in _PACKAGES or not file.is_relative_to(PROJECT):
            return None
        folder = _writable(str(_SETTINGS.CACHE_DIR), file.parent)
        return None if folder is None else cls(folder / py_func.__module__, py_file, fingerprint(py_func))

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
    """numba's cache. Of processes that need a kernel that it lacks one compiles, and the others wait and load."""

    _impl_class = _Impl
    _lock: BinaryIO | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code of a signature, or None where this process is to compile it."""
        found = super().load_overload(sig, target_context)
        if found is None and self._locked():
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._unlock()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the machine code of a signature, for which other processes may wait."""
        try:
            super().save_overload(sig, data)
        finally:
            self._unlock()

    def _locked(self) -> bool:
        """Return whether another process may have saved the kernel, once it does not compile it any more."""
        path = Path(self._cache_path, f"{self._impl.filename_base}.lock")
        until = time.monotonic() + MOST_WAITING_SECONDS
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A lock of the process and not of the open file: forks do not hold it, and kernels may compile themselves.
            self._lock = path.open("wb")
            while True:
                try:
                    fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except (BlockingIOError, PermissionError):
                    if time.monotonic() > until:
                        return False
                    time.sleep(0.02)
        except OSError:
            # A file system without locks: each process compiles for itself.
            return False

    def _unlock(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(self._lock.name)
            self._lock.close()
            self._lock = None


def fingerprint(function: Callable[..., Any]) -> str:
    """Return the digest of what the machine code of a function depends on, besides numba and the processor: numba's
    settings, too.

    Raises TypeError for a value that a kernel reads and whose content cannot be described.
    """
    libraries = f"{np.__version__} {llvmlite.__version__}"
    settings = sorted(
        f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_") and name not in _NO_CODE
    )
    return digest_bytes(
        "\n".join([libraries, *settings, *_function(function, _OPTIONS.get(function, {}), {})]).encode()
    )


def _function(function: Any, options: dict[str, Any], met: dict[int, int]) -> Iterator[str]:
    """Yield lines of a function, and of all that it reads, each met once."""
    if id(function) in met:
        yield f"see {met[id(function)]}"
        return
    met[id(function)] = len(met)
    # Machine code refers to modules by name, so it cannot be loaded after a definition moved to another module.
    yield f"{function.__module__}:{function.__qualname__} {sorted(options.items())}"
    yield from _code(function.__code__, function.__doc__)
    for value in (*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ())):
        yield from _value(value, (), met)
    names = _names(function.__code__)
    for name in names:
        if name in function.__globals__:
            yield name
            yield from _value(function.__globals__[name], names, met)


def _code(code: CodeType, doc: str | None = None) -> Iterator[str]:
    variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {code.co_flags} {code.co_argcount} {variables}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif doc is None or constant != doc:
            # The order of a set of texts differs from process to process.
            shown = sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
            yield f"{type(constant).__name__} {shown}"


def _names(code: CodeType) -> tuple[str, ...]:
    """Return all names of globals and attributes that code uses, functions inside of it included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for one in inner for name in _names(one))]))


def _value(value: Any, names: tuple[str, ...], met: dict[int, int]) -> Iterator[str]:
    """Yield lines of a value; of a module of the project those of its attributes that are among `names`."""
    if isinstance(value, Dispatcher):
        yield from _function(value.py_func, value.targetoptions, met)
    elif isinstance(value, _Intrinsic):
        yield from _function(value._defn, {}, met)
    elif isinstance(value, FunctionType):
        yield from _function(value, {}, met)
    elif isinstance(value, _NUMBERS):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str} {value.shape} {digest_bytes(np.ascontiguousarray(value).tobytes())}"
    elif isinstance(value, tuple):
        yield f"{type(value).__name__} of {len(value)}"
        for one in value:
            yield from _value(one, (), met)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
        if value.__name__.partition(".")[0] in _PACKAGES:
            for name in names:
                if hasattr(value, name):
                    yield name
                    yield from _value(getattr(value, name), names, met)
    elif isinstance(value, type):
        members = [f"{name} {member.value!r}" for name, member in getattr(value, "__members__", {}).items()]
        yield f"class {value.__module__}:{value.__qualname__} {getattr(value, '_fields', ())} {members}"
        # An intrinsic may be written as a class of the project.
        if value.__module__.partition(".")[0] in _PACKAGES:
            for method in vars(value).values():
                if isinstance(method, FunctionType) and method.__module__ == value.__module__:
                    yield from _function(method, {}, met)
    elif isinstance(value, Type | BuiltinFunctionType | np.ufunc):
        yield f"{type(value).__name__} {value}"
    else:
        raise TypeError(f"a kernel reads a {type(value).__name__}, of which numba's frozen copy cannot be recognised")


@contextmanager
def reporting_compilation(report: Callable[[], None]) -> Iterator[None]:
    """Call `report` once when a kernel is compiled within the block; not where all come from the cache."""
    with event.install_listener("numba:compile", _CompilationListener(report)):
        yield


class _CompilationListener(event.Listener):
    def __init__(self, report: Callable[[], None]) -> None:
        self._report = functools.cache(report)

    def on_start(self, event: Any) -> None:
        self._report()

    def on_end(self, event: Any) -> None:
        pass


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
