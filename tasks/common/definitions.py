"""A module of the project as definitions: what its top level binds, and what each definition refers to.

A definition is a function, a class or a constant: the top-level statements that bind its name. A method that nothing
but its name leads to is a definition of its own, `Class.method`. `tasks.common.definition_text` writes each as text.

Nothing here reads another module: `tasks.common.code_fingerprint` follows the references from module to module.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from model.code_digest import has_no_effect
from tasks.common.definition_text import Outside, Written, write_definition
from tasks.common.scopes import FUNCTIONS, IMPORTS, NAMED, Imported, Reference, bound_in, import_aliases, imported

WHOLE = "*"
"""The name of the definition that is a whole module."""

MAIN = "__main__"
"""The name of the definition that is a module's `if __name__ == ...` block."""

_BINDING = frozenset({"staticmethod", "classmethod", "property", "functools.cached_property"})
"""Decorators of methods that do not call or keep the function when the class is made."""


class Called(NamedTuple):
    """A call that importing a module makes, and its arguments."""

    function: Reference | None
    arguments: tuple[Reference, ...]


class Module:
    """The bindings of a module, its imports, and whether importing it does more than bind names."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        self.name = name
        self.path = path
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports: list[Imported] = []
        self.stars: list[str] = []
        self.aliases: dict[str, Reference] = {}
        """Name -> its target, for names that are bound by one plain import and nothing else."""
        self._made_by: dict[str, Reference] = {}
        self.has_side_effects = False
        self.called: list[Called] = []
        self.decorators: list[Reference] = []
        self.bases: dict[str, list[Reference]] = {}
        """Class -> its base classes."""
        self.methods: dict[str, list[str]] = {}
        """Class -> its methods that are definitions of their own, sorted; without classes that only count whole."""
        self.metaclasses: dict[str, Reference] = {}
        self.walrus = b":=" in source
        self._source = source
        bound = self._bound = {}
        self._bind(self._parse())
        self._names = frozenset({*bound, WHOLE})
        self.aliases = {name: one for name, (one, *more) in bound.items() if isinstance(one, Reference) and not more}
        self.variables = frozenset(name for name in bound if _is_variable(bound[name]))
        """Names of objects that code can change: neither functions, nor classes, nor plain values."""
        self._outside = Outside(name, self.package, self._names, self.aliases, bool(self.stars), self.walrus)
        # Written eagerly, so that no syntax tree stays in memory: garbage collection of them took half of the time.
        self._written: dict[str, Written] = {}
        for name in bound:
            if name not in self.aliases:
                self._write_parts(name, bound[name])
        del self._bound

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def may_hold(self, name: str) -> bool:
        """Return whether a name may be that of a submodule."""
        own = Reference(self.name, (name,))
        return self.package == self.name and (name not in self or self.aliases.get(name) == own)

    def maker(self, name: str) -> Reference | None:
        """Return what is called to make a constant; None if it is not made by a call."""
        made_by = self._made_by.get(name)
        return made_by if made_by is None else self.aliases.get(made_by.attributes[0], made_by)

    def written(self, name: str) -> Written:
        if name not in self._written:
            assert name == WHOLE, f"{self.name}: {name}"
            statements = [one for one in self._parse() if not has_no_effect(one)]
            self._written[name] = write_definition(statements, self._outside)
        return self._written[name]

    def _parse(self) -> list[ast.stmt]:
        return ast.parse(self._source, filename=str(self.path)).body

    def _write_parts(self, name: str, bound: Sequence[ast.stmt | Reference]) -> None:
        """Write a definition, and those methods of a class which are definitions of their own."""
        methods: list[ast.FunctionDef | ast.AsyncFunctionDef] | None = None
        match bound:
            case [ast.ClassDef(keywords=[]) as node] if self._takes_only_fields(node):
                within, _ = bound_in(node.body, self.package, self.walrus)
                methods = list(self._separable(node, frozenset(within)))
                self.methods[name] = sorted(method.name for method in methods)
                for method in methods:
                    self._written[f"{name}.{method.name}"] = write_definition([method], self._outside, within=within)
        self._written[name] = write_definition(bound, self._outside, without=methods)

    def _takes_only_fields(self, node: ast.ClassDef) -> bool:
        """Return whether nothing that makes a class can see its methods, but for its base classes."""
        named = len(self.bases[node.name]) == len(node.bases) and not self.stars
        return named and all(self._full_name(mark) == "dataclasses.dataclass" for mark in node.decorator_list)

    def _separable(
        self, node: ast.ClassDef, within: frozenset[str]
    ) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield the methods of a class, `within` whose body names are bound, that only count where they are used."""
        taken: list[str] = []
        for one in node.body:
            if isinstance(one, NAMED) and not self.walrus:
                taken.append(one.name)
            else:
                taken += bound_in([one], self.package, self.walrus)[0]
        for one in node.body:
            if isinstance(one, FUNCTIONS) and not one.name.startswith("__") and taken.count(one.name) == 1:
                marks = one.decorator_list
                if not marks or (len(marks) == 1 and self._full_name(marks[0], within) in _BINDING):
                    yield one

    def _full_name(self, expression: ast.expr, within: frozenset[str] = frozenset()) -> str:
        """Return what an expression names, or calls: `functools.cached_property`; empty if it is ours."""
        called = expression.func if isinstance(expression, ast.Call) else expression
        for _, (first, *rest) in _chains([called], within, self):
            alias = self.aliases.get(first)
            if alias is not None:
                return ".".join((alias.module, *alias.attributes, *rest))
            return "" if first in self else ".".join((first, *rest))
        return ""

    def _bind(self, statements: Iterable[ast.stmt], holder: ast.stmt | None = None, typing: bool = False) -> None:
        """Add statements of the top level; `holder` is the block around them, which counts with each of them."""
        for statement in statements:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self._add(statement.name, holder or statement)
                    self._evaluate(statement, frozenset())
                case ast.Import() | ast.ImportFrom():
                    self._import(statement, holder, typing)
                case ast.If() if _is_test_of(statement.test, "__name__"):
                    self._add(MAIN, statement)
                case ast.If() if _is_test_of(statement.test, "TYPE_CHECKING"):
                    self._bind(statement.body, typing=True)
                    self._bind(statement.orelse, holder)
                case ast.If():
                    self._evaluate(statement.test, frozenset())
                    self._bind([*statement.body, *statement.orelse], holder or statement)
                case ast.Try() | ast.TryStar():
                    caught = [inner for handler in statement.handlers for inner in handler.body]
                    blocks = [*statement.body, *caught, *statement.orelse, *statement.finalbody]
                    self._bind(blocks, holder or statement)
                case ast.Expr() | ast.Pass() if has_no_effect(statement):
                    pass
                case _:
                    bound, _ = bound_in([statement], self.package, self.walrus)
                    for name in bound:
                        self._add(name, holder or statement)
                    self._evaluate(statement, frozenset())
                    made = getattr(statement, "value", None)
                    if isinstance(made, ast.Call):
                        self._made_by |= {name: by for name in bound for by in _chains([made.func], frozenset(), self)}
                    self.has_side_effects |= not _is_constant(statement)

    def _add(self, name: str, bound: ast.stmt | Reference) -> None:
        before = self._bound.setdefault(name, [])
        if bound not in before:
            before.append(bound)

    def _import(self, statement: ast.Import | ast.ImportFrom, holder: ast.stmt | None, typing: bool) -> None:
        if not typing:
            self.imports.extend(imported(statement, self.package))
        for name, reference in import_aliases(statement, self.package):
            if name == "*":
                self.stars.append(reference.module)
            else:
                self._add(name, holder or reference)

    def _evaluate(self, node: ast.AST, own: frozenset[str]) -> None:
        """Record the calls that importing the module makes in a statement; `own` are names of the class around it."""
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, IMPORTS):
            self.imports.extend(imported(node, self.package))
        if isinstance(node, FUNCTIONS):
            self.decorators.extend(_chains(node.decorator_list, own, self))
            for one in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                self._evaluate(one, own)
            return
        if isinstance(node, ast.ClassDef):
            self.decorators.extend(_chains(node.decorator_list, own, self))
            for metaclass in _chains((keyword.value for keyword in node.keywords), own, self):
                self.metaclasses[node.name] = metaclass
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            self.bases.setdefault(node.name, []).extend(_chains(bases, own, self))
            own |= frozenset(bound_in(node.body, self.package, self.walrus)[0])
        elif isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            function = next(_chains([node.func], own, self), None)
            self.called.append(Called(function, tuple(_chains(arguments, own, self))))
        for child in ast.iter_child_nodes(node):
            self._evaluate(child, own)


def _is_test_of(test: ast.expr, name: str) -> bool:
    """Return whether a test is `NAME`, `typing.NAME` or `NAME == ...`."""
    tested = test.left if isinstance(test, ast.Compare) else test
    return (isinstance(tested, ast.Name) and tested.id == name) or (
        isinstance(tested, ast.Attribute) and tested.attr == name
    )


def _is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement only assigns values to plain names."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    plain = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)
    return bool(targets) and all(isinstance(node, plain) for target in targets for node in ast.walk(target))


def _is_variable(bound: Sequence[ast.stmt | Reference]) -> bool:
    plain = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.JoinedStr)
    return any(
        isinstance(one, ast.stmt) and not isinstance(one, NAMED) and not isinstance(getattr(one, "value", None), plain)
        for one in bound
    )


def _chains(expressions: Iterable[ast.expr], own: frozenset[str], module: Module) -> Iterator[Reference]:
    """Yield the references of names and chains of attributes at the top level of a module."""
    for expression in expressions:
        attributes: list[str] = []
        while isinstance(expression, ast.Attribute):
            attributes.append(expression.attr)
            expression = expression.value
        if isinstance(expression, ast.Name) and expression.id not in own:
            yield Reference(module.name, (expression.id, *reversed(attributes)))
