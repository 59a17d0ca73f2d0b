"""A method counts only where something that counts can call it: by its name, as a text, or by a computed name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.recipe.stages import STAGES
from model.errors import Bug
from tasks.common.code_cache import cached_code_of
from tasks.common.code_fingerprint import PROJECT, Code, code_of
from tests.stages import roots_of

Write = Callable[..., Code]

RUN = "from tasks.b import Box\n\ndef run(box: Box, x):\n    return {}\n"
BOX = """class Box:
    size = 1

    def __init__(self):
        self.width = 2

    def area(self):
        return self.width * self._height()

    def _height(self):
        return 3

    @property
    def depth(self):
        return 4

    @staticmethod
    def of(x):
        return Box()

    def spare(self):
        return 5
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(a="...", b="...")` writes `tasks/a.py` and `tasks/b.py`, and gives the code of `tasks.a:run`. Files that
    were written before stay."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("")

    def written(**files: str) -> Code:
        for name, text in files.items():
            (tmp_path / "tasks" / f"{name}.py").write_text(text)
        return code_of(["tasks.a:run"], tmp_path)

    return written


def methods_of(code: Code) -> set[str]:
    """Methods of `tasks.b:Box` that count."""
    return {name.removeprefix("tasks.b:Box.") for name in code.definitions if name.startswith("tasks.b:Box.")}


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        ("box.size", set()),
        ("box.area()", {"area", "_height"}),
        ("box._height()", {"_height"}),
        ("x.depth", {"depth"}),
        ("map(box.spare, x)", {"spare"}),
        ("Box.of(x)", {"of"}),
        ("x[0].inner.spare.most", {"spare"}),
        ("getattr(box, 'spare')", {"spare"}),
        ("x.attrgetter('depth.spare')", {"depth", "spare"}),
        ("'{0.depth}'.format(box)", {"depth"}),
        ("f'{box.depth}'", {"depth"}),
        ("[y for y in ('of', 'depth')]", {"of", "depth"}),
        ("Box(spare=1)", {"spare"}),
        ("x.read()", set()),
        ("depth(spare)", set()),
    ],
)
def test_methods_whose_names_are_taken_count(write: Write, value: str, counted: set[str]) -> None:
    before = write(a=RUN.format(value), b=BOX)
    assert methods_of(before) == counted
    for name in ("area", "_height", "depth", "of", "spare"):
        edited = BOX.replace(f"def {name}(", f"def {name}(*more, ")
        assert (write(b=edited).digest != before.digest) is (name in counted), name
    assert write(b=BOX + "\n    def extra(self):\n        return 6\n") == before
    assert write(b=BOX.replace("    def spare", "    @classmethod\n    def spare")) != before or "spare" not in counted


@pytest.mark.parametrize(
    ("pattern", "counted"), [("Box(depth=4)", {"depth"}), ("Box(size=1)", set()), ("Box.size", set())]
)
def test_the_attributes_of_a_pattern_are_taken(write: Write, pattern: str, counted: set[str]) -> None:
    run = f"from tasks.b import Box\n\ndef run(x):\n    match x:\n        case {pattern}:\n            return 1\n"
    assert methods_of(write(a=run, b=BOX)) == counted


@pytest.mark.parametrize("old", ["size = 1", "self.width = 2"])
def test_what_is_no_method_belongs_to_the_class(write: Write, old: str) -> None:
    before = write(a=RUN.format("box"), b=BOX)
    after = write(b=BOX.replace(old, f"{old}0"))
    edited = [name for name in before.definitions if before.definitions[name] != after.definitions[name]]
    assert edited == ["tasks.b:Box"]
    assert after.digest != before.digest


@pytest.mark.parametrize("value", ["getattr(box, x)", "setattr(box, x, 1)", "vars(box)", "dir(box)", "box.__dict__[x]"])
def test_a_computed_name_takes_every_method_of_the_classes_within_reach(write: Write, value: str) -> None:
    other = "class Crate:\n    def lid(self):\n        return 1\n"
    run = RUN.format(f"{value}, crate(Crate)") + "\nfrom tasks.c import Crate\n\ndef crate(x: Crate):\n    return x\n"
    found = write(a=run, b=BOX, c=other)
    assert methods_of(found) == {"area", "_height", "depth", "of", "spare"}
    assert "tasks.c:Crate.lid" in found.definitions


def test_a_computed_name_elsewhere_takes_no_method_of_a_class_that_it_does_not_reach(write: Write) -> None:
    run = RUN.format("box, pick(Crate(), x)") + "\nfrom tasks.c import Crate, pick\n"
    crate = "class Crate:\n    def lid(self):\n        return 1\n\ndef pick(y: Crate, x):\n    return getattr(y, x)\n"
    found = write(a=run, b=BOX, c=crate)
    assert "tasks.c:Crate.lid" in found.definitions
    assert methods_of(found) == set()


PICKS = {
    "a function": "def pick(y, x):\n    return getattr(y, x)\n",
    "a function that calls one": "def f(y, x):\n    return getattr(y, x)\n\ndef pick(y, x):\n    return f(y, x)\n",
    "a variable": "pick = getattr\n",
    "a library": "from operator import attrgetter as pick\n",
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
def test_code_that_takes_computed_names_from_what_it_is_given_takes_those_of_its_callers(
    write: Write, pick: str
) -> None:
    found = write(a=RUN.format("pick(box, x), Crate()") + "\nfrom tasks.c import Crate, pick\n", b=BOX, c=pick + CRATE)
    assert methods_of(found) == {"area", "_height", "depth", "of", "spare"}
    assert "tasks.c:Crate.lid" in found.definitions


CRATE = "\nclass Crate:\n    def lid(self):\n        return 1\n"


def test_a_computed_name_of_a_base_class_takes_the_methods_of_its_subclasses(write: Write) -> None:
    base = "class Base:\n    def go(self, x):\n        return getattr(self, 'on_' + x)()\n"
    box = "from tasks.c import Base\n\nclass Box(Base):\n    def on_left(self):\n        return 1\n"
    assert methods_of(write(a=RUN.format("box.go(x)"), b=box, c=base)) == {"on_left"}
    assert methods_of(write(a=RUN.format("box.stay(x)"))) == set()


def test_a_method_of_a_base_class_counts_by_its_name_too(write: Write) -> None:
    base = "class Base:\n    def left(self):\n        return 1\n\n    def right(self):\n        return 2\n"
    box = "from tasks.c import Base\n\nclass Box(Base):\n    def left(self):\n        return super().left()\n"
    before = write(a=RUN.format("box.left()"), b=box, c=base)
    assert write(c=base.replace("return 2", "return 3")) == before
    assert write(c=base.replace("return 1", "return 3")).digest != before.digest
    after = write(c=base, b=box + "\n    def right(self):\n        return 4\n")
    assert after == before


WHOLE = {
    "a base of a library": (
        "import ast\n\nclass Box(ast.NodeVisitor):\n    def visit_Name(self, x):\n        return 1\n"
    ),
    "a base of a base": (
        "import ast\n\nclass Base(ast.NodeVisitor):\n    pass\n\nclass Box(Base):\n"
        "    def visit_Name(self, x):\n        return 1\n"
    ),
    "a base that is made": (
        "def base():\n    return object\n\nclass Box(base()):\n    def visit_Name(self, x):\n        return 1\n"
    ),
    "an exception": "class Box(Exception):\n    def visit_Name(self, x):\n        return 1\n",
    "a keyword": ("import abc\n\nclass Box(metaclass=abc.ABCMeta):\n    def visit_Name(self, x):\n        return 1\n"),
    "a decorator": "import enum\n\n@enum.unique\nclass Box:\n    def visit_Name(self, x):\n        return 1\n",
    "a decorator of the name of a known one": (
        "def dataclass(x):\n    return x\n\n@dataclass\nclass Box:\n    def visit_Name(self, x):\n        return 1\n"
    ),
    "a condition": "if len('a'):\n    class Box:\n        def visit_Name(self, x):\n            return 1\n",
    "a class in a class": "class Box:\n    class Inner:\n        def visit_Name(self, x):\n            return 1\n",
    "a method with another decorator": (
        "import functools\n\nclass Box:\n    @functools.cache\n    def visit_Name(self, x):\n        return 1\n"
    ),
    "a method that registers": (
        "ALL = []\n\nclass Box:\n    @ALL.append\n    def visit_Name(self, x):\n        return 1\n"
    ),
    "a method that is bound twice": (
        "class Box:\n    @property\n    def visit_Name(self):\n        return 1\n\n"
        "    @visit_Name.setter\n    def visit_Name(self, x):\n        pass\n"
    ),
    "a method that the body names": (
        "class Box:\n    def visit_Name(self, x):\n        return 1\n\n    TABLE = {'Name': visit_Name}\n"
    ),
    "a method of dunders": "class Box:\n    def __len__(self):\n        return 1\n",
    "a method whose name Python changes": "class Box:\n    def __go(self):\n        return 1\n",
    "a method of files": "class Box:\n    def readinto(self, x):\n        return 1\n",
    "a method of log handlers": "class Box:\n    def emit(self, x):\n        return 1\n",
    "a mixin of a class of a library": (
        "import ast\n\nclass Mixin:\n    def visit_Name(self, x):\n        return 1\n\n"
        "class Box(Mixin, ast.NodeVisitor):\n    pass\n"
    ),
    "a mixin of a class of a library that a method makes": (
        "import ast\n\nclass Mixin:\n    def visit_Name(self, x):\n        return 1\n\n"
        "class Box:\n    def __call__(self):\n        class Inner(Mixin, ast.NodeVisitor):\n            pass\n"
        "        return Inner\n"
    ),
    "what a protocol asks at run time": (
        "from typing import Protocol, runtime_checkable\n\n@runtime_checkable\nclass Visitor(Protocol):\n"
        "    def visit_Name(self, x): ...\n\nclass Box:\n    def visit_Name(self, x):\n        return 1\n\n"
        "    def __eq__(self, x):\n        return isinstance(x, Visitor)\n"
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_others_may_call_always_counts(write: Write, case: str) -> None:
    before = write(a=RUN.format("box"), b=WHOLE[case])
    assert write(b=WHOLE[case].replace("return 1", "return 2")).digest != before.digest


PLAIN = {
    "no base": "class Box:\n",
    "object": "class Box(object):\n",
    "a dataclass": "from dataclasses import dataclass\n\n@dataclass\nclass Box:\n",
    "a frozen dataclass": "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass Box:\n",
    "a protocol": "from typing import Protocol\n\nclass Box(Protocol):\n",
    "a generic class": "from typing import Generic, TypeVar\n\nT = TypeVar('T')\n\nclass Box(Generic[T]):\n",
    "an abstract class": "import abc\n\nclass Box(abc.ABC):\n",
    "a base of ours": "class Base:\n    pass\n\nclass Box(Base):\n",
    "a generic base of ours": (
        "from typing import Protocol, TypeVar\n\nT = TypeVar('T')\n\nclass Base(Protocol[T]):\n    pass\n\n"
        "class Box(Base[int]):\n"
    ),
}
DECORATED = {
    "none": "",
    "staticmethod": "    @staticmethod\n",
    "classmethod": "    @classmethod\n",
    "property": "    @property\n",
    "cached": "    @functools.cached_property\n",
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("mark", DECORATED)
def test_a_method_of_a_plain_class_that_nothing_calls_does_not_count(write: Write, case: str, mark: str) -> None:
    box = f"import functools\n{PLAIN[case]}    width: int = 1\n"
    before = write(a=RUN.format("box.width"), b=box)
    method = f"\n{DECORATED[mark]}    def spare(self):\n        return 1\n"
    assert write(b=box + method) == before
    used = write(a=RUN.format("box.spare"))
    assert "tasks.b:Box.spare" in used.definitions
    assert write(b=box + method.replace("return 1", "return 2")).digest != used.digest


def test_a_class_with_its_methods_in_another_order_or_module_is_the_same(write: Write) -> None:
    run = RUN.format("box.left() + box.right()")
    before = write(a=run, b=_box("left", "right"))
    assert write(b=_box("right", "left")) == before
    assert write(a=run.replace("tasks.b", "tasks.c"), c=_box("left", "right")).digest == before.digest


def _box(*methods: str) -> str:
    return "class Box:\n" + "".join(f"    def {name}(self):\n        return {len(name)}\n" for name in methods)


def test_methods_that_change_their_classes_count(write: Write) -> None:
    run = "from tasks.b import Left, Right\n\ndef run(x):\n    return Left().go(), Right().go()\n"
    go = "    def go(self):\n        return 1\n"
    before = write(a=run, b=f"class Left:\n{go}class Right:\n    pass\n")
    assert write(b=f"class Left:\n    pass\nclass Right:\n{go}").digest != before.digest
    other = go.replace("1", "2")
    one = write(b=f"class Left:\n{go}class Right:\n{other}")
    assert write(b=f"class Left:\n{other}class Right:\n{go}").digest != one.digest


def test_only_methods_that_count_import_what_they_import(write: Write) -> None:
    box = "class Box:\n    def spare(self):\n        import tasks.c\n        return tasks.c.go()\n"
    assert "tasks.c:*" not in write(a=RUN.format("box"), b=box, c="print('loaded')\n").definitions
    assert "tasks.c:*" in write(a=RUN.format("box.spare()")).definitions


def test_what_cannot_be_followed_is_refused_only_where_it_counts(write: Write) -> None:
    box = "class Box:\n    def spare(self, x):\n        return eval(x)\n"
    assert methods_of(write(a=RUN.format("box"), b=box)) == set()
    with pytest.raises(Bug, match=r"b\.py:3 runs code from text with `eval`"):
        write(a=RUN.format("box.spare(x)"))


def test_a_call_of_a_method_that_changes_its_object_makes_a_module_count_whole(write: Write) -> None:
    """No definition that `run` reaches calls `enter`: importing `c` does."""
    registry = (
        "class Registry:\n    rules = []\n\n    def enter(self, f):\n        self.rules += [f]\n        return f\n\n"
        "REGISTRY = Registry()\n"
    )
    run = "import tasks.c\nfrom tasks.b import REGISTRY\n\ndef run(x):\n    return REGISTRY.rules\n"
    c = "from tasks.b import REGISTRY\n\nSHORT = REGISTRY.enter(lambda x: 1)\n"
    before = write(a=run, b=registry, c=c)
    assert {"tasks.c:*", "tasks.b:Registry.enter"} <= set(before.definitions)
    assert write(c=c.replace("x: 1", "x: 2")).digest != before.digest
    harmless = write(b=registry.replace("self.rules += [f]", "list(self.rules)"))
    assert "tasks.c:*" not in harmless.definitions


ARTIFACT = "tasks/artifacts/artifact.py"
NONE = frozenset[str]()
EDITS = {
    "a method more": (
        "    def verify(",
        "    def bytes_on_disk(self) -> int:\n        return 1\n\n    def verify(",
        NONE,
    ),
    "a method that only operations call": ("if not published.is_whole", "if published.is_whole", NONE),
    "the names of a table's files": ("record.table == table]", "table == record.table]", frozenset(STAGES)),
}
"""Edits of `Artifact`: text, other text, and the stages that count it."""


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_stage_counts_the_methods_of_an_artifact_that_it_calls(
    tmp_path: Path, edit: tuple[str, str, frozenset[str]]
) -> None:
    for package in ("tasks", "model", "flows"):
        shutil.copytree(PROJECT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = {stage: cached_code_of(roots_of(stage)) for stage in STAGES}
    old, new, expected = edit
    source = (tmp_path / ARTIFACT).read_text()
    assert source.count(old) == 1
    (tmp_path / ARTIFACT).write_text(source.replace(old, new))
    after = {stage: code_of(roots_of(stage), tmp_path) for stage in STAGES}
    assert {stage for stage in STAGES if after[stage].digest != before[stage].digest} == expected
    for stage in expected:
        named = [name for name, own in after[stage].definitions.items() if before[stage].definitions[name] != own]
        assert named == ["tasks.artifacts.artifact:Artifact.names"]
