"""The import directions that hold the house together, read from the source of every module.

flows -> tasks -> model; only flows/ and tasks/*/task.py know Prefect; stages are strangers to each other; nothing in
tasks/ or model/ imports by name at run time, because the code fingerprint walks static imports.
"""

import ast
from pathlib import Path

from tasks.code import is_operations

PROJECT = Path(__file__).parents[1]
ROOMS = ("flows", "tasks", "model")
MODULES = {
    path.relative_to(PROJECT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for room in ROOMS
    for path in sorted((PROJECT / room).rglob("*.py"))
}
STAGES = sorted(path.parent.name for path in (PROJECT / "tasks").glob("*/config.py"))
BELOW_FLOWS = [name for name in MODULES if not name.startswith("flows/")]
DRAWING = {"jinja2", "plotly", "rich", "typer"}
HEAVY = {"torch", "numba", "numpy", "sentencepiece", "trafilatura", "ftfy"}
DYNAMIC = {"import_module", "__import__", "run_module", "run_path", "spec_from_file_location"}
LOADS_USERS_CODE = "tasks/extensions.py"


def imported(nodes: list[ast.stmt]) -> set[str]:
    """Dotted names of all modules that statements import, inside functions too."""
    names: set[str] = set()
    for node in (inner for statement in nodes for inner in ast.walk(statement)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def tops(name: str) -> set[str]:
    return {module.partition(".")[0] for module in imported(MODULES[name].body)}


def test_the_walk_sees_the_house():
    assert {"sample", "clean", "dedup", "vocab"} <= set(STAGES)
    assert len(MODULES) > 50
    assert "numpy" in imported(MODULES["flows/lives.py"].body)


def test_imports_flow_downwards():
    upwards = {}
    for name in MODULES:
        rooms_above = set(ROOMS[: ROOMS.index(name.partition("/")[0])])
        if wrong := tops(name) & rooms_above:
            upwards[name] = wrong
    assert upwards == {}


def test_nothing_is_imported_relatively():
    assert [name for name, tree in MODULES.items() if any(m.startswith(".") for m in imported(tree.body))] == []


def test_only_flows_and_task_faces_know_prefect():
    faces = {f"tasks/{stage}/task.py" for stage in STAGES}
    assert [name for name in BELOW_FLOWS if name not in faces and "prefect" in tops(name)] == []


def test_stages_are_strangers():
    met = {}
    for stage in STAGES:
        others = {other for other in STAGES if other != stage}
        for name in (name for name in MODULES if name.startswith(f"tasks/{stage}/")):
            parts = [module.split(".") for module in imported(MODULES[name].body)]
            if wrong := {part[1] for part in parts if part[0] == "tasks" and len(part) > 1} & others:
                met[name] = wrong
    assert met == {}


def test_nothing_below_flows_imports_dynamically():
    def calls(name: str) -> set[str]:
        called = [node.func for node in ast.walk(MODULES[name]) if isinstance(node, ast.Call)]
        return {f.id if isinstance(f, ast.Name) else f.attr for f in called if isinstance(f, ast.Name | ast.Attribute)}

    assert [name for name in BELOW_FLOWS if calls(name) & DYNAMIC] == [LOADS_USERS_CODE]


def test_the_loader_of_the_users_code_is_in_no_closure():
    """It works before a build, and what it loads counts by fingerprint; a closure refuses dynamic imports."""
    callers = [name for name in MODULES if LOADS_USERS_CODE[:-3].replace("/", ".") in imported(MODULES[name].body)]
    assert callers
    assert [name for name in callers if name.rpartition("/")[2] != "stage.py"] == []


def test_nothing_below_flows_draws():
    assert {name: tops(name) & DRAWING for name in BELOW_FLOWS if tops(name) & DRAWING} == {}


def test_every_stage_has_the_same_furniture():
    wanted = [f"tasks/{stage}/{piece}.py" for stage in STAGES for piece in ("__init__", "config", "stage", "task")]
    assert [name for name in wanted if name not in MODULES] == []


def test_the_front_of_a_stage_is_light():
    heavy = {}
    for name in (f"tasks/{stage}/{piece}.py" for stage in STAGES for piece in ("__init__", "config", "stage", "task")):
        if name not in MODULES:
            continue
        at_top = [node for node in MODULES[name].body if isinstance(node, ast.Import | ast.ImportFrom)]
        if wrong := {module.partition(".")[0] for module in imported(at_top)} & HEAVY:
            heavy[name] = wrong
    assert heavy == {}


def test_every_module_says_what_it_is():
    assert [name for name, tree in MODULES.items() if not ast.get_docstring(tree)] == []


def test_what_counts_is_taken_from_where_it_stands():
    """A name that a module of operations only passes on would be lost to the fingerprint of whoever takes it there."""
    passed_on = set()
    for name, tree in MODULES.items():
        if is_operations(name.removesuffix(".py").replace("/", ".")):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and is_operations(node.module):
                source = MODULES.get(f"{node.module.replace('.', '/')}.py")
                taken = {alias.name for alias in node.names}
                if source is not None and not taken <= bound(source):
                    passed_on.add((name, node.module, *sorted(taken - bound(source))))
    assert passed_on == set()


def bound(tree: ast.Module) -> set[str]:
    """Names that a module binds itself."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names.update(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return names
