"""A module of the project as definitions: what its top level binds, and what each definition refers to.

A definition is a function, a class or a constant: the top-level statements that bind its name. A method that nothing
but its name leads to is a definition of its own, `Class.method`. Each is written as text (`model.code_digest`) in which
every name from outside is replaced by a mark, together with a list of the references that the marks stand for. Python's
scopes are followed exactly: parameters, nested functions, comprehensions, class bodies, `global` and `nonlocal`, imports
inside functions.

Nothing here reads another module: `tasks.common.code_fingerprint` follows the references from module to module.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from model.code_digest import TreeText, has_no_effect
from tasks.common.scopes import (
    FUNCTIONS,
    IMPORTS,
    NAMED,
    Imported,
    Reference,
    bound_by_targets,
    bound_in,
    import_aliases,
    imported,
)

PACKAGES = ("flows", "tasks", "model")

WHOLE = "*"
"""The name of the definition that is a whole module."""

MAIN = "__main__"
"""The name of the definition that is a module's `if __name__ == ...` block."""

MARK = "#"

DYNAMIC_IMPORTS = frozenset({"__import__", "import_module", "run_module", "run_path", "spec_from_file_location"})

COMPUTED_CODE = frozenset({"eval", "exec"})

SUBCLASSES = "__subclasses__"

LOADED = "sys.modules"

_PLACES = frozenset({"__file__", "__path__", "__spec__"})

_DATA = ("importlib.resources", "pkgutil.get_data")

_REFUSED = DYNAMIC_IMPORTS | {SUBCLASSES}

BUILTINS = frozenset(dir(builtins)) | {
    *("__annotations__", "__class__", "__doc__", "__module__", "__name__", "__package__", "__qualname__", *_PLACES)
}

_NAMESPACES = frozenset({"globals", "vars", "locals"})

_BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr", "vars", "dir"})

_TAKEN_BY_FORMAT = re.compile(r"\.(\w+)")

_ALL_ATTRIBUTES = frozenset({"__dict__", "__getattribute__"})

_BINDING = frozenset({"staticmethod", "classmethod", "property", "functools.cached_property"})
"""Decorators of methods that do not call or keep the function when the class is made."""

MUTATING = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop", "popitem"),
        *("popleft", "put", "register", "remove", "reverse", "setdefault", "sort", "update", "__setitem__"),
    }
)

_MAKING = frozenset({"__init__", "__new__", "__post_init__", "model_post_init"})


class Called(NamedTuple):
    """A call that importing a module makes, and its arguments."""

    function: Reference | None
    arguments: tuple[Reference, ...]


@dataclass
class Written:
    """The text of a definition, and one reference for each mark in the text."""

    text: str = ""
    references: list[Reference] = field(default_factory=list)
    imports: list[Imported] = field(default_factory=list)
    """Imports inside of functions."""
    refused: tuple[int, str] | None = None
    """Line and name of what cannot be followed: an import by a computed name, or code from text."""
    names_its_file: bool = False
    names_its_module: bool = False
    """Whether the definition uses the module as a whole (`globals()`), or a name that nothing binds."""
    names: dict[str, None] = field(default_factory=dict)
    """Names that it may take from objects: attributes, names within class bodies, keywords, and texts that are names.
    Those taken from references are in `references`."""
    bases: list[Reference] = field(default_factory=list)
    """Base classes of classes that are written with all their methods."""
    computes_names: bool = False
    """Whether it may take other names, by `getattr` and the like."""
    writes_state: bool = False
    """Whether a function changes the state of a module."""
    writes_given: bool = False
    """Whether a function changes its arguments."""
    writes_self: bool = False
    """Whether a method changes its object after construction."""


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

    def definitions(self) -> list[str]:
        """Return the names of its functions, classes, methods and constants."""
        return list(self._written)

    def written(self, name: str) -> Written:
        """Return one of its definitions."""
        if name not in self._written:
            assert name == WHOLE, f"{self.name}: {name}"
            self._written[name] = _Definition(self).written(self._parse())
        return self._written[name]

    def _parse(self) -> list[ast.stmt]:
        return ast.parse(self._source, filename=str(self.path)).body

    def _write_parts(self, name: str, bound: Sequence[ast.stmt | Reference]) -> None:
        """Write a definition, and those methods of a class which are definitions of their own."""
        methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] | None = None
        match bound:
            case [ast.ClassDef(keywords=[]) as node] if self._takes_only_fields(node):
                within, _ = bound_in(node.body, self.package, self.walrus)
                methods = {method.name: method for method in self._separable(node, frozenset(within))}
                self.methods[name] = sorted(methods)
                for method in methods.values():
                    self._written[f"{name}.{method.name}"] = _Definition(self).written([method], within=within)
        self._written[name] = _Definition(self, without=None if methods is None else [*methods.values()]).written(bound)

    def _takes_only_fields(self, node: ast.ClassDef) -> bool:
        """Return whether nothing that makes a class can see its methods, but for its base classes."""
        named = len(self.bases[node.name]) == len(node.bases) and not self.stars
        return named and all(self._full_name(mark) == "dataclasses.dataclass" for mark in node.decorator_list)

    def _separable(
        self, node: ast.ClassDef, within: frozenset[str]
    ) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield the methods of a class, `within` whose body names are bound, that only count where they are used."""
        taken = [name for statement in node.body for name in bound_in([statement], self.package, self.walrus)[0]]
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


class _Scope(NamedTuple):
    bound: dict[str, list[Reference] | None]
    """Name -> its targets by imports inside of the scope; None for a variable."""
    of_module: frozenset[str] = frozenset()
    """Names declared `global`."""
    of_class: bool = False
    given: frozenset[str] = frozenset()
    """Parameters."""
    function: str = ""


class _Definition(TreeText):
    """Writes a definition as text, with marks in place of names from outside."""

    def __init__(self, module: Module, without: Sequence[ast.stmt] | None = None) -> None:
        super().__init__()
        self._module = module
        self._without = without
        self._found = Written()
        self._scopes: list[_Scope] = []
        self._annotating = False
        self._lenient = False
        self._called: ast.Call | None = None

    def written(
        self, bound: Sequence[ast.stmt | Reference], within: dict[str, list[Reference] | None] | None = None
    ) -> Written:
        """Return the definition made of the statements that bind a name, in their order; `within` are the names that
        the body of the class around them binds."""
        if within is not None:
            self._scopes.append(_Scope(within, of_class=True))
        for one in bound:
            if isinstance(one, Reference):
                self._refer(one)
            else:
                self.node(one)
            self.write("\n")
        self._found.text = self.text()
        return self._found

    @contextmanager
    def _within(self, scope: _Scope) -> Iterator[None]:
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()

    # Names

    def on_call(self, node: ast.Call) -> None:
        """Write a call, whose arguments decide what some builtins do."""
        self._called = node
        self.plain(node)

    def chain(self, root: ast.Name, attributes: Sequence[str]) -> None:
        """Write a name unchanged if it is a variable, and as a mark if it comes from the top level."""
        variable, references = self._lookup(root.id)
        if (variable or not self._scopes) and not isinstance(root.ctx, ast.Load):
            self.write(root.id)
            return
        if references and attributes[-1:] and attributes[-1] in MUTATING and self._scopes:
            self._found.writes_state |= any(self._is_ours(reference) for reference in references)
        if self._scopes and self._scopes[-1].of_class:
            self._takes(root.id)
        if variable or not (references or self._builtin(root, attributes)):
            self._takes(*attributes)
            if attributes[-1:] and attributes[-1] in MUTATING:
                self._changes(root.id)
            self.write(".".join((root.id, *attributes)))
        for reference in references:
            self._refer(Reference(reference.module, (*reference.attributes, *attributes)), root)

    def _lookup(self, name: str) -> tuple[bool, list[Reference]]:
        """Return whether a name is a variable here, and which references it may be otherwise."""
        for depth, scope in enumerate(reversed(self._scopes)):
            if name in scope.of_module:
                break
            if scope.of_class and depth:
                continue
            if name in scope.bound:
                # A class body looks up a name in the module as long as it has not bound it.
                outside = self._at_top(name) if scope.of_class else []
                inside = scope.bound[name]
                return inside is None, [*(inside or ()), *outside]
        return False, self._at_top(name)

    def _at_top(self, name: str) -> list[Reference]:
        if name in self._module.aliases:
            return [self._module.aliases[name]]
        if name in self._module or (self._module.stars and name not in BUILTINS):
            return [Reference(self._module.name, (name,))]
        return []

    def _builtin(self, root: ast.Name, attributes: Sequence[str]) -> bool:
        """Record a name that nothing binds; return False, since it is written unchanged."""
        name = root.id
        arguments = self._called.args if self._called is not None and self._called.func is root else []
        if name in _BY_NAME and not (len(arguments) > 1 and isinstance(arguments[1], ast.Constant)):
            self._found.computes_names = True
        if name in _PLACES:
            self._found.names_its_file = True
        elif name in COMPUTED_CODE | DYNAMIC_IMPORTS and not attributes:
            self._refuse(root, name)
        elif (name in _NAMESPACES and not arguments) or (name not in BUILTINS and not self._lenient):
            self._found.names_its_module = True
        return False

    def _refer(self, reference: Reference, node: ast.AST | None = None) -> None:
        module, attributes = reference
        dotted = ".".join((module, *attributes))
        if node is not None and attributes and attributes[0] in _REFUSED:
            self._refuse(node, attributes[0])
        if dotted.startswith(_DATA):
            self._found.names_its_file = True
        if dotted.startswith(LOADED) and node is not None:
            self._refuse(node, LOADED)
        self._found.references.append(reference)
        self.write(MARK)

    def _takes(self, *names: str) -> None:
        self._found.names |= dict.fromkeys(names)

    def _refuse(self, node: ast.AST, name: str) -> None:
        self._found.refused = self._found.refused or (getattr(node, "lineno", 0), name)

    @staticmethod
    def _is_ours(reference: Reference) -> bool:
        return reference.module.partition(".")[0] in PACKAGES

    def _changes(self, name: str) -> None:
        """Record that a function changes an object that one of its variables names."""
        scope = next((scope for scope in reversed(self._scopes) if name in scope.given), None)
        if scope is not None and name in ("self", "cls"):
            self._found.writes_self |= scope.function not in _MAKING
        elif scope is not None:
            self._found.writes_given = True

    def on_attribute(self, node: ast.Attribute) -> None:
        inner: ast.expr = node
        names: list[str] = []
        while isinstance(inner, ast.Attribute):
            names.append(inner.attr)
            inner = inner.value
        for name in names:
            if name in _REFUSED:
                self._refuse(node, name)
            self._found.computes_names |= name in _ALL_ATTRIBUTES
        if not isinstance(inner, ast.Name):
            self._takes(*names)
        super().on_attribute(node)

    def on_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None:
            self._takes(node.arg)
        self.plain(node)

    def on_matchclass(self, node: ast.MatchClass) -> None:
        self._takes(*node.kwd_attrs)
        self.plain(node)

    # Statements

    def left_out(self, statement: ast.stmt) -> bool:
        """Leave out our imports inside of functions: they count by the uses of their names and by what importing
        runs."""
        if self._scopes and isinstance(statement, IMPORTS):
            found = list(imported(statement, self._module.package))
            self._found.imports.extend(found)
            return all(one.module.partition(".")[0] in PACKAGES for one in found)
        if self._without and statement in self._without:
            return True
        return super().left_out(statement)

    def on_import(self, node: ast.Import) -> None:
        self._on_import(node)

    def on_importfrom(self, node: ast.ImportFrom) -> None:
        self._on_import(node)

    def _on_import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.write("import")
        if self._scopes:
            self.write(ascii(list(imported(node, self._module.package))))
            return
        for alias, (name, reference) in zip(node.names, import_aliases(node, self._module.package), strict=True):
            self.write(f" {name}=")
            self._refer(Reference(alias.name, ()) if isinstance(node, ast.Import) else reference, node)

    def on_assign(self, node: ast.Assign) -> None:
        self._writes_to(node.targets)
        self.plain(node)

    def on_augassign(self, node: ast.AugAssign) -> None:
        self._writes_to([node.target])
        self.plain(node)

    def on_delete(self, node: ast.Delete) -> None:
        self._writes_to(node.targets)
        self.plain(node)

    def on_annassign(self, node: ast.AnnAssign) -> None:
        self._writes_to([node.target])
        self.write(f"AnnAssign{node.simple}(")
        self.node(node.target)
        self.write(":")
        self._annotation(node.annotation)
        if node.value is not None:
            self.write("=")
            self.node(node.value)
        self.write(")")

    def _writes_to(self, targets: Sequence[ast.expr]) -> None:
        """Record a function that changes something outside of it."""
        for target in targets if self._scopes else ():
            root: Any = target
            while isinstance(root, ast.Attribute | ast.Subscript | ast.Starred):
                root = root.value
            if isinstance(root, ast.Tuple | ast.List):
                self._writes_to(root.elts)
            elif isinstance(root, ast.Name):
                of_module = any(root.id in scope.of_module for scope in self._scopes)
                variable, references = self._lookup(root.id)
                self._found.writes_state |= of_module or (bool(references) and root is not target)
                if variable and root is not target:
                    self._changes(root.id)

    # Scopes

    def on_functiondef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def on_asyncfunctiondef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if self._scopes and self._scopes[-1].of_class:
            self._takes(node.name)
        self.write(f"{type(node).__name__} {node.name}(")
        self.listed("decorator_list", node.decorator_list)
        self.node(node.args)
        if node.returns is not None:
            self.write("->")
            self._annotation(node.returns)
        self.write(")")
        with self._within(self._scope_of(node.args, node.body, node.name)):
            self.statements(node.body)

    def on_lambda(self, node: ast.Lambda) -> None:
        self.write("Lambda(")
        self.node(node.args)
        self.write(")")
        with self._within(self._scope_of(node.args, [ast.Expr(node.body)])):
            self.node(node.body)

    def _scope_of(self, arguments: ast.arguments, body: Sequence[ast.stmt], function: str = "") -> _Scope:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        given = frozenset(argument.arg for argument in every if argument is not None)
        bound, of_module = bound_in(body, self._module.package, self._module.walrus)
        return _Scope(dict.fromkeys(given, None) | bound, of_module, given=given, function=function)

    def on_arg(self, node: ast.arg) -> None:
        self.write(node.arg)
        if node.annotation is not None:
            self.write(":")
            self._annotation(node.annotation)

    def on_classdef(self, node: ast.ClassDef) -> None:
        self.write(f"ClassDef {node.name}(")
        self.listed("decorator_list", node.decorator_list)
        before = len(self._found.references)
        self.listed("bases", node.bases)
        if self._without is None or self._scopes:
            self._found.bases += self._found.references[before:]
        self.listed("keywords", node.keywords)
        self.write(")")
        bound, of_module = bound_in(node.body, self._module.package, self._module.walrus)
        with self._within(_Scope(bound, of_module, of_class=True)):
            self.statements(node.body)

    def on_listcomp(self, node: ast.ListComp) -> None:
        self._comprehension(node, node.elt)

    def on_setcomp(self, node: ast.SetComp) -> None:
        self._comprehension(node, node.elt)

    def on_generatorexp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node, node.elt)

    def on_dictcomp(self, node: ast.DictComp) -> None:
        self._comprehension(node, node.key, node.value)

    def _comprehension(self, node: Any, *values: ast.expr) -> None:
        self.write(f"{type(node).__name__}(")
        self.node(node.generators[0].iter)  # looked up outside, before the scope begins
        variables = bound_by_targets([generator.target for generator in node.generators])
        with self._within(_Scope(dict.fromkeys(variables))):
            for number, generator in enumerate(node.generators):
                self.write(f" for{generator.is_async} ")
                self.node(generator.target)
                if number:
                    self.node(generator.iter)
                self.listed("ifs", generator.ifs)
            self.listed("values", list(values))
        self.write(")")

    # Annotations

    def _annotation(self, node: ast.expr) -> None:
        before, self._annotating = self._annotating, True
        try:
            self.node(node)
        finally:
            self._annotating = before

    def on_constant(self, node: ast.Constant) -> None:
        """Write a value; a text inside an annotation as an annotation, whose names need not exist at run time."""
        if self._annotating and isinstance(node.value, str):
            try:
                inner = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                self._plain_constant(node)
                return
            before, self._lenient = self._lenient, True
            self.node(inner)
            self._lenient = before
            return
        self._plain_constant(node)

    def _plain_constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            # `getattr(x, "go")`, `attrgetter("go.on")`, `"{.go}".format(x)`
            if all(part.isidentifier() for part in node.value.split(".")):
                self._takes(*node.value.split("."))
            elif "{" in node.value:
                self._takes(*_TAKEN_BY_FORMAT.findall(node.value))
        super().on_constant(node)

    def on_subscript(self, node: ast.Subscript) -> None:
        if not self._annotating:
            self.plain(node)
            return
        self.node(node.value)
        self.write("[")
        base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for number, one in enumerate(inner):
            self._annotating = base != "Literal" and not (base == "Annotated" and number)
            self.node(one)
            self.write(",")
        self._annotating = True
        self.write("]")
