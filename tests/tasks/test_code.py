"""The code fingerprint changes with meaning and with nothing else."""

import ast
import importlib
from pathlib import Path

import pyarrow as pa
import pytest

import tasks.code
from flows.road import STAGES
from model.errors import Bug
from tasks.build import Stage
from tasks.code import code_closure, normalised


def meaning(source: str) -> str:
    return normalised(ast.parse(source))


BASE = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\ndef f(x):\n    return x + 1  # why\n",
        'def f(x):\n    """Says what f does."""\n    return x + 1\n',
        '"""Module."""\ndef f(x):\n\n\n    return (x +\n        1)\n',
        'def f(x):\n    log.info("adding to %s", x)\n    return x + 1\n',
        'def f(x):\n    logger.debug("adding")\n    return x + 1\n',
        'def f(x):\n    log.info("%s of %s", len(x), ", ".join(sorted(x)))\n    return x + 1\n',
        "import logging\nlog = logging.getLogger(__name__)\n\ndef f(x):\n    return x + 1\n",
    ],
)
def test_what_cannot_change_a_result_does_not_count(same: str) -> None:
    assert meaning(same) == meaning(BASE)


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    return x + 2\n",
        "def f(x, y=0):\n    return x + 1\n",
        "def f(x):\n    return x - 1\n",
        "@cache\ndef f(x):\n    return x + 1\n",
        "def f(x):\n    blog.info(x)\n    return x + 1\n",
        "def f(x):\n    log.write(x)\n    return x + 1\n",
        "def f(x):\n    log.append(x)\n    return x + 1\n",
        'def f(x):\n    log.info("%s", x.pop())\n    return x + 1\n',
        'def f(x):\n    log.info("%s", x := 3)\n    return x + 1\n',
        "LIMIT = 3\ndef f(x):\n    return x + 1\n",
    ],
)
def test_what_can_change_a_result_counts(other: str) -> None:
    assert meaning(other) != meaning(BASE)


def test_a_function_left_with_only_its_docstring_is_still_a_function() -> None:
    assert meaning('def f():\n    """Nothing."""\n') == meaning("def f():\n    pass\n")


def test_attribute_docstrings_are_help_and_not_meaning() -> None:
    assert meaning('class C:\n    bands: int = 16\n    """Bands."""\n') == meaning("class C:\n    bands: int = 16\n")


@pytest.fixture
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tasks.a imports tasks.b lazily, tasks.b takes the LEDGER schema; tasks.c is a stranger."""
    (tmp_path / "tasks" / "words").mkdir(parents=True)
    files = {
        "tasks/__init__.py": "",
        "tasks/a.py": "def run():\n    from tasks.b import go\n    return go()\n",
        "tasks/b.py": "from tasks.schema import LEDGER\nfrom .words import lists\ndef go():\n    return LEDGER\n",
        "tasks/c.py": "import os\n",
        "tasks/words/__init__.py": "",
        "tasks/words/lists.py": "NAMES = ()\n",
        "tasks/words/en.txt": "the\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tasks.code, "PROJECT", tmp_path)
    return tmp_path


def test_closure_follows_lazy_and_relative_imports_and_leaves_strangers_out(small_project: Path) -> None:
    assert list(code_closure(["tasks.a"])) == [
        "tasks",
        "tasks.a",
        "tasks.b",
        "tasks.schema:LEDGER",
        "tasks.words",
        "tasks.words.lists",
        "tasks/words/en.txt",
    ]


@pytest.mark.parametrize("name", ["tasks/a.py", "tasks/b.py", "tasks/words/lists.py", "tasks/words/en.txt"])
def test_every_reached_file_counts(small_project: Path, name: str) -> None:
    before = code_closure(["tasks.a"])
    path = small_project / name
    path.write_text(path.read_text() + "more = 1\n")
    after = code_closure(["tasks.a"])
    assert [key for key in before if before[key] != after[key]] == [
        name if name.endswith(".txt") else name.removesuffix(".py").replace("/", ".")
    ]


def test_a_schema_counts_by_value(monkeypatch: pytest.MonkeyPatch, small_project: Path) -> None:
    before = code_closure(["tasks.b"])["tasks.schema:LEDGER"]
    monkeypatch.setattr(tasks.schema, "LEDGER", tasks.schema.LEDGER.remove(0))
    assert code_closure(["tasks.b"])["tasks.schema:LEDGER"] != before


@pytest.mark.parametrize("asking", ["import tasks.schema\n", "from tasks import schema\n"])
def test_the_schemas_as_a_module_count_as_a_whole(small_project: Path, asking: str) -> None:
    (small_project / "tasks" / "schema.py").write_text("LEDGER = 1\n")
    (small_project / "tasks" / "c.py").write_text(asking)
    assert "tasks.schema" in code_closure(["tasks.c"])


def test_a_long_note_on_a_field_counts_to_its_last_letter(monkeypatch: pytest.MonkeyPatch, small_project: Path) -> None:
    def fingerprint(note: str) -> str:
        schema = pa.schema([pa.field("row", pa.int64(), metadata={"note": note})])
        monkeypatch.setattr(tasks.schema, "LEDGER", schema)
        return code_closure(["tasks.b"])["tasks.schema:LEDGER"]

    assert fingerprint("x" * 200) == fingerprint("x" * 200)
    assert fingerprint("x" * 200) != fingerprint("x" * 199 + "y")


def test_data_in_a_folder_below_counts(small_project: Path) -> None:
    below = small_project / "tasks" / "words" / "lists_of_words"
    below.mkdir()
    (below / "it.txt").write_text("il\n")
    before = code_closure(["tasks.a"])
    (below / "it.txt").write_text("lo\n")
    after = code_closure(["tasks.a"])
    assert [key for key in before if before[key] != after[key]] == ["tasks/words/lists_of_words/it.txt"]


def test_what_decides_whether_a_stage_runs_is_not_followed(small_project: Path) -> None:
    (small_project / "tasks" / "c.py").write_text("from tasks.build import Stage\nfrom tasks.b import go\n")
    assert "tasks.b" in code_closure(["tasks.c"])
    assert "tasks.build" not in code_closure(["tasks.c"])


@pytest.mark.parametrize(
    "dynamic",
    [
        "import importlib\nimportlib.import_module('x')\n",
        "\nfrom importlib import import_module as fetch\n",
        "import runpy\nrunpy.run_module('x')\n",
        "text = ''\nexec(text)\n",
    ],
)
def test_dynamic_imports_are_refused_with_their_place(small_project: Path, dynamic: str) -> None:
    (small_project / "tasks" / "c.py").write_text(dynamic)
    with pytest.raises(Bug, match=r"c\.py:2 imports a module by a computed name"):
        code_closure(["tasks.c"])


def test_a_root_that_does_not_exist_is_a_bug(small_project: Path) -> None:
    with pytest.raises(Bug, match=r"tasks\.nowhere"):
        code_closure(["tasks.nowhere"])


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_fingerprint_that_begins_at_its_own_module(stage: str) -> None:
    module = importlib.import_module(f"tasks.{stage}.stage")
    (declared,) = (value for value in vars(module).values() if isinstance(value, Stage))
    assert {f"tasks.{stage}.stage", f"tasks.{stage}.config", "tasks.tables"} <= set(code_closure(declared.roots))
