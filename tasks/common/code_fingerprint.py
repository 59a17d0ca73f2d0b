"""The fingerprint of a stage's code: the functions, classes and constants that its result can depend on, by meaning.

From declared roots every reference is followed to its definition, in whatever module that is
(`tasks.common.definitions`). Definitions are numbered in the order in which they are reached, and each counts as its
text, with the numbers of what it refers to in place of names. So the name of a module, the position of a definition in
it, and code that nothing reaches do not count; another target of the same name does.

A module whose top level does more than bind names counts whole as soon as importing a reached definition imports it. So
does a module that is used in a way that cannot be followed. Data files count by their bytes if a definition in the same
folder uses `__file__`. Imports by a computed name are refused, since what they reach cannot be known.

A method counts if its class does and counted code takes an attribute of its name from anything, or has its name as a
text (`getattr(x, "go")`). Where code computes names, all methods count of the classes that it reaches and of their
subclasses; if it reaches none, of those that its callers reach. All methods count of classes that have base classes or
decorators of libraries, since these call methods by name, and so do methods with names of `PROTOCOLS`.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

from model.digests import digest_bytes, digest_file
from model.errors import Bug
from tasks.common.definition_text import BUILTINS, LOADED, MUTATING, PACKAGES, SUBCLASSES, Written
from tasks.common.definitions import WHOLE, Called, Module
from tasks.common.operations import DECLARED_BY, is_operations
from tasks.common.scopes import Imported, Reference

PROJECT = Path(__file__).resolve().parents[2]

PROTOCOLS = frozenset(
    {
        *("read", "read1", "readall", "readinto", "readinto1", "readline", "readlines", "readable", "write"),
        *("writelines", "writable", "flush", "close", "closed", "seek", "seekable", "tell", "truncate", "fileno"),
        *("isatty", "detach", "mode"),
        *("keys", "values", "items", "get", "pop", "popitem", "setdefault", "update", "clear", "copy"),
        *("append", "extend", "insert", "remove", "reverse", "sort", "index", "count", "add", "discard"),
        *("run", "start", "join", "is_alive", "cancel", "submit", "map", "shutdown", "result", "exception", "done"),
        *("cancelled", "running", "set_result", "set_exception", "add_done_callback", "put", "task_done"),
        *("acquire", "release", "locked", "wait", "notify", "send", "throw", "aclose", "asend", "athrow"),
        *("emit", "handle", "format", "filter", "formatTime", "formatException", "formatStack", "createLock"),
        *("default", "encode", "decode", "isoformat", "utcoffset", "dst", "tzname", "as_integer_ratio", "conjugate"),
        *("forward", "backward", "step", "zero_grad", "state_dict", "load_state_dict", "fit", "predict", "transform"),
        *("find_spec", "create_module", "exec_module", "get_data", "pre_tokenize", "normalize"),
    }
)
"""Methods that libraries call on objects that they are given: of files, mappings, lists, threads, futures, queues,
locks, generators, log handlers, encoders, dates, numbers, networks, optimizers and importers."""

_PLAIN_BASES = frozenset({"object", "@abc.ABC", "@typing.Protocol", "@typing.Generic"})
"""Base classes of libraries that call no method of a subclass."""

_BY_NAME = ("@operator.attrgetter", "@operator.methodcaller", "@inspect.", "@builtins.")
"""Functions of the standard library that take attributes by computed names."""

_WHY_IMPORTED = "imports a module by a computed name; use a static import"

_WHY = {
    LOADED: "takes a module from `{}`; use a static import",
    SUBCLASSES: "uses `{}`, and the code does not show which classes these are; list the classes in a table",
    "eval": "runs code from text with `{}`; write it as code",
    "exec": "runs code from text with `{}`; write it as code",
}


class CodeEntry(TypedDict):
    """`Code` as a manifest stores it."""

    digest: str
    roots: list[str]
    definitions: dict[str, str]


@dataclass(frozen=True)
class Code:
    """What the identity of a stage counts of its code."""

    digest: str
    roots: tuple[str, ...]
    definitions: Mapping[str, str]
    """Definition, or data file -> its own digest: shows people what was edited, and does not count itself."""

    def to_json(self) -> CodeEntry:
        """Return the form stored in a manifest."""
        return {"digest": self.digest, "roots": list(self.roots), "definitions": dict(self.definitions)}


def code_of(roots: Iterable[str], project: Path = PROJECT) -> Code:
    """Return the code that `roots` reach, each `module:name`, or the name of a module that counts whole.

    Raises Bug for a root that does not exist, and for reached code that cannot be followed.
    """
    return _Reach(project).code(tuple(roots))


def module_file(module: str) -> Path:
    base = PROJECT.joinpath(*module.split("."))
    return base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"


class _Key(NamedTuple):
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


class _Target(NamedTuple):
    key: _Key | None
    """The definition; None if it is not part of the project or does not count."""
    rest: str
    """The attributes taken from the definition, or the whole name."""


class _Reach:
    """One traversal of the project, which reads every file once."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._root = f"{project}{os.sep}"
        self._modules: dict[str, Module | None] = {}
        self._targets: dict[Reference, _Target] = {}
        self._numbers: dict[_Key, int] = {}
        self._names = set(PROTOCOLS)
        self._classes: list[_Key] = []
        self._next_of: dict[_Key, tuple[_Key, ...]] = {}
        self._computing: set[_Key] = set()
        """Code that computes names of attributes, or refers to such code which reaches no class of ours."""
        self._asking: set[_Key] = set()
        """Of these, what reaches no class of ours itself: its objects are those of what refers to it."""
        self._open: set[_Key] = set()
        """What is reached by code that computes names of attributes, and base classes of classes that count whole."""
        self._harmless: tuple[set[_Key], set[_Key]] = (set(), set())

    def code(self, roots: tuple[str, ...]) -> Code:
        """Number all definitions that the roots reach, and digest them."""
        for root in roots:
            module, _, name = root.partition(":")
            found = self._module(module) if module.partition(".")[0] in PACKAGES else None
            if found is None or (name or WHOLE) not in found:
                raise Bug(f"code: the root `{root}` is no definition of the project at {self._project}")
            self._number(_Key(module, name or WHOLE))
        lines: list[str] = []
        definitions: dict[str, str] = {}
        run: dict[str, None] = {}
        while True:
            for key in self._unwritten(len(lines)):
                line, own = self._count(key, definitions)
                lines.append(line)
                definitions[str(key)] = own
                here = [] if key.module in run else [Imported(key.module, ())]
                self._imported([*here, *self._written(key).imports], run)
            more = self._used_methods() or self._active_modules(run)
            if not more:
                break
            for key in more:
                self._number(key)
        return Code(digest_bytes("\n".join(lines).encode()), roots, dict(sorted(definitions.items())))

    def _unwritten(self, done: int) -> Iterator[_Key]:
        """Yield the numbered definitions from position `done` on, including those that are numbered meanwhile."""
        keys = list(self._numbers)
        while done < len(keys):
            yield from keys[done:]
            done, keys = len(keys), list(self._numbers)

    def _active_modules(self, run: Iterable[str]) -> list[_Key]:
        """Return the modules among those that were run which do more than bind names, without those that count."""
        keys = [_Key(name, WHOLE) for name in run]
        active = [key for key in keys if key not in self._numbers and self._has_side_effects(key.module)]
        return sorted(active, key=lambda key: digest_bytes(self._written(key).text.encode()))

    def _used_methods(self) -> list[_Key]:
        """Return the methods of numbered classes that counted code may call, without those that count."""
        # Where code that computes names is given its objects, the classes are those that its callers reach.
        while callers := [
            key
            for key in self._numbers
            if self._asking and key not in self._computing and not self._asking.isdisjoint(self._next(key))
        ]:
            for key in callers:
                self._open_from(key)
        # What calls the methods of a class by name takes those of its base classes too.
        while more := [
            base.key
            for key in self._classes
            for base in map(self._resolve, self._existing_module(key.module).bases[key.name])
            if base.key is not None and base.key not in self._open and self._counts_whole(key)
        ]:
            self._open.update(more)
        return [
            method
            for key in self._classes
            for name, method in self._methods(key)
            if method not in self._numbers and (name in self._names or self._counts_whole(key))
        ]

    def _open_from(self, key: _Key) -> None:
        """Let all methods count of the classes that a definition reaches."""
        met, waiting = {key}, [key]
        while waiting:
            new = set(self._next(waiting.pop())) - met
            met |= new
            waiting += new
        self._open |= met
        self._computing.add(key)
        if not any(one.name in self._existing_module(one.module).bases for one in met):
            self._asking.add(key)

    def _methods(self, key: _Key) -> Iterator[tuple[str, _Key]]:
        """Yield the methods of a class that are definitions of their own."""
        for name in self._existing_module(key.module).methods.get(key.name, ()):
            yield name, _Key(key.module, f"{key.name}.{name}")

    def _counts_whole(self, key: _Key) -> bool:
        """Return whether all methods of a class count: a library calls them, or code that computes names may."""
        module = self._existing_module(key.module)
        return key in self._open or key.name not in module.methods or any(map(self._opens, module.bases[key.name]))

    def _opens(self, base: Reference) -> bool:
        """Return whether all methods of the subclasses of a class count."""
        key, rest = self._resolve(base)
        return rest not in _PLAIN_BASES if key is None else bool(rest) or self._counts_whole(key)

    def _next(self, key: _Key) -> tuple[_Key, ...]:
        """Return the definitions that a definition refers to, the methods of a class, and the class of a method."""
        found = self._next_of.get(key)
        if found is None:
            of, _, method = key.name.partition(".")
            references = map(self._resolve, self._written(key).references)
            found = self._next_of[key] = (
                *(inner for _, inner in self._methods(key)),
                *([_Key(key.module, of)] if method else ()),
                *(target.key for target in references if target.key is not None),
            )
        return found

    def _number(self, key: _Key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _count(self, key: _Key, definitions: dict[str, str]) -> tuple[str, str]:
        """Return how a definition counts, and its own digest; add the files that it names to `definitions`."""
        module, written = self._existing_module(key.module), self._written(key)
        if written.refused is not None:
            line, name = written.refused
            raise Bug(f"code: {module.path}:{line} {_WHY.get(name, _WHY_IMPORTED).format(name)}")
        references = list(written.references)
        if written.names_its_module:
            references.append(Reference(key.module, ()))
        of, _, method = key.name.partition(".")
        number = f"{self._number(_Key(key.module, of))}:" if method else ""
        counted, own = [number + digest_bytes(written.text.encode())], [written.text]
        self._names.update(written.names)
        self._open.update(target.key for target in map(self._resolve, written.bases) if target.key is not None)
        if key.name in module.methods:
            self._classes.append(key)
        computes_names = written.computes_names
        for target in map(self._resolve, references):
            if target.key is None:
                computes_names |= target.rest.startswith(_BY_NAME)
            elif target.rest:
                self._names.update(target.rest.split("."))
            counted.append(target.rest if target.key is None else f"{self._number(target.key)}.{target.rest}")
            own.append(target.rest if target.key is None else f"{target.key}.{target.rest}")
        if computes_names:
            self._open_from(key)
        if written.names_its_file:
            for path, digest in _data_files(module.path.parent):
                counted.append(f"{path.relative_to(module.path.parent).as_posix()}={digest}")
                definitions[path.relative_to(self._project).as_posix()] = digest
        return " ".join(counted), digest_bytes("\n".join(own).encode())

    def _resolve(self, reference: Reference) -> _Target:
        target = self._targets.get(reference)
        if target is None:
            # A cycle of imports ends at this entry.
            self._targets[reference] = _Target(_Key(reference.module, WHOLE), ".".join(reference.attributes))
            target = self._targets[reference] = self._locate(reference)
        return target

    def _locate(self, reference: Reference) -> _Target:
        """Return the definition of a reference, through imports of modules, packages and stars."""
        name, attributes = reference
        if name.partition(".")[0] not in PACKAGES:
            return _Target(None, f"@{'.'.join((name, *attributes))}")
        if is_operations(name):
            return _Target(None, f"~{'.'.join(attributes)}")
        module = self._module(name)
        if module is None:
            return self._locate_in_folder(name, attributes)
        if not attributes:
            return _Target(_Key(name, WHOLE), "")
        first, rest = attributes[0], attributes[1:]
        if first in module and not module.may_hold(first):
            if module.maker(first) in DECLARED_BY:
                return _Target(None, f"~{'.'.join(attributes)}")
            alias = module.aliases.get(first)
            if alias is None:
                return _Target(_Key(name, first), ".".join(rest))
            return self._resolve(Reference(alias.module, (*alias.attributes, *rest)))
        for star in module.stars:
            if star.partition(".")[0] in PACKAGES and self._binds(star, first, set()):
                return self._resolve(Reference(star, attributes))
        inner = f"{name}.{first}"
        if module.may_hold(first) and (self._module(inner) is not None or self._is_folder(inner)):
            return self._resolve(Reference(inner, rest))
        if first in BUILTINS:
            return _Target(None, ".".join(attributes))
        return _Target(_Key(name, WHOLE), ".".join(attributes))

    def _locate_in_folder(self, name: str, attributes: tuple[str, ...]) -> _Target:
        """Return the definition of a reference to a package without `__init__.py`, which holds modules alone."""
        if not self._is_folder(name):
            raise Bug(f"code: there is no module `{name}` in the project at {self._project}")
        if not attributes:
            return _Target(None, "")
        return self._resolve(Reference(f"{name}.{attributes[0]}", attributes[1:]))

    def _binds(self, name: str, wanted: str, seen: set[str]) -> bool:
        """Return whether a star import of a module binds a name, of its own or through another star."""
        module = self._module(name)
        if module is None or name in seen:
            return False
        return wanted in module or any(self._binds(star, wanted, seen | {name}) for star in module.stars)

    def _imported(self, waiting: list[Imported], run: dict[str, None]) -> None:
        """Add to `run` the modules that are executed when the waiting ones are imported."""
        while waiting:
            name, taken = waiting.pop()
            parts = name.split(".")
            if parts[0] not in PACKAGES:
                continue
            package = self._module(name)
            inner = [f"{name}.{one}" for one in taken if package is None or package.may_hold(one)]
            for module in [*(".".join(parts[:end]) for end in range(1, len(parts) + 1)), *inner]:
                if module in run or is_operations(module):
                    continue
                found = self._module(module)
                if found is not None:
                    run[module] = None
                    waiting.extend(found.imports)

    def _has_side_effects(self, name: str) -> bool:
        """Return whether importing a module does more than bind names."""
        module = self._existing_module(name)
        return (
            module.has_side_effects
            or any(map(self._call_has_side_effects, module.called))
            or any(self._decorator_has_side_effects(decorator) for decorator in module.decorators)
            or any(self._runs_code_on_subclassing(base) for bases in module.bases.values() for base in bases)
            or any(self._definition(metaclass) is not None for metaclass in module.metaclasses.values())
        )

    def _call_has_side_effects(self, called: Called) -> bool:
        """Return whether a call may change state: of a module, or of an object passed to it."""
        arguments = [key for key in map(self._definition, called.arguments) if key is not None]
        function = None if called.function is None else self._definition(called.function)
        if function is not None and called.function is not None:
            given = any(map(self._is_variable, arguments))
            if called.function.attributes[-1] in MUTATING or self._writes(function, given=given):
                return True
        return any(self._writes(key, given=False) for key in arguments)

    def _decorator_has_side_effects(self, decorator: Reference) -> bool:
        """Return whether a decorator changes state: as a method of one of our objects, or by its code."""
        key = self._definition(decorator)
        if key is None:
            return False
        return bool(self._resolve(decorator).rest) or self._is_variable(key) or self._writes(key, given=False)

    def _is_variable(self, key: _Key) -> bool:
        return key.name in self._existing_module(key.module).variables

    def _changes_itself(self, key: _Key) -> bool:
        """Return whether a constant is one of our objects and has methods that change it."""
        maker = self._existing_module(key.module).maker(key.name)
        made_by = None if maker is None else self._definition(maker)
        if made_by is None:
            return False
        return any(
            self._written(one).writes_self for one in (made_by, *(method for _, method in self._methods(made_by)))
        )

    def _definition(self, reference: Reference) -> _Key | None:
        """Return our definition of a top-level name; None if it has none, such as a loop variable."""
        key = self._resolve(reference).key
        return None if key is None or key.name == WHOLE else key

    def _writes(self, key: _Key, *, given: bool) -> bool:
        """Return whether code that a definition reaches changes the state of a module or, with `given`, its
        arguments."""
        harmless = self._harmless[given]
        met = {key: None} if key not in harmless else {}
        waiting = list(met)
        while waiting:
            one = waiting.pop()
            written = self._written(one)
            if written.writes_state or (given and written.writes_given) or self._changes_itself(one):
                return True
            for inner in self._next(one):
                if inner not in met and inner not in harmless:
                    met[inner] = None
                    waiting.append(inner)
        harmless.update(met)
        return False

    def _runs_code_on_subclassing(self, base: Reference) -> bool:
        """Return whether making a subclass of `base` runs code of ours."""
        key = self._definition(base)
        if key is None:
            return False
        module = self._existing_module(key.module)
        metaclass = module.metaclasses.get(key.name)
        return (
            (metaclass is not None and self._definition(metaclass) is not None)
            or "__init_subclass__" in self._written(key).text
            or any(map(self._runs_code_on_subclassing, module.bases.get(key.name, ())))
        )

    def _written(self, key: _Key) -> Written:
        return self._existing_module(key.module).written(key.name)

    def _existing_module(self, name: str) -> Module:
        module = self._module(name)
        assert module is not None, name
        return module

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _is_folder(self, name: str) -> bool:
        return os.path.isdir(self._root + name.replace(".", os.sep))

    def _load(self, name: str) -> Module | None:
        base = self._root + name.replace(".", os.sep)
        for path in (f"{base}.py", f"{base}{os.sep}__init__.py"):
            try:
                status = os.stat(path)
            except OSError:
                continue
            return _read(name, path, status.st_mtime_ns, status.st_size)
        return None


@functools.lru_cache(maxsize=4096)
def _read(name: str, path: str, mtime_ns: int, size: int) -> Module:
    del mtime_ns, size  # part of the cache key, so that an edited file is read again
    return Module(name, Path(path), Path(path).read_bytes())


def _data_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder, and of its folders that are not packages, with digests; no Python or hidden
    files."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir():
            if not (path / "__init__.py").exists():
                yield from _data_files(path)
        elif path.suffix not in {".py", ".pyc", ".pyi"}:
            yield path, digest_file(path)
