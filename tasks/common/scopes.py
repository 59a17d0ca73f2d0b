"""Names that a block of code binds in its own scope, and what imports bind, without looking into other modules."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

NAMED = (*FUNCTIONS, ast.ClassDef)

IMPORTS = (ast.Import, ast.ImportFrom)

_WITH_TARGETS = (ast.Assign, ast.Delete)

_WITH_TARGET = (ast.AugAssign, ast.AnnAssign)

_WITHOUT_BLOCKS = (ast.Expr, ast.Return, ast.Raise, ast.Pass, ast.Assert)


class Reference(NamedTuple):
    """A chain of attributes of a module: `tasks.common.numeric`, (`seed64`,)."""

    module: str
    attributes: tuple[str, ...]


class Imported(NamedTuple):
    """An imported module, and the names imported from it, which may be modules too."""

    module: str
    names: tuple[str, ...]


def imported(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[Imported]:
    """Yield the modules that a statement imports."""
    if isinstance(statement, ast.Import):
        yield from (Imported(alias.name, ()) for alias in statement.names)
    else:
        yield Imported(_absolute(statement, package), tuple(alias.name for alias in statement.names))


def import_aliases(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Reference]]:
    """Yield each name that an import binds, and its target."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, Reference(_absolute(statement, package), (alias.name,))
        elif alias.asname:
            yield alias.asname, Reference(alias.name, ())
        else:
            first = alias.name.partition(".")[0]
            yield first, Reference(first, ())


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    if statement.level == 0:
        return statement.module or ""
    for _ in range(statement.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{statement.module}" if statement.module else package


def bound_in(
    statements: Iterable[ast.stmt], package: str, walrus: bool
) -> tuple[dict[str, list[Reference] | None], frozenset[str]]:
    """Return the names that a block binds in its own scope, and those declared `global`; `walrus` says whether
    expressions may bind names too."""
    # Visiting only statements and targets, and not all expressions, takes a third of the time.
    waiting = list(statements)
    names: list[str] = list(_bound_by_expressions(waiting)) if walrus else []
    imports: dict[str, list[Reference]] = {}
    elsewhere: set[str] = set()
    of_module: set[str] = set()
    targets: list[ast.expr] = []
    while waiting:
        node: Any = waiting.pop()
        if isinstance(node, NAMED):
            names.append(node.name)
        elif isinstance(node, _WITH_TARGETS):
            targets += node.targets
        elif isinstance(node, _WITH_TARGET):
            targets.append(node.target)
        elif isinstance(node, IMPORTS):
            for name, reference in import_aliases(node, package):
                imports.setdefault(name, []).append(reference)
        elif isinstance(node, ast.Global):
            of_module.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            elsewhere.update(node.names)
        elif not isinstance(node, _WITHOUT_BLOCKS):
            if isinstance(node, ast.For | ast.AsyncFor):
                targets.append(node.target)
            elif isinstance(node, ast.With | ast.AsyncWith):
                targets += (item.optional_vars for item in node.items if item.optional_vars is not None)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names.append(node.name)
            elif isinstance(node, ast.match_case):
                names += _bound_by_pattern(node.pattern)
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                waiting += getattr(node, block, ())
    names += bound_by_targets(targets)
    variables: dict[str, list[Reference] | None] = dict.fromkeys(names)
    elsewhere |= of_module
    return {name: one for name, one in (variables | imports).items() if name not in elsewhere}, frozenset(of_module)


def bound_by_targets(targets: list[ast.expr]) -> Iterator[str]:
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Starred):
            targets.append(target.value)


def _bound_by_pattern(pattern: ast.pattern) -> Iterator[str]:
    for node in ast.walk(pattern):
        name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
        if isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping) and name:
            yield name


def _bound_by_expressions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that `:=` binds in the scope of these nodes: also inside comprehensions, not inside functions."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.NamedExpr):
            yield node.target.id
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            waiting += [*getattr(node, "decorator_list", ()), *node.args.defaults]
            waiting += filter(None, node.args.kw_defaults)
        elif isinstance(node, ast.ClassDef):
            waiting += [*node.decorator_list, *node.bases, *node.keywords]
        else:
            waiting += ast.iter_child_nodes(node)
