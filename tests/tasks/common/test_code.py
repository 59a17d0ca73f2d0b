"""The fingerprint of a stage's code follows what its roots reach, wherever it is, and counts nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.recipe.stages import STAGES
from model.errors import Bug
from tasks.common.code_cache import cached_code_of
from tasks.common.code_fingerprint import Code, code_of, module_file
from tasks.common.definitions import Module
from tasks.common.operations import is_operations
from tests.stages import roots_of

ROOT = "tasks.a:run"
Write = Callable[..., Code]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(a="...", b="...")` writes `tasks/a.py` and `tasks/b.py`, and gives the code of `tasks.a:run`. Files that
    were written before stay; `words__lists` is `tasks/words/lists.py`."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("")

    def written(*roots: str, **files: str) -> Code:
        for name, text in files.items():
            path = tmp_path / "tasks" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return code_of(roots or [ROOT], tmp_path)

    return written


A = "from tasks.b import go\n\nLIMIT = 3\n\ndef run(x):\n    return go(x, LIMIT)\n\ndef idle():\n    return 1\n"
B = "STEP = 2\nOTHER = 5\n\ndef go(x, limit):\n    return x + STEP * limit\n\ndef stay():\n    return OTHER\n"


def test_functions_and_constants_that_are_reached_count_and_no_others(write: Write) -> None:
    assert set(write(a=A, b=B).definitions) == {"tasks.a:run", "tasks.a:LIMIT", "tasks.b:go", "tasks.b:STEP"}


@pytest.mark.parametrize(
    ("old", "new", "edited"),
    [
        ("LIMIT = 3", "LIMIT = 4", "tasks.a:LIMIT"),
        ("go(x, LIMIT)", "go(LIMIT, x)", "tasks.a:run"),
        ("STEP = 2", "STEP = 2.0", "tasks.b:STEP"),
        ("x + STEP", "x - STEP", "tasks.b:go"),
    ],
)
def test_an_edit_of_what_is_reached_counts_and_is_named(write: Write, old: str, new: str, edited: str) -> None:
    before = write(a=A, b=B)
    after = write(a=A.replace(old, new), b=B.replace(old, new))
    assert after.digest != before.digest
    assert [name for name in before.definitions if before.definitions[name] != after.definitions[name]] == [edited]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 1", "return 2"),
        ("OTHER = 5", "OTHER = 6"),
        ("return OTHER", "return None"),
        ("def stay():\n    return OTHER\n", ""),
        ("STEP = 2\n", "STEP = 2\nMORE = 7\n"),
        ("STEP = 2\n", "import json\nfrom tasks.c import nothing\n\nSTEP = 2  # metres\n"),
        ("def run(x):\n", 'def run(x):\n    """Say it."""\n'),
        ("LIMIT = 3\n", ""),
    ],
)
def test_an_edit_of_a_neighbour_that_nobody_reaches_changes_nothing(write: Write, old: str, new: str) -> None:
    """The last one moves a constant to the end of its module."""
    before = write(a=A, b=B, c="def nothing():\n    pass\n")
    moved = "" if new or "LIMIT" not in old else old
    assert write(a=A.replace(old, new) + moved, b=B.replace(old, new)) == before


def test_a_function_that_moves_to_another_module_changes_nothing(write: Write) -> None:
    before = write(a=A, b=B)
    moved = write(a=A.replace("tasks.b", "tasks.c"), b="", c=B)
    assert moved.digest == before.digest
    here = write(a=B + A.replace("from tasks.b import go\n", ""))
    assert here.digest == before.digest
    assert {name.partition(":")[0] for name in here.definitions} == {"tasks.a"}


@pytest.mark.parametrize(
    "a",
    [
        "import tasks.b\n\nLIMIT = 3\n\ndef run(x):\n    return tasks.b.go(x, LIMIT)\n",
        "import tasks.b as other\n\nLIMIT = 3\n\ndef run(x):\n    return other.go(x, LIMIT)\n",
        "from tasks import b\n\nLIMIT = 3\n\ndef run(x):\n    return b.go(x, LIMIT)\n",
        "from . import b\n\nLIMIT = 3\n\ndef run(x):\n    return b.go(x, LIMIT)\n",
        "from .b import go as come\n\nLIMIT = 3\n\ndef run(x):\n    return come(x, LIMIT)\n",
        "LIMIT = 3\n\ndef run(x):\n    from tasks.b import go\n    return go(x, LIMIT)\n",
        "LIMIT = 3\n\ndef run(x):\n    import tasks.b\n    return tasks.b.go(x, LIMIT)\n",
        "from tasks.shop import go\n\nLIMIT = 3\n\ndef run(x):\n    return go(x, LIMIT)\n",
        "from tasks.shop import *\n\nLIMIT = 3\n\ndef run(x):\n    return go(x, LIMIT)\n",
        "import tasks.c\nimport tasks.b\n\nLIMIT = 3\n\ndef run(x):\n    return tasks.b.go(x, LIMIT)\n",
    ],
)
def test_the_way_to_a_function_does_not_count(write: Write, a: str) -> None:
    before = write(a=A, b=B)
    assert write(a=a, shop="from tasks.b import go\n", c="").digest == before.digest


def test_an_equally_named_function_of_another_module_counts(write: Write) -> None:
    before = write(a=A, b=B, c=B.replace("x + STEP", "x - STEP"))
    after = write(a=A.replace("tasks.b", "tasks.c"))
    assert after.digest != before.digest
    assert before.definitions["tasks.b:go"] != after.definitions["tasks.c:go"]


def test_functions_that_change_places_count_though_the_same_definitions_are_reached(write: Write) -> None:
    a = "from tasks.b import f\nfrom tasks.c import f as g\n\ndef run(x):\n    return f(x) - g(x)\n"
    before = write(a=a, b="def f(x):\n    return 1\n", c="def f(x):\n    return 2\n")
    after = write(a=a.replace("f(x) - g(x)", "g(x) - f(x)"))
    assert before.digest != after.digest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from math import floor as cut\n", "from math import ceil as cut\n"),
        ("import json as cut\n", "import pickle as cut\n"),
        ("import os.path as cut\n", "import os as cut\n"),
    ],
)
def test_another_library_under_the_same_name_counts(write: Write, before: str, after: str) -> None:
    run = "\ndef run(x):\n    return cut(x)\n"
    assert write(a=before + run).digest != write(a=after + run).digest


def test_functions_that_call_each_other_are_followed_once(write: Write) -> None:
    a = "def run(x):\n    return back(x - 1)\n\ndef back(x):\n    return run(x) if x else 0\n"
    before = write(a=a)
    assert set(before.definitions) == {"tasks.a:run", "tasks.a:back"}
    assert write(a=a.replace("else 0", "else 1")).digest != before.digest


SCOPES = {
    "a parameter": "def run(LIMIT):\n    return LIMIT\n",
    "a variable": "def run(x):\n    LIMIT = x\n    return LIMIT\n",
    "a variable that is bound later": "def run(x):\n    if x:\n        return LIMIT\n    LIMIT = x\n",
    "a loop": "def run(x):\n    for LIMIT in x:\n        print(LIMIT)\n",
    "a comprehension": "def run(x):\n    return [LIMIT for LIMIT in x]\n",
    "a walrus in a comprehension": "def run(x):\n    return [LIMIT := y for y in x], LIMIT\n",
    "a nested function": "def run(x):\n    def LIMIT():\n        return 1\n    return LIMIT()\n",
    "a variable of the function around": "def run(LIMIT):\n    def inner():\n        return LIMIT\n    return inner\n",
    "nonlocal": "def run(LIMIT):\n    def inner():\n        nonlocal LIMIT\n        LIMIT = 1\n    return inner\n",
    "a lambda": "def run(x):\n    return lambda LIMIT: LIMIT\n",
    "with": "def run(x):\n    with x as (LIMIT, y):\n        return LIMIT\n",
    "except": "def run(x):\n    try:\n        x()\n    except KeyError as LIMIT:\n        return LIMIT\n",
    "match": "def run(x):\n    match x:\n        case [1, *LIMIT]:\n            return LIMIT\n",
    "match by keys": "def run(x):\n    match x:\n        case {1: 2, **LIMIT}:\n            return LIMIT\n",
    "an import": "def run(x):\n    import json as LIMIT\n    return LIMIT.dumps(x)\n",
    "an attribute": "def run(x):\n    return x.LIMIT\n",
    "a keyword": "def run(x):\n    return x(LIMIT=1)\n",
}
OUTSIDE = {
    "a default": "def run(LIMIT=LIMIT):\n    return LIMIT\n",
    "a decorator": "from functools import partial\n\n@partial(print, LIMIT)\ndef run(x):\n    LIMIT = 1\n",
    "global": "def run(x):\n    global LIMIT\n    LIMIT = x\n",
    "global within a function that has such a variable": (
        "def run(LIMIT):\n    def inner():\n        global LIMIT\n        return LIMIT\n    return inner\n"
    ),
    "a variable of the function around a class that has such an attribute": (
        "def run(x):\n    from tasks.a import LIMIT as y\n    class C:\n        y = 1\n        def m(self):\n"
        "            return y\n    return C\n"
    ),
    "the first iterable of a comprehension": "def run(x):\n    return [LIMIT for LIMIT in LIMIT]\n",
    "a nested function reads it": "def run(x):\n    def inner():\n        return LIMIT\n    return inner\n",
    "a method beside an attribute": (
        "def run(x):\n    class C:\n        LIMIT = 1\n        def m(self):\n            return LIMIT\n    return C\n"
    ),
    "a class body before it binds the name": "def run(x):\n    class C:\n        LIMIT = LIMIT + 1\n    return C\n",
    "a comprehension in a class body": (
        "def run(x):\n    class C:\n        LIMIT = 1\n        y = [LIMIT for _ in x]\n    return C\n"
    ),
    "an annotation": "def run(x: LIMIT):\n    return x\n",
    "an annotation as text": "def run(x: 'list[LIMIT]'):\n    return x\n",
    "a result": "def run(x) -> LIMIT:\n    return x\n",
    "an f-string": "def run(x):\n    return f'{x:{LIMIT}}'\n",
    "a match": "def run(x):\n    match x:\n        case LIMIT.y:\n            return 1\n",
    "del": "def run(x):\n    global LIMIT\n    del LIMIT\n",
}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_name_of_its_own_scope_is_no_constant_of_the_module(write: Write, scope: str) -> None:
    before = write(a=f"LIMIT = 1\n\n{SCOPES[scope]}")
    assert set(before.definitions) == {"tasks.a:run"}
    assert write(a=f"LIMIT = 2\n\n{SCOPES[scope]}").digest == before.digest


@pytest.mark.parametrize("scope", OUTSIDE)
def test_a_name_from_outside_of_a_scope_is_followed(write: Write, scope: str) -> None:
    assert write(a=f"LIMIT = 1\n\n{OUTSIDE[scope]}").digest != write(a=f"LIMIT = 2\n\n{OUTSIDE[scope]}").digest


def test_words_of_a_literal_are_no_names(write: Write) -> None:
    run = 'def run(x: Literal["LIMIT"], y: Annotated[int, "LIMIT"]):\n    return x\n'
    assert set(write(a=f"from typing import Annotated, Literal\n\nLIMIT = 1\n\n{run}").definitions) == {"tasks.a:run"}


@pytest.mark.parametrize(
    ("dynamic", "reported"),
    [
        (
            "import importlib\n\ndef run(x):\n    importlib.import_module(x)\n",
            r"a\.py:4 imports a module by a computed",
        ),
        ("from importlib import import_module as f\n\ndef run(x):\n    f(x)\n", r"a\.py:4 imports a module by a"),
        ("import runpy\n\ndef run(x):\n\n    runpy.run_module(x)\n", r"a\.py:5 imports a module by a computed"),
        ("def run(x):\n    return __import__(x)\n", r"a\.py:2 imports a module by a computed"),
        ("def run(x):\n    exec(x)\n", r"a\.py:2 runs code from text with `exec`"),
        ("def run(x):\n    return [eval(y) for y in x]\n", r"a\.py:2 runs code from text with `eval`"),
        ("import sys\n\ndef run(x):\n    return sys.modules[x].go()\n", r"a\.py:4 takes a module from `sys\.modules`"),
        ("from sys import modules as m\n\ndef run(x):\n    return m[x].go()\n", r"a\.py:4 takes a module from"),
        ("class C:\n    pass\n\ndef run(x):\n    return C.__subclasses__()\n", r"a\.py:5 uses `__subclasses__`"),
    ],
)
def test_what_nobody_can_follow_is_refused_with_its_place(write: Write, dynamic: str, reported: str) -> None:
    with pytest.raises(Bug, match=reported):
        write(a=dynamic)


def test_what_nobody_can_follow_is_no_matter_where_nobody_reaches_it(write: Write) -> None:
    assert set(write(a="def run(x):\n    return x\n\ndef idle(x):\n    return eval(x)\n").definitions) == {ROOT}


@pytest.mark.parametrize("root", ["tasks.nowhere:run", "tasks.a:walk", "tasks.nowhere"])
def test_a_root_that_does_not_exist_is_a_bug(write: Write, root: str) -> None:
    with pytest.raises(Bug, match=f"the root `{root}` is no definition"):
        write(root, a=A, b=B)


def test_a_module_as_a_root_counts_whole(write: Write) -> None:
    before = write("tasks.a", a=A, b=B)
    assert write("tasks.a", a=A.replace("return 1", "return 2")).digest != before.digest


def test_docstrings_and_log_lines_of_a_module_that_counts_whole_do_not_count(write: Write) -> None:
    before = write("tasks.a", a=A, b=B)
    assert write("tasks.a", a=f'"""Words."""\n{A}\nX = 1\n"""Words below."""\n').digest != before.digest
    assert write("tasks.a", a=f'"""Words."""\nimport logging\n\nlog = logging.getLogger(__name__)\n{A}') == before


def test_names_that_are_deleted_in_parentheses_are_the_same_names(write: Write) -> None:
    """Formatters write a long `del a, b` as `del (a, b)`, whose tree is another."""
    body = "def run(x, y, z):\n    {}\n    return z\n"
    before = write(a=body.format("del x, y"))
    assert write(a=body.format("del (\n        x,\n        y,\n    )")).digest == before.digest
    assert write(a=body.format("del x")).digest != before.digest


def test_the_block_for_a_module_that_is_run_is_a_root_of_its_own(write: Write) -> None:
    a = "def run(x):\n    return x\n\nif __name__ == '__main__':\n    run(1)\n"
    other = a.replace("run(1)", "run(2)")
    assert write(a=a) == write(a=other)
    assert write("tasks.a:__main__", a=a).digest != write("tasks.a:__main__", a=other).digest


def test_operations_count_for_nothing(write: Write) -> None:
    a = (
        "from tasks.artifacts.build import build_artifact\nfrom tasks.b import go\n\n"
        "def run(x):\n    return build_artifact(go)\n"
    )
    before = write(a=a, b=B, build="from tasks.b import stay\n\ndef build_artifact(f):\n    return f, stay()\n")
    assert set(before.definitions) == {"tasks.a:run", "tasks.b:go", "tasks.b:STEP"}
    assert write(build="REGISTER = {}\nREGISTER[1] = 2\n\ndef build_artifact(f):\n    return None\n") == before
    assert write(a=a.replace("build_artifact(", "wait("), build="").digest != before.digest


def test_what_declares_a_stage_is_no_part_of_its_code(write: Write) -> None:
    a = "from tasks.artifacts.build import Stage\n\nS = Stage('s', roots=('x',))\n\ndef run(x):\n    return S\n"
    assert write(a=a, build="class Stage:\n    pass\n") == write(a=a.replace("'x'", "'y'"))


def test_packages_of_operations_hold_all_that_is_below_them() -> None:
    assert is_operations("tasks.execution.dask")
    assert is_operations("tasks.artifacts.build")
    assert not is_operations("tasks.builders")


REMAINING = {
    "model.config.launch": {"HostsConfig", "RestartsConfig"},
    "model.distributed.heartbeat": {"Heartbeat", "NO_HEARTBEAT"},
    "model.distributed.protocol": {
        "LauncherChannel",
        "heartbeat_file",
        "claim_stdout",
        "rendezvous_file",
        "error_file",
    },
    "model.files": {
        "DISK_FULL",
        "link_or_copy",
        "remove",
        "sync_directory",
        "sync_file",
        "user_cache",
        "write_atomically",
        "write_synced",
    },
    "model.kernel_cache": {"cached"},
    "model.launch.failures": {
        "FEWER_RANKS",
        "LONGEST_PAUSE",
        "reported_error",
        "write_error_report",
        "reserve_error_report",
        "import_restarts",
    },
    "model.launch.supervisor": {"DIAGNOSIS_SECONDS"},
    "model.launch.watchdog": {"dump_stacks_on_request"},
    "model.processes": {"collecting_seldom", "write_log"},
    "model.train.reproduction": {"LOCK", "REPRODUCTION", "write_reproduction"},
    "tasks.artifacts.build": {"RunContext", "Stage", "build_artifact"},
    "tasks.artifacts.limits": {"DropRateLimits"},
    "tasks.artifacts.remote.metadata": {"read_record"},
    "tasks.artifacts.remote.retries": {
        "ANSWER_SECONDS",
        "with_retries",
        "report_waits",
        "s3_refusal",
        "already_exists",
    },
    "tasks.artifacts.workspace": {"FileRecord", "Unit", "Workspace"},
    "tasks.common.confinement": {"check_address", "check_files", "is_confined", "public_socket"},
    "tasks.common.digests": {"INPUTS", "InputDigests", "combined_digest", "forget_changed_inputs"},
    "tasks.common.work": {"Executor", "Work"},
    "tasks.execution.executor": {"Processes", "make_executor"},
    "tasks.execution.machines": {"Machines"},
    "tasks.execution.plugins": {"load_extension"},
    "tasks.sample.limits": {"RejectLimits"},
    "tasks.train.launcher": {"TERMINAL_EVENTS", "MessageFormatter", "OnLog", "run_trainer"},
    "tasks.train.limits": {"RollbackLimits"},
}
"""What code that counts still takes from operations: the less there is, the less the table has to be believed."""


def test_what_counted_code_takes_from_operations_is_known() -> None:
    names = {name for stage in STAGES for name in cached_code_of(roots_of(stage)).definitions if ":" in name}
    modules = {name.partition(":")[0] for name in names}
    read = {name: Module(name, module_file(name), module_file(name).read_bytes()) for name in modules}
    found: dict[str, set[str]] = {}
    for module, _, definition in (name.partition(":") for name in names):
        for reference in read[module].written(definition).references:
            if is_operations(reference.module):
                found.setdefault(reference.module, set()).add(reference.attributes[0])
    assert found == REMAINING


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_fingerprint_that_begins_at_its_own_module(stage: str) -> None:
    found = cached_code_of(roots_of(stage)).definitions
    assert {f"tasks.{stage}.stage:build_{stage}", "tasks.artifacts.report:StageReport"} <= set(found)
    assert any(name.startswith(f"tasks.{stage}.config:") for name in found)
