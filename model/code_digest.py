"""A digest of code by its meaning: a canonical text of syntax trees, the same under every version of Python.

Comments, docstrings (of attributes too), formatting and log lines do not count. A log line is a call of a logger's
method whose arguments have no effects: calls in them are limited to a few pure functions.

`ast.dump` gives no such text: versions of Python differ in the fields of nodes, and in how they split f-strings. Only
the standard library is imported with this module, so that tests can run it under interpreters without packages.
"""

import ast
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

LOG_NAMES = frozenset({"log", "logger"})

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})

_PURE_FUNCTIONS = frozenset(
    {"abs", "all", "any", "float", "int", "len", "list", "max", "min", "repr", "round", "sorted", "str", "sum", "type"}
)

_PURE_METHODS = frozenset({"format", "hex", "items", "join", "keys", "values"})

_WITHOUT_MEANING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields that follow from the rest of a tree, or have no effect."""


@functools.cache
def code_digest(package: Path = Path(__file__).parent) -> str:
    """Return the BLAKE3-128 of the names and syntax trees of all modules of a package, 32 hexadecimal digits."""
    from model.digests import digest_bytes

    trees = (
        f"{path.relative_to(package).as_posix()}\n{meaning(ast.parse(path.read_bytes()))}"
        for path in sorted(package.rglob("*.py"))
    )
    return digest_bytes("\0".join(trees).encode())


def meaning(tree: ast.Module) -> str:
    """Return the text of a module's tree."""
    text = TreeText()
    text.statements(tree.body)
    return text.text()


class TreeText:
    """Writes trees; subclasses can write names differently."""

    _writers: ClassVar[dict[type[ast.AST], Callable[[Any, Any], None]]] = {}

    def __init_subclass__(cls) -> None:
        cls._writers = {}

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.write = self._parts.append

    def text(self) -> str:
        """Return all that was written."""
        return "".join(self._parts)

    def node(self, node: ast.AST) -> None:
        """Write a node and its children."""
        kind = type(node)
        write = self._writers.get(kind)
        if write is None:
            write = self._writers[kind] = getattr(type(self), f"on_{kind.__name__.lower()}", TreeText.plain)
        write(self, node)

    def plain(self, node: ast.AST) -> None:
        """Write a node by its fields, without those that are None or empty: versions of Python differ in which
        exist."""
        name, fields = _form(type(node))
        write = self.write
        write(name)
        for field, label in fields:
            value = getattr(node, field, None)
            if value is None:
                continue
            if isinstance(value, ast.AST):
                write(label)
                self.node(value)
            elif not isinstance(value, list):
                write(label)
                write(ascii(value))
            elif value:
                write(label)
                self.listed(field, value)
        write(")")

    def listed(self, field: str, values: list[Any]) -> None:
        """Write the list in a field; statements without those that have no effect."""
        if field in ("body", "orelse", "finalbody"):
            self.statements(values)
            return
        self.write("[")
        for value in values:
            if isinstance(value, ast.AST):
                self.node(value)
            else:
                self.write("-" if value is None else ascii(value))
            self.write(",")
        self.write("]")

    def statements(self, statements: Iterable[ast.stmt]) -> None:
        """Write a block."""
        self.write("[")
        for statement in statements:
            if not self.left_out(statement):
                self.node(statement)
                self.write(";")
        self.write("]")

    def left_out(self, statement: ast.stmt) -> bool:
        """Return whether a statement is ignored."""
        return has_no_effect(statement)

    def chain(self, root: ast.Name, attributes: Sequence[str]) -> None:
        """Write a name and a chain of its attributes."""
        self.write(".".join((root.id, *attributes)))

    def on_name(self, node: ast.Name) -> None:
        """Write a bare name."""
        self.chain(node, ())

    def on_attribute(self, node: ast.Attribute) -> None:
        """Write an attribute; as a chain where it starts with a name."""
        attributes = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            attributes.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self.chain(value, attributes[::-1])
        else:
            self.node(value)
            self.write("." + ".".join(attributes[::-1]))

    def on_constant(self, node: ast.Constant) -> None:
        """Write a value by `ascii`: what `repr` escapes depends on the interpreter's version of Unicode."""
        self.write(ascii(node.value))

    def on_joinedstr(self, node: ast.JoinedStr) -> None:
        """Write an f-string, whose constant parts versions of Python split differently."""
        self.write("f[")
        for part in _parts(node):
            if isinstance(part, str):
                self.write(ascii(part))
            else:
                self.write("{")
                self.node(part.value)
                self.write(f"!{part.conversion}")
                if part.format_spec is not None and _parts(part.format_spec):
                    self.node(part.format_spec)
                self.write("}")
            self.write(",")
        self.write("]")


def _parts(node: ast.expr) -> list[str | ast.FormattedValue]:
    parts: list[str | ast.FormattedValue] = []
    for value in node.values if isinstance(node, ast.JoinedStr) else [node]:
        for part in _parts(value) if isinstance(value, ast.JoinedStr) else [value]:
            found = part.value if isinstance(part, ast.Constant) else part
            if isinstance(found, str) and parts and isinstance(parts[-1], str):
                parts[-1] += found
            elif found != "":
                assert isinstance(found, str | ast.FormattedValue)
                parts.append(found)
    return parts


@functools.cache
def _form(kind: type[ast.AST]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return how the text of a node begins, and its fields with their labels."""
    fields = tuple((field, f",{field}=") for field in kind._fields if field not in _WITHOUT_MEANING)
    return f"{kind.__name__}(", fields


def has_no_effect(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, a log line, what a log line needs, or `pass`."""
    if isinstance(statement, ast.Pass):
        return True
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
    """Return whether a statement is `log = logging.getLogger(...)`."""
    (target, *others), value = statement.targets, statement.value
    return (
        not others
        and isinstance(target, ast.Name)
        and target.id in LOG_NAMES
        and isinstance(value, ast.Call)
        and ast.unparse(value.func) == "logging.getLogger"
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
    """Return whether an argument of the call may have effects."""
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
