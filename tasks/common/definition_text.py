"""A definition as text (`model.code_digest`), and what it does that decides how it counts.

Every name from outside is replaced by a mark, and the references that the marks mean are listed. Python's scopes are
followed exactly: parameters, nested functions, comprehensions, class bodies, `global` and `nonlocal`, imports inside
functions.
"""

import ast
import builtins
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from model.code_digest import TreeText
from tasks.common.scopes import IMPORTS, Imported, Reference, bound_by_targets, bound_in, import_aliases, imported

PACKAGES = ("flows", "tasks", "model")

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

MUTATING = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop", "popitem"),
        *("popleft", "put", "register", "remove", "reverse", "setdefault", "sort", "update", "__setitem__"),
    }
)

_MAKING = frozenset({"__init__", "__new__", "__post_init__", "model_post_init"})


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


@dataclass(frozen=True)
class Outside:
    """What a definition can refer to in the module around it."""

    module: str
    package: str
    names: Container[str]
    """All that the top level binds."""
    aliases: Mapping[str, Reference]
    stars: bool
    """Whether a star import may bind other names."""
    walrus: bool
    """Whether expressions may bind names."""


class _Scope(NamedTuple):
    bound: dict[str, list[Reference] | None]
    """Name -> its targets by imports inside of the scope; None for a variable."""
    of_module: frozenset[str] = frozenset()
    """Names declared `global`."""
    of_class: bool = False
    given: frozenset[str] = frozenset()
    """Parameters."""
    function: str = ""


def write_definition(
    bound: Sequence[ast.stmt | Reference],
    outside: Outside,
    without: Sequence[ast.stmt] | None = None,
    within: dict[str, list[Reference] | None] | None = None,
) -> Written:
    """Return the definition made of the statements that bind a name, in their order.

    Of a class, the methods in `without` are left out; `within` are the names that the body of the class around a method
    binds.
    """
    scopes = [] if within is None else [_Scope(within, of_class=True)]
    return _Definition(outside, without, scopes).written(bound)


class _Definition(TreeText):
    """Writes a definition as text, with marks in place of names from outside."""

    def __init__(self, outside: Outside, without: Sequence[ast.stmt] | None, scopes: list[_Scope]) -> None:
        super().__init__()
        self._outside = outside
        self._without = without
        self._found = Written()
        self._scopes = scopes
        self._annotating = False
        self._lenient = False
        self._called: ast.Call | None = None

    def written(self, bound: Sequence[ast.stmt | Reference]) -> Written:
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
            self._found.writes_state |= any(one.module.partition(".")[0] in PACKAGES for one in references)
        if self._scopes and self._scopes[-1].of_class:
            self._takes(root.id)
        if not variable and not references:
            self._unbound(root, attributes)
        if variable or not references:
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
        if name in self._outside.aliases:
            return [self._outside.aliases[name]]
        if name in self._outside.names or (self._outside.stars and name not in BUILTINS):
            return [Reference(self._outside.module, (name,))]
        return []

    def _unbound(self, root: ast.Name, attributes: Sequence[str]) -> None:
        """Record a name that nothing binds: of a builtin, or one that is unknown."""
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
        self._found.names.update(dict.fromkeys(names))

    def _refuse(self, node: ast.AST, name: str) -> None:
        self._found.refused = self._found.refused or (getattr(node, "lineno", 0), name)

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
            found = list(imported(statement, self._outside.package))
            self._found.imports.extend(found)
            return all(one.module.partition(".")[0] in PACKAGES for one in found)
        if self._without and statement in self._without:
            return True
        return super().left_out(statement)

    def on_import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.write("import")
        if self._scopes:
            self.write(ascii(list(imported(node, self._outside.package))))
            return
        for alias, (name, reference) in zip(node.names, import_aliases(node, self._outside.package), strict=True):
            self.write(f" {name}=")
            self._refer(Reference(alias.name, ()) if isinstance(node, ast.Import) else reference, node)

    on_importfrom = on_import

    def on_assign(self, node: ast.Assign | ast.Delete) -> None:
        self._writes_to(node.targets)
        self.plain(node)

    def on_delete(self, node: ast.Delete) -> None:
        # `del (a, b)` is `del a, b` on a line that is too long.
        groups = [one.elts if isinstance(one, ast.Tuple | ast.List) else [one] for one in node.targets]
        self.on_assign(ast.Delete([target for group in groups for target in group]))

    def on_augassign(self, node: ast.AugAssign) -> None:
        self._writes_to([node.target])
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

    def on_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
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

    on_asyncfunctiondef = on_functiondef

    def on_lambda(self, node: ast.Lambda) -> None:
        self.write("Lambda(")
        self.node(node.args)
        self.write(")")
        with self._within(self._scope_of(node.args, [ast.Expr(node.body)])):
            self.node(node.body)

    def _scope_of(self, arguments: ast.arguments, body: Sequence[ast.stmt], function: str = "") -> _Scope:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        given = frozenset(argument.arg for argument in every if argument is not None)
        bound, of_module = bound_in(body, self._outside.package, self._outside.walrus)
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
        bound, of_module = bound_in(node.body, self._outside.package, self._outside.walrus)
        with self._within(_Scope(bound, of_module, of_class=True)):
            self.statements(node.body)

    def on_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
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
            self.listed("values", [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self.write(")")

    on_setcomp = on_generatorexp = on_dictcomp = on_listcomp

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
            with suppress(SyntaxError):
                inner = ast.parse(node.value, mode="eval").body
                before, self._lenient = self._lenient, True
                self.node(inner)
                self._lenient = before
                return
        if isinstance(node.value, str):
            # `getattr(x, "go")`, `attrgetter("go.on")`, `"{.go}".format(x)`
            # ASCII alone: which other characters identifiers may have depends on the version of Python.
            if all(part.isascii() and part.isidentifier() for part in node.value.split(".")):
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
