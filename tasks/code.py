"""The fingerprint of a stage's code: which of the project's modules its result can depend on, by meaning.

From declared root modules, every static import of the project's own packages is followed, lazy imports inside
functions included. A module counts as its normalised syntax tree: comments, docstrings (attribute docstrings too),
formatting and log lines do not count. A name taken from `tasks.schema` counts by value. Files beside a module that are
not Python count by their bytes. Dynamic imports are refused, since nobody could know what they reach.

A log line is a call of a logger's method whose arguments cannot act: one that calls anything but a few pure functions
counts as code. What only decides whether a stage runs (`DECIDERS`) is not followed, or each edit there would build all.
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
_WHOLE = 2**31 - 1
DECIDERS = frozenset(
    {
        "tasks.artifacts.published",
        "tasks.build",
        "tasks.code",
        "tasks.confinement",
        "tasks.execution.arrival",
        "tasks.execution.dask",
        "tasks.execution.dask_worker",
        "tasks.execution.executor",
        "tasks.extensions",
        "tasks.identity",
        "tasks.store.attached",
        "tasks.store.patience",
        "tasks.store.published",
        "tasks.workspace",
    }
)
"""Modules that decide whether a stage runs and who works on its parts, and nothing of what it gives: functions of the
user, which `tasks.extensions` loads, count by their own fingerprints as inputs do, what `tasks.store` brings is checked
by its digest, and how long a server is waited for (`tasks.store.patience`) or which files a stranger's recipe may read
(`tasks.confinement`) changes nothing of what is in them."""
LOG_NAMES = frozenset({"log", "logger"})
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_PURE_FUNCTIONS = frozenset(
    {"abs", "all", "any", "float", "int", "len", "list", "max", "min", "repr", "round", "sorted", "str", "sum", "type"}
)
_PURE_METHODS = frozenset({"format", "hex", "items", "join", "keys", "values"})
_DYNAMIC = frozenset({"__import__", "import_module", "run_module", "run_path", "spec_from_file_location"})
_COMPUTED_CODE = frozenset({"eval", "exec"})


def code_closure(roots: Iterable[str]) -> dict[str, str]:
    """Module name (or `tasks.schema:NAME`, or data file) -> fingerprint, for all that `roots` reach.

    Raises Bug for a root that does not exist or for a dynamic import within the closure.
    """
    fingerprints: dict[str, str] = {}
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name in fingerprints or name in DECIDERS:
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
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
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
    _keep_what_acts(tree)
    return ast.dump(tree, annotate_fields=True, include_attributes=False)


def _keep_what_acts(node: ast.AST) -> None:
    """Remove bare strings (docstrings) and log lines from every block."""
    # Expressions hold no statements and are most of a tree: visiting them too took 0.18 s of 0.58 s for all stages.
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(node, block, None)
        if isinstance(statements, list):
            kept = [statement for statement in statements if not _has_no_effect(statement)]
            setattr(node, block, kept or ([ast.Pass()] if block == "body" else []))
            for statement in kept:
                _keep_what_acts(statement)
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        _keep_what_acts(part)


def _has_no_effect(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Import):
        return [(alias.name, alias.asname) for alias in statement.names] == [("logging", None)]
    if isinstance(statement, ast.Assign):
        return _is_logger(statement)
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str)
    return isinstance(value, ast.Call) and _calls_a_logger(value) and not _can_act(value)


def _is_logger(statement: ast.Assign) -> bool:
    """`log = logging.getLogger(...)`"""
    (target, *others), made = statement.targets, statement.value
    return (
        not others
        and isinstance(target, ast.Name)
        and target.id in LOG_NAMES
        and isinstance(made, ast.Call)
        and ast.unparse(made.func) == "logging.getLogger"
    )


def _calls_a_logger(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOG_METHODS
        and isinstance(function.value, ast.Name)
        and function.value.id in LOG_NAMES
    )


def _can_act(call: ast.Call) -> bool:
    """Whether an argument of the call does more than look."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
                return True
            if isinstance(node, ast.Call) and not _is_pure(node.func):
                return True
    return False


def _is_pure(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _PURE_FUNCTIONS
    return isinstance(function, ast.Attribute) and function.attr in _PURE_METHODS


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
            if node.module == "importlib" and any(alias.name in _DYNAMIC for alias in node.names):
                raise _dynamic(path, node)
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func):
            raise _dynamic(path, node)


def _dynamic(path: Path, node: ast.stmt | ast.expr) -> Bug:
    return Bug(f"code closure: {path}:{node.lineno} imports a module by a computed name; use a static import")


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
        yield from _with_packages(module if _module_path(submodule) is None else submodule)


def _with_packages(module: str) -> Iterable[str]:
    """The module and the packages above it, since importing it runs their `__init__` too."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _is_dynamic_import(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _DYNAMIC | _COMPUTED_CODE
    return isinstance(function, ast.Attribute) and function.attr in _DYNAMIC


def _schema_fingerprint(name: str) -> str:
    value = getattr(tasks.schema, name)
    text = (
        value.to_string(truncate_metadata=False, element_size_limit=_WHOLE)
        if isinstance(value, pa.Schema)
        else repr(value)
    )
    return digest_bytes(text.encode())


def _data_files(module: Path) -> dict[str, str]:
    if module.parent in (PROJECT, *(PROJECT / package for package in PACKAGES)):
        return {}
    return {path.relative_to(PROJECT).as_posix(): digest_file(path) for path in _data_below(module.parent)}


def _data_below(folder: Path) -> Iterable[Path]:
    """What is neither Python nor hidden in a folder, and in its folders that are no packages."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir():
            if not (path / "__init__.py").exists():
                yield from _data_below(path)
        elif path.suffix not in {".py", ".pyc", ".pyi"}:
            yield path
