"""The fingerprint of a stage's code: which of the project's modules its result can depend on, by meaning.

From declared root modules, every static import of the project's own packages is followed, lazy imports inside
functions included. A module counts as its normalised syntax tree: comments, docstrings (attribute docstrings too),
formatting and log lines do not count. A name taken from `tasks.schema` counts by value. Files beside a module that are
not Python count by their bytes. Dynamic imports are refused, since nobody could know what they reach.
"""

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

import tasks.schema
from model.errors import Bug
from tasks.digests import digest_bytes, digest_file

PACKAGES = ("flows", "tasks", "model")
PROJECT = Path(__file__).resolve().parent.parent
SCHEMAS = "tasks.schema"
LOG_NAMES = frozenset({"log", "logger"})


def code_closure(roots: Iterable[str]) -> dict[str, str]:
    """Module name (or `tasks.schema:NAME`, or data file) -> fingerprint, for all that `roots` reach.

    Raises Bug for a root that does not exist or for a dynamic import within the closure.
    """
    fingerprints: dict[str, str] = {}
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name in fingerprints:
            continue
        if name.startswith(f"{SCHEMAS}:"):
            fingerprints[name] = _schema_fingerprint(name.partition(":")[2])
            continue
        path = _module_path(name)
        if path is None:
            raise Bug(f"code closure: module `{name}` is not part of the project at {PROJECT}")
        digest, imported = _read_module(name, path, path.stat().st_mtime_ns)
        fingerprints[name] = digest
        fingerprints.update(_data_files(path))
        waiting.extend(imported)
    return dict(sorted(fingerprints.items()))


def _module_path(name: str) -> Path | None:
    base = PROJECT.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@functools.lru_cache(maxsize=4096)
def _read_module(name: str, path: Path, mtime_ns: int) -> tuple[str, tuple[str, ...]]:
    del mtime_ns  # only there to make an edited file a new cache key
    tree = ast.parse(path.read_bytes(), filename=str(path))
    imported = sorted(set(_project_imports(tree, name, path)))
    return digest_bytes(normalised(tree).encode("utf-8", errors="surrogatepass")), tuple(imported)


def normalised(tree: ast.Module) -> str:
    """The module's syntax tree as text, without what cannot change a result."""
    return ast.dump(_Meaning().visit(tree), annotate_fields=True, include_attributes=False)


class _Meaning(ast.NodeTransformer):
    """Removes bare strings (docstrings) and log lines from every block."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                kept = [statement for statement in statements if not _has_no_effect(statement)]
                setattr(node, block, kept or ([ast.Pass()] if block == "body" else []))
        return node


def _has_no_effect(statement: ast.AST) -> bool:
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str)
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id in LOG_NAMES
    )


def _project_imports(tree: ast.Module, name: str, path: Path) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in PACKAGES:
                    yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, name, path)
            if module.partition(".")[0] in PACKAGES:
                yield from _from_import(module, [alias.name for alias in node.names])
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func):
            raise Bug(f"code closure: {path}:{node.lineno} imports a module by a computed name; use a static import")


def _absolute(node: ast.ImportFrom, name: str, path: Path) -> str:
    if node.level == 0:
        return node.module or ""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def _from_import(module: str, names: list[str]) -> Iterable[str]:
    if module == SCHEMAS:
        yield from (f"{SCHEMAS}:{name}" for name in names)
        return
    for name in names:
        submodule = f"{module}.{name}"
        if submodule == SCHEMAS or _module_path(submodule) is None:
            yield from _with_packages(module)
        else:
            yield from _with_packages(submodule)


def _with_packages(module: str) -> Iterable[str]:
    """The module and the packages above it, since importing it runs their `__init__` too."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _is_dynamic_import(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in {"__import__", "import_module"}
    return isinstance(function, ast.Attribute) and function.attr == "import_module"


def _schema_fingerprint(name: str) -> str:
    value = getattr(tasks.schema, name)
    text = value.to_string(show_schema_metadata=True) if isinstance(value, pa.Schema) else repr(value)
    return digest_bytes(text.encode())


def _data_files(module: Path) -> dict[str, str]:
    if module.parent in (PROJECT, *(PROJECT / package for package in PACKAGES)):
        return {}
    return {
        path.relative_to(PROJECT).as_posix(): digest_file(path)
        for path in sorted(module.parent.iterdir())
        if path.is_file() and path.suffix not in {".py", ".pyc", ".pyi"} and not path.name.startswith(".")
    }
