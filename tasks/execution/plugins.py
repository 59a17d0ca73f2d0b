"""Find, fingerprint and load functions of the user, named `module:function` in a recipe.

This is the only module below `flows/` that imports by name. A stage's declaration resolves the names before the build,
passes the functions on, and counts their fingerprints in the identity as it does with inputs; the code of the stage
does not import this module. A fingerprint covers the user's module and every module of the same folder that it reaches
by static imports, by meaning as our own code (`tasks/common/code_fingerprint.py`), and the versions of the installed
distributions that they import. The fingerprinted code is the code that runs, whatever happens to the files."""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

from model.code_digest import meaning
from model.digests import digest_bytes, read_bytes
from model.errors import RecipeError
from tasks.common.definition_text import COMPUTED_CODE, DYNAMIC_IMPORTS, PACKAGES
from tasks.common.digests import combined_digest
from tasks.common.scopes import IMPORTS, imported

_folders: set[str] = set()


@dataclass(frozen=True)
class Extension:
    """A function of the user and the fingerprint of the code behind it."""

    name: str
    folder: Path
    function: Callable[..., Any]
    fingerprint: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Load the code again in another process, which refuses code that differs."""
        return _load_again, (self.name, self.folder, self.fingerprint)


def load_extension(name: str, folder: Path, where: str) -> Extension:
    """Return the function `module:function` with the module in `folder`; `where` is the recipe's key, for errors.

    Raises RecipeError if there is no such module or function, or the module fails or imports by computed names.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        raise RecipeError(f"{where}: `{name}` is not of the form module:function")
    if module.partition(".")[0] in (*PACKAGES, *sys.stdlib_module_names):
        raise RecipeError(
            f"{where}: a module of yours cannot have the name `{module}`, which is taken; rename the file"
        )
    folder = folder.resolve()
    sources, fingerprint = _fingerprint(module, folder, name, where)
    loaded = _load(module, folder, sources, name, where)
    function = getattr(loaded, attribute, None)
    if function is None:
        existing = ", ".join(sorted(key for key, value in vars(loaded).items() if callable(value) and key[0] != "_"))
        raise RecipeError(f"{where}: `{name}`: {module} has no `{attribute}`; it has {existing or 'no function'}")
    return Extension(name, folder, function, fingerprint)


def _load_again(name: str, folder: Path, fingerprint: str) -> Extension:
    extension = load_extension(name, folder, str(folder))
    if extension.fingerprint != fingerprint:
        raise RecipeError(f"{folder}: the code behind `{name}` was edited while it ran; run again")
    return extension


@dataclass(frozen=True)
class _Source:
    """A module of the user, as fingerprinted."""

    path: Path
    code: bytes


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs the fingerprinted bytes instead of the file or its `.pyc`, which may have changed since."""

    def __init__(self, module: str, source: _Source) -> None:
        super().__init__(module, str(source.path))
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source.code, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of the user, also those that a function imports when it is called."""

    def __init__(self) -> None:
        self.sources: dict[str, _Source] = {}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if (source := self.sources.get(fullname)) is None:
            return None
        inner = [str(source.path.parent)] if source.path.name == "__init__.py" else None
        loader = _Loader(fullname, source)
        return spec_from_file_location(fullname, source.path, loader=loader, submodule_search_locations=inner)


_finder = _Finder()


def _load(module: str, folder: Path, sources: dict[str, _Source], name: str, where: str) -> Any:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    # Another folder may hold a module of the same name, so only the one in use stays on the path.
    sys.path[:] = [place for place in sys.path if place not in _folders]
    sys.path.append(str(folder))
    _folders.add(str(folder))
    _finder.sources = {
        key: source for key, source in _finder.sources.items() if source.path.is_relative_to(folder)
    } | sources
    if any(_is_loaded_otherwise(reached, source) for reached, source in sources.items()):
        # A long-lived process must not reuse an older version of a file, or another folder's module of its name.
        for reached in sources:
            sys.modules.pop(reached, None)
    importlib.invalidate_caches()
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # A script may end the process.
        raise RecipeError(f"{where}: `{name}`: importing {module} failed: {type(error).__name__}: {error}") from error
    if not _lies_in(loaded, folder):
        raise RecipeError(
            f"{where}: `{name}`: `{module}` was imported from {getattr(loaded, '__file__', 'elsewhere')}, not from"
            f" {folder}; rename your module"
        )
    return loaded


def _is_loaded_otherwise(module: str, source: _Source) -> bool:
    """Return whether the loaded module of this name runs something else than the source."""
    loader = getattr(sys.modules.get(module), "__loader__", None)
    return module in sys.modules and not (isinstance(loader, _Loader) and loader.source == source)


def _lies_in(module: Any, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(folder)


def _fingerprint(module: str, folder: Path, name: str, where: str) -> tuple[dict[str, _Source], str]:
    sources: dict[str, _Source] = {}
    digests: dict[str, str] = {}
    libraries: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current in digests:
            continue
        path = _file_of(current, folder)
        if path is None:
            if current == module:
                raise RecipeError(f"{where}: `{name}`: there is no {module.replace('.', '/')}.py in {folder}")
            libraries.add(current.partition(".")[0])
            continue
        try:
            sources[current] = _Source(path, read_bytes(path))
            tree = ast.parse(sources[current].code, filename=str(path))
            digests[current] = digest_bytes(meaning(tree).encode())
        except RecursionError as error:
            raise RecipeError(
                f"{where}: `{name}`: {path} has an expression of too many parts to be read; write it as a loop or in"
                f" several statements"
            ) from error
        except SyntaxError as error:
            raise RecipeError(f"{where}: `{name}`: {path}:{error.lineno or 1}: {error.msg}") from error
        except OSError as error:
            raise RecipeError(f"{where}: `{name}`: {path} cannot be read ({error})") from error
        waiting.extend(_imports(tree, current, path, folder, where))
        # Importing `a.b` runs the package `a` first.
        if (package := current.rpartition(".")[0]) and _file_of(package, folder) is not None:
            waiting.append(package)
    versions = {library: _version(library) for library in sorted(libraries - set(sys.stdlib_module_names))}
    return sources, combined_digest([*sorted(digests.items()), *versions.items()])


def _file_of(module: str, folder: Path) -> Path | None:
    base = folder.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imports(tree: ast.Module, module: str, path: Path, folder: Path, where: str) -> list[str]:
    found: list[str] = []
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, IMPORTS):
            for base, names in imported(node, package):
                found += filter(None, [base.strip(".")])
                children = [f"{base}.{name}".strip(".") for name in names]
                found += [child for child in children if _file_of(child, folder) is not None]
            used = [alias.name for alias in node.names]
        else:
            used = [getattr(node, "id", getattr(node, "attr", ""))]
        if refused := (DYNAMIC_IMPORTS | COMPUTED_CODE).intersection(used):
            raise RecipeError(
                f"{where}: {path}:{getattr(node, 'lineno', 1)} uses `{min(refused)}`, and what that loads cannot be"
                f" known; use a static import"
            )
    return found


def _version(library: str) -> str:
    distributions = importlib.metadata.packages_distributions().get(library, [])
    return ",".join(sorted(f"{name}=={importlib.metadata.version(name)}" for name in set(distributions))) or "unknown"
