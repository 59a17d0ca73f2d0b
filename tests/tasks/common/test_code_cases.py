"""What makes a definition hard to follow, a case each: something that decides is edited, and the fingerprint changes.

Each case names what is edited besides, which decides nothing, and the fingerprint stays.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.common.code_fingerprint import code_of


class Case(NamedTuple):
    """Files of a small project, whose root is `tasks.a:run`, and edits as (file, old text, new text)."""

    files: dict[str, str]
    deciding: list[tuple[str, str, str]]
    idle: list[tuple[str, str, str]]


CASES = {
    "a module of a folder without __init__": Case(
        {
            "a": "from tasks.inner import far\n\ndef run(x):\n    return far.step(x)\n",
            "inner/far": "def step(x):\n    return x + 1\n\ndef other(x):\n    return x\n",
        },
        [("inner/far", "x + 1", "x + 2")],
        [("inner/far", "return x\n", "return -x\n")],
    ),
    "a folder without __init__, by its whole name": Case(
        {
            "a": "import tasks.inner.far\n\ndef run(x):\n    return tasks.inner.far.step(x)\n",
            "inner/far": "def step(x):\n    return x + 1\n\ndef other(x):\n    return x\n",
        },
        [("inner/far", "x + 1", "x + 2")],
        [("inner/far", "return x\n", "return -x\n")],
    ),
    "a module of such a folder that acts when it is imported": Case(
        {
            "a": "from tasks.inner import far\n\ndef run(x):\n    return far.STEPS\n",
            "inner/far": "STEPS = []\nSTEPS.append(1)\n",
        },
        [("inner/far", "append(1)", "append(2)")],
        [],
    ),
    "getattr on a module": Case(
        {
            "a": "from tasks import b\n\ndef run(x):\n    return getattr(b, 'go_' + x)()\n",
            "b": "from tasks.c import far\n\ndef go_left():\n    return far()\n\ndef go_right():\n    return 2\n",
            "c": "def far():\n    return 1\n\ndef near():\n    return 0\n",
        },
        [("b", "return 2", "return 3"), ("b", "go_right", "go_up"), ("c", "return 1", "return 4")],
        [("c", "return 0", "return 5")],
    ),
    "getattr on an object": Case(
        {
            "a": "from tasks.b import Box\n\ndef run(x):\n    return getattr(Box(), x)()\n",
            "b": "class Box:\n    def left(self):\n        return 1\n\nclass Crate:\n    size = 1\n",
        },
        [("b", "return 1", "return 2")],
        [("b", "size = 1", "size = 2")],
    ),
    "a decorator that registers": Case(
        {
            "a": "from tasks.b import RULES\nimport tasks.c\n\ndef run(x):\n    return [rule(x) for rule in RULES]\n",
            "b": "RULES = []\n\ndef rule(f):\n    RULES.append(f)\n    return f\n",
            "c": "from tasks.b import rule\n\n@rule\ndef short(x):\n    return len(x) < 3\n",
            "d": "from tasks.b import rule\n\n@rule\ndef long(x):\n    return len(x) > 9\n",
        },
        [("c", "< 3", "< 4"), ("c", "@rule\n", ""), ("b", "append(f)", "insert(0, f)")],
        [("d", "> 9", "> 8")],
    ),
    "a decorator that registers in an object of ours": Case(
        {
            "a": "from tasks.b import REGISTRY\nimport tasks.c\n\ndef run(x):\n    return REGISTRY.all(x)\n",
            "b": (
                "class Registry:\n    def __init__(self):\n        self.rules = []\n\n"
                "    def __call__(self, f):\n        self.rules += [f]\n        return f\n\n"
                "    def all(self, x):\n        return [rule(x) for rule in self.rules]\n\nREGISTRY = Registry()\n"
            ),
            "c": "from tasks.b import REGISTRY\n\n@REGISTRY\ndef short(x):\n    return len(x) < 3\n",
        },
        [("c", "< 3", "< 4"), ("b", "[rule(x)", "[not rule(x)")],
        [],
    ),
    "a decorator that registers under a name": Case(
        {
            "a": "from tasks.b import RULES\nimport tasks.c\n\ndef run(x):\n    return RULES['short'](x)\n",
            "b": (
                "RULES = {}\n\ndef rule(name):\n    def put(f):\n        RULES[name] = f\n        return f\n"
                "    return put\n"
            ),
            "c": "from tasks.b import rule\n\n@rule('short')\ndef short(x):\n    return len(x) < 3\n",
        },
        [("c", "< 3", "< 4"), ("c", "'short'", "'long'")],
        [],
    ),
    "a decorator that a library makes of one that registers": Case(
        {
            "a": "from tasks.b import RULES\nimport tasks.c\n\ndef run(x):\n    return RULES['short'](x)\n",
            "b": (
                "from functools import partial\nRULES = {}\n\ndef rule(name, f):\n    RULES[name] = f\n"
                "    return f\n\nshort_rule = partial(rule, 'short')\n"
            ),
            "c": "from tasks.b import short_rule\n\n@short_rule\ndef short(x):\n    return len(x) < 3\n",
        },
        [("c", "< 3", "< 4"), ("b", "'short'", "'long'")],
        [],
    ),
    "a decorator that only wraps": Case(
        {
            "a": "from tasks.b import twice\n\n@twice\ndef run(x):\n    return x\n\ndef idle(x):\n    return 1\n",
            "b": "def twice(f):\n    def g(x):\n        return f(f(x))\n    return g\n",
        },
        [("b", "f(f(x))", "f(x)"), ("a", "@twice\ndef run", "def run")],
        [("a", "return 1", "return 2")],
    ),
    "a star import": Case(
        {
            "a": "from tasks.b import *\n\ndef run(x):\n    return go(x)\n",
            "b": "from tasks.c import *\n\ndef stay(x):\n    return x\n",
            "c": "def go(x):\n    return x + 1\n",
        },
        [("c", "x + 1", "x + 2"), ("b", "def stay", "def go")],
        [("b", "return x", "return -x")],
    ),
    "a star import of a library": Case(
        {"a": "from math import *\n\ndef run(x):\n    return floor(x)\n\ndef idle(x):\n    return 1\n"},
        [("a", "floor", "ceil"), ("a", "from math", "from cmath"), ("a", "return 1", "return 2")],
        [("a", "def idle", "# a comment\ndef idle")],
    ),
    "a constant computed at import": Case(
        {
            "a": "from tasks.b import TABLE\n\ndef run(x):\n    return TABLE[x]\n",
            "b": "from tasks.c import square\n\nTABLE = tuple(square(n) for n in range(9))\nOTHER = square(3)\n",
            "c": "def square(n):\n    return n * n\n",
        },
        [("c", "n * n", "n ** 3"), ("b", "range(9)", "range(8)")],
        [("b", "square(3)", "square(4)")],
    ),
    "a constant made in several statements": Case(
        {
            "a": "from tasks.b import LEFT\n\ndef run(x):\n    return LEFT\n",
            "b": "LEFT, (RIGHT, *REST) = 1, (2, 3)\nWIDE: int = 4\n",
        },
        [("b", "= 1", "= 5"), ("b", "2, 3", "2, 4")],
        [("b", "WIDE: int = 4", "WIDE: int = 5")],
    ),
    "a table that a loop fills": Case(
        {
            "a": "from tasks.b import TABLE\n\ndef run(x):\n    return TABLE[x]\n",
            "b": "from tasks.c import square\n\nTABLE = {}\nfor n in range(9):\n    TABLE[n] = square(n)\n",
            "c": "def square(n):\n    return n * n\n\ndef cube(n):\n    return n ** 3\n",
        },
        [("c", "n * n", "n + n"), ("b", "range(9)", "range(8)"), ("b", "TABLE[n] =", "TABLE[-n] =")],
        [("c", "n ** 3", "n ** 4")],
    ),
    "numba: globals and closures": Case(
        {
            "a": "from tasks.b import sign\n\ndef run(x):\n    return sign(x)\n",
            "b": (
                "import numba\n\nMIX = 0x9E37\nIDLE = 1\n\n@numba.njit\ndef mix(x):\n    return x * MIX\n\n"
                "def make(step):\n    @numba.njit(nogil=True)\n    def kernel(x):\n        return mix(x) + step\n"
                "    return kernel\n\nsign = make(3)\n"
            ),
        },
        [
            ("b", "0x9E37", "0x9E39"),
            ("b", "make(3)", "make(4)"),
            ("b", "nogil", "fastmath"),
            ("b", "x * MIX", "x ^ MIX"),
        ],
        [("b", "IDLE = 1", "IDLE = 2")],
    ),
    "pydantic: defaults, validators, what a field is made of": Case(
        {
            "a": "from tasks.b import Config\n\ndef run(config: Config):\n    return config.bands\n",
            "b": (
                "from pydantic import BaseModel, Field, field_validator\nfrom tasks.c import check, BANDS\n\n"
                "class Config(BaseModel):\n    bands: int = Field(BANDS, ge=1)\n    rows: list[int] = Field([1])\n\n"
                "    @field_validator('bands')\n    @classmethod\n    def _bands(cls, value):\n"
                "        return check(value)\n\n"
                "class Idle(BaseModel):\n    size: int = 1\n"
            ),
            "c": "BANDS = 16\n\ndef check(value):\n    return value // 2\n",
        },
        [
            ("c", "16", "14"),
            ("c", "// 2", "// 3"),
            ("b", "[1]", "[2]"),
            ("b", "ge=1", "ge=2"),
            ("b", "('bands')", "('rows')"),
        ],
        [("b", "size: int = 1", "size: int = 2")],
    ),
    "conditional imports": Case(
        {
            "a": (
                "try:\n    from tasks.fast import go\nexcept ImportError:\n    from tasks.slow import go\n\n"
                "def run(x):\n    return go(x)\n"
            ),
            "fast": "def go(x):\n    return x + 1\n\ndef idle(x):\n    return 1\n",
            "slow": "def go(x):\n    return 1 + x\n",
        },
        [("fast", "x + 1", "x + 2"), ("slow", "1 + x", "2 + x"), ("a", "ImportError", "OSError")],
        [("fast", "return 1", "return 2")],
    ),
    "a conditional import inside of a function": Case(
        {
            "a": (
                "def run(x):\n    try:\n        from tasks.fast import go\n    except ImportError:\n"
                "        go = None\n    return go(x)\n"
            ),
            "fast": "def go(x):\n    return x + 1\n",
            "slow": "def go(x):\n    return x - 1\n",
        },
        [("fast", "x + 1", "x + 2"), ("a", "tasks.fast", "tasks.slow"), ("a", "go = None", "go = print")],
        [("slow", "x - 1", "x - 2")],
    ),
    "conditional definitions": Case(
        {
            "a": (
                "import sys\n\nif sys.maxsize > 2**32:\n    def width():\n        return 8\nelse:\n"
                "    def width():\n        return 4\n\ndef run(x):\n    return width()\n"
            ),
        },
        [("a", "return 8", "return 7"), ("a", "return 4", "return 3"), ("a", "2**32", "2**16")],
        [],
    ),
    "imports for type checking": Case(
        {
            "a": (
                "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from tasks.b import Box\n\n"
                "def run(x: 'Box'):\n    return x.left()\n"
            ),
            "b": "import tasks.c\n\nclass Box:\n    def left(self):\n        return 1\n",
            "c": "print('loaded')\n",
        },
        [("b", "return 1", "return 2")],
        [],
    ),
    "class attributes": Case(
        {
            "a": "from tasks.b import Box\n\ndef run(x):\n    return Box.WIDTH\n",
            "b": "from tasks.c import WIDE\n\nclass Box:\n    WIDTH = WIDE\n    HEIGHT = 1\n",
            "c": "WIDE = 3\nNARROW = 1\n",
        },
        [("c", "WIDE = 3", "WIDE = 4"), ("b", "HEIGHT = 1", "HEIGHT = 2")],
        [("c", "NARROW = 1", "NARROW = 2")],
    ),
    "a class attribute that is set elsewhere": Case(
        {
            "a": "from tasks.b import Box\nimport tasks.c\n\ndef run(x):\n    return Box.WIDTH\n",
            "b": "class Box:\n    WIDTH = 3\n",
            "c": "from tasks.b import Box\n\nBox.WIDTH = 4\n",
        },
        [("c", "= 4", "= 5")],
        [],
    ),
    "inheritance": Case(
        {
            "a": "from tasks.b import Box\n\ndef run(x):\n    return Box().left()\n",
            "b": "from tasks.c import Base\n\nclass Box(Base):\n    pass\n",
            "c": (
                "class Root:\n    def left(self):\n        return 1\n\nclass Base(Root):\n    pass\n\n"
                "class Idle(Root):\n    size = 1\n"
            ),
        },
        [("c", "return 1", "return 2"), ("b", "(Base)", "")],
        [("c", "size = 1", "size = 2")],
    ),
    "subclasses that a base hears of": Case(
        {
            "a": "from tasks.b import Rule\nimport tasks.c\n\ndef run(x):\n    return Rule.ALL[x]().keep(x)\n",
            "b": (
                "class Rule:\n    ALL = {}\n\n    def __init_subclass__(cls, **more):\n"
                "        Rule.ALL[cls.__name__] = cls\n"
            ),
            "c": "from tasks.b import Rule\n\nclass Short(Rule):\n    def keep(self, x):\n        return len(x) < 3\n",
        },
        [("c", "< 3", "< 4"), ("c", "Short", "Long")],
        [],
    ),
    "classes that a metaclass keeps": Case(
        {
            "a": "from tasks.b import Kept\nimport tasks.c\n\ndef run(x):\n    return Kept.ALL[0]().keep(x)\n",
            "b": (
                "class Kept(type):\n    ALL = []\n\n    def __init__(cls, *more):\n        Kept.ALL.append(cls)\n\n"
                "class Rule(metaclass=Kept):\n    pass\n"
            ),
            "c": "from tasks.b import Rule\n\nclass Short(Rule):\n    def keep(self, x):\n        return len(x) < 3\n",
        },
        [("c", "< 3", "< 4")],
        [],
    ),
    "a registry that another module fills": Case(
        {
            "a": "from tasks.b import RULES\n\ndef run(x):\n    import tasks.c\n    return RULES['short'](x)\n",
            "b": "RULES = {}\n",
            "c": "from tasks.b import RULES\nfrom tasks.d import short\n\nRULES['short'] = short\n",
            "d": "def short(x):\n    return len(x) < 3\n\ndef long(x):\n    return len(x) > 9\n",
        },
        [("d", "< 3", "< 4"), ("c", "'short'", "'long'")],
        [("d", "> 9", "> 8")],
    ),
    "a registry that the value of a constant fills": Case(
        {
            "a": "from tasks.b import RULES\nimport tasks.c\n\ndef run(x):\n    return RULES[0](x)\n",
            "b": "RULES = []\n\ndef put(rules, rule):\n    rules.append(rule)\n    return rule\n",
            "c": "from tasks.b import RULES, put\n\nSHORT = put(RULES, lambda x: len(x) < 3)\n",
        },
        [("c", "< 3", "< 4")],
        [],
    ),
    "a registry in a package": Case(
        {
            "a": "from tasks.rules.short import short\n\ndef run(x):\n    return short(x)\n",
            "rules/__init__": "import tasks.rules.setting\n",
            "rules/setting": "import decimal\n\ndecimal.getcontext().prec = 9\n",
            "rules/short": "def short(x):\n    return x\n",
        },
        [("rules/setting", "= 9", "= 8")],
        [],
    ),
    "a package that imports its own modules": Case(
        {
            "a": "from tasks.words import lists\n\ndef run(x):\n    return lists.go(x)\n",
            "words/__init__": "from tasks.words import lists\n",
            "words/lists": "def go(x):\n    return x + 1\n\ndef idle(x):\n    return 1\n",
        },
        [("words/lists", "x + 1", "x + 2")],
        [("words/lists", "return 1", "return 2")],
    ),
    "modules that import a name from each other": Case(
        {
            "a": "from tasks.b import go\n\ndef run(x):\n    return go(x)\n",
            "b": "from tasks.c import go\n\ndef here():\n    return 1\n",
            "c": "from tasks.b import go\n\ndef there():\n    return 1\n",
        },
        [("b", "return 1", "return 2")],
        [],
    ),
    "names that nobody binds": Case(
        {
            "a": "from tasks.b import go\n\ndef run(x):\n    return go(x)\n",
            "b": "def go(x):\n    return globals()[x]()\n\ndef left():\n    return 1\n",
        },
        [("b", "return 1", "return 2"), ("b", "def left", "def right")],
        [("b", "def left", "\n\ndef left")],
    ),
    "a table of functions": Case(
        {
            "a": "from tasks.b import TABLE\n\ndef run(x):\n    return TABLE[x](x)\n",
            "b": "from tasks.c import left, right\n\nTABLE = {'left': left, 'right': right}\n",
            "c": "def left(x):\n    return 1\n\ndef right(x):\n    return 2\n\ndef up(x):\n    return 3\n",
        },
        [("c", "return 1", "return 4"), ("c", "return 2", "return 4"), ("b", "'left': left", "'left': right")],
        [("c", "return 3", "return 4")],
    ),
}


def write(project: Path, files: dict[str, str]) -> None:
    """Write modules of a project, by their names within `tasks`."""
    (project / "tasks").mkdir(exist_ok=True)
    (project / "tasks" / "__init__.py").write_text("")
    for name, text in files.items():
        path = project / "tasks" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("case", CASES)
def test_what_decides_counts_and_what_does_not_stays_out(case: str, tmp_path: Path) -> None:
    files, deciding, idle = CASES[case]
    write(tmp_path, files)
    existing = code_of(["tasks.a:run"], tmp_path)
    for counts, edits in ((True, deciding), (False, idle)):
        for name, old, new in edits:
            assert old in files[name], (name, old)
            write(tmp_path, files | {name: files[name].replace(old, new, 1)})
            found = code_of(["tasks.a:run"], tmp_path)
            assert (found.digest != existing.digest) is counts, (name, old, new)
            if counts:
                assert found.definitions != existing.definitions
    write(tmp_path, files)
    assert code_of(["tasks.a:run"], tmp_path) == existing


READS = {
    "the file beside the module": "from pathlib import Path\n\ndef words():\n    return Path(__file__).parent\n",
    "the folder of the package": "def words():\n    return __spec__.origin\n",
    "data of the package": "import pkgutil\n\ndef words():\n    return pkgutil.get_data(__package__, 'en.txt')\n",
    "resources of the package": "import importlib.resources as r\n\ndef words():\n    return r.files(__package__)\n",
}


@pytest.mark.parametrize("reads", READS)
def test_files_beside_a_definition_count_where_it_names_its_own_file(reads: str, tmp_path: Path) -> None:
    idle = "\ndef idle():\n    return 1\n"
    reading = "from tasks.words.lists import words\n\ndef run(x):\n    return words()\n"
    write(tmp_path, {"a": reading, "words/__init__": "", "words/lists": READS[reads] + idle})
    (tmp_path / "tasks" / "words" / "more").mkdir()
    places = [tmp_path / "tasks" / "words" / name for name in ("en.txt", "more/it.txt")]
    for path in places:
        path.write_text("the\n")
    (tmp_path / "tasks" / "words" / ".hidden").write_text("1")
    existing = code_of(["tasks.a:run"], tmp_path)
    assert {"tasks/words/en.txt", "tasks/words/more/it.txt"} <= set(existing.definitions)
    for path in places:
        path.write_text("il\n")
        found = code_of(["tasks.a:run"], tmp_path)
        assert found.digest != existing.digest
        edited = [name for name, digest in found.definitions.items() if existing.definitions[name] != digest]
        assert path.relative_to(tmp_path).as_posix() in edited
        path.write_text("the\n")
    (tmp_path / "tasks" / "words" / ".hidden").write_text("2")
    assert code_of(["tasks.a:run"], tmp_path) == existing
    write(tmp_path, {"a": reading.replace("import words", "import idle").replace("words()", "idle()")})
    assert not [name for name in code_of(["tasks.a:run"], tmp_path).definitions if name.endswith(".txt")]
