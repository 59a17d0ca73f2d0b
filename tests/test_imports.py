"""The direction of imports, read from the source of every module: inside functions and under TYPE_CHECKING as well.

`flows` imports `tasks`, `tasks` imports `model`; within each, a package imports packages on its own floor or below; no
modules import each other in a circle. Only `flows` and `tasks/prefect_tasks.py` know Prefect; stages do not import each
other; what checks a recipe loads no heavy library.
"""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.common.operations import is_operations

PROJECT = Path(__file__).parents[1]
ROOTS = ("flows", "tasks", "model")
STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")
FLOORS = {
    "flows": (
        ("__main__",),
        ("cli", "reference"),
        ("commands",),
        ("nightly", "experiments"),
        ("pretrain", "planning", "models"),
        ("inspection", "reports"),
        ("metrics", "removal", "upkeep"),
        ("runs",),
        ("recipe", "service", "shipped"),
    ),
    "tasks": (("prefect_tasks",), ("models",), STAGES, ("tokenizer",), ("execution",), ("artifacts",), ("common",)),
    "model": (
        ("profile",),
        ("train", "finetune"),
        ("launch", "guard", "huggingface", "inference"),
        ("checkpoint",),
        ("engines",),
        ("objectives",),
        ("optim", "nn"),
        ("data", "distributed", "config"),
        (
            "checksummed_json",
            "code_digest",
            "digests",
            "environment",
            "errors",
            "file_content",
            "files",
            "kernel_cache",
            "kernels",
            "model_files",
            "processes",
        ),
    ),
}
"""Packages of each root, top floor first."""
DRAWING = {"jinja2", "plotly", "rich", "typer"}
HEAVY = {"torch", "numba", "numpy", "sentencepiece", "trafilatura", "ftfy"}
DYNAMIC = {"import_module", "__import__", "run_module", "run_path", "spec_from_file_location"}
LOADS_CODE_OF_USERS = "tasks.execution.plugins"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its name; read by the first test, and not in each process that only
    collects tests."""
    return {
        path.relative_to(PROJECT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for root in ROOTS
        for path in sorted((PROJECT / root).rglob("*.py"))
    }


@functools.cache
def imported(name: str, *, at_top: bool = False) -> frozenset[str]:
    """Dotted names that a module imports: modules of the project, and what others are called."""
    tree = modules()[name]
    nodes = tree.body if at_top else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = "." * node.level + (node.module or "")
            inner = {f"{whole}.{alias.name}" for alias in node.names}
            found.update({module if module in modules() else whole for module in inner})
    return frozenset(found - {name})


def tops(name: str) -> set[str]:
    return {module.partition(".")[0] for module in imported(name)}


def floor(module: str) -> int:
    root, _, rest = module.partition(".")
    package = rest.partition(".")[0]
    return next(number for number, packages in enumerate(FLOORS[root]) if package in packages)


def test_every_package_has_a_floor():
    packages = {tuple(name.split(".")[:2]) for name in modules() if "." in name}
    known = {(root, package) for root, floors in FLOORS.items() for packages in floors for package in packages}
    assert sorted(packages - known) == []


def test_roots_import_downwards():
    upwards = {
        name: wrong for name in modules() if (wrong := tops(name) & set(ROOTS[: ROOTS.index(name.partition(".")[0])]))
    }
    assert upwards == {}


def test_packages_import_their_own_floor_or_below():
    upwards = [
        f"{name} -> {module}"
        for name in modules()
        if "." in name
        for module in imported(name)
        if module in modules()
        and "." in module
        and module.partition(".")[0] == name.partition(".")[0]
        and floor(module) < floor(name)
    ]
    assert upwards == []


def test_no_modules_import_each_other_in_a_circle():
    """Kahn's algorithm: take away modules whose imports are all gone, until none is left."""
    left = {name: {module for module in imported(name) if module in modules()} for name in modules()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert {name: sorted(needs & left.keys()) for name, needs in left.items()} == {}


def test_nothing_is_imported_relatively():
    assert [name for name in modules() if any(module.startswith(".") for module in imported(name))] == []


def test_only_flows_and_the_tasks_know_prefect():
    below = [name for name in modules() if not name.startswith("flows")]
    assert [name for name in below if "prefect" in tops(name)] == ["tasks.prefect_tasks"]


def test_stages_do_not_import_each_other():
    met = [
        f"{name} -> {module}"
        for stage in STAGES
        for name in modules()
        if name.startswith(f"tasks.{stage}")
        for module in imported(name)
        if module in modules() and module.startswith("tasks.") and module.split(".")[1] in set(STAGES) - {stage}
    ]
    assert met == []


def test_nothing_below_flows_imports_dynamically():
    def calls(name: str) -> set[str]:
        called = [node.func for node in ast.walk(modules()[name]) if isinstance(node, ast.Call)]
        return {f.id if isinstance(f, ast.Name) else f.attr for f in called if isinstance(f, ast.Name | ast.Attribute)}

    below = [name for name in modules() if not name.startswith("flows")]
    assert [name for name in below if calls(name) & DYNAMIC] == [LOADS_CODE_OF_USERS]


def test_code_of_users_is_loaded_only_where_a_stage_is_declared():
    """It is loaded before a build and counts by a fingerprint of its own; that of a stage refuses such imports."""
    importers = [name for name in modules() if LOADS_CODE_OF_USERS in imported(name)]
    assert importers
    assert [name for name in importers if name.rpartition(".")[2] != "stage"] == []


def test_nothing_below_flows_draws():
    """Chat templates are programs of Jinja, which turn messages into the text that a network reads."""
    drawing = {name: tops(name) & DRAWING for name in modules() if not name.startswith("flows")}
    assert {name: found for name, found in drawing.items() if found} == {"model.finetune.chat_template": {"jinja2"}}


def test_the_front_of_a_stage_is_light():
    """Importing a stage's package, configuration and declaration loads nothing that takes a second."""
    fronts = [f"tasks.{stage}{module}" for stage in STAGES for module in ("", ".config", ".stage")]
    heavy = {
        name: wrong
        for name in [*fronts, "tasks.prefect_tasks"]
        if (wrong := {module.partition(".")[0] for module in imported(name, at_top=True)} & HEAVY)
    }
    assert heavy == {}


def test_counted_code_imports_names_from_the_module_that_defines_them():
    """The fingerprint stops at operations modules: a name that one only passes on would be lost."""
    passed_on = set()
    for name, tree in modules().items():
        if is_operations(name):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules() and is_operations(node.module):
                taken = {alias.name for alias in node.names}
                if missing := taken - defined(modules()[node.module]):
                    passed_on.add((name, node.module, *sorted(missing)))
    assert passed_on == set()


def defined(tree: ast.Module) -> set[str]:
    """Names that a module defines itself."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names.update(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return names


def test_every_module_says_what_it_is():
    assert [name for name, tree in modules().items() if not ast.get_docstring(tree)] == []


LIGHT = [
    {
        "flows.__main__": "typer rich json tomllib",
        "flows.cli": "torch numba numpy pyarrow prefect pydantic",
        "flows.reports.document": "numpy pyarrow pydantic",
        "flows.runs.lineage": "torch numba prefect pyarrow numpy pydantic",
        "flows.runs.document_history": "torch numba prefect pydantic pandas",
    },
    {
        "model.config.train": "torch numba numpy",
        "model.launch.supervisor": "torch numba",
        "flows.recipe.load": "torch numba prefect",
        "flows.planning.explain": "torch numba prefect",
        "flows.reports.summary": "torch numba",
        "tasks.prefect_tasks": "torch numba",
        "flows.pretrain": "torch numba",
    },
]
"""Modules that a process imports one after the other, and what is not loaded with each; none before it loads that."""


@pytest.mark.parametrize("modules", LIGHT, ids=["commands", "flows and trainers"])
def test_start_up_paths_load_nothing_heavy(modules: dict[str, str]):
    """Help, a plan, a run with nothing to build, and what watches a training must not wait for PyTorch or kernels."""
    program = "import sys"
    for module, heavy in modules.items():
        program += f"\nimport {module}\nprint({module!r}, *(name for name in {heavy.split()} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout.splitlines() == list(modules)
