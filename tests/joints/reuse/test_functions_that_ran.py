"""Every function of ours that ran within a stage: with another meaning, the stage misses and names the function.

What ran is seen by a tracer in the run itself, the trainer's process included, so that registries, lazy imports and
tables of functions are followed as they really are. Kernels run as machine code, which no tracer sees: those that were
compiled count as run.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.identity import OF_CODE
from tasks.common.code_fingerprint import code_of
from tasks.common.operations import is_operations

pytestmark = pytest.mark.joints

LISTENERS = {
    ("tasks/artifacts/build.py", "ProgressListener.progress"),
    ("flows/runs/pipeline.py", "_build_train.<locals>.<lambda>"),
}
"""Ran within a stage, and only hear how far it is."""
LOADERS = {"model.launch.failures", "tasks.execution.plugins"}
"""Modules of operations that take modules by name, which nobody can follow; what they import from ours is served."""
_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_KINDS = {
    "<lambda>": ast.Lambda,
    "<listcomp>": ast.ListComp,
    "<setcomp>": ast.SetComp,
    "<dictcomp>": ast.DictComp,
    "<genexpr>": ast.GeneratorExp,
}


def test_every_function_that_ran_counts(
    walked: Any, checkout: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    with joint("identity: functions that ran, changed one at a time") as tally:
        asking = forecaster(project=checkout)
        functions = 0
        for file, seen_in in sorted(_stages_by_function(walked).items()):
            path = checkout / file
            source = path.read_text(encoding="utf-8")
            for (name, line), stages in sorted(seen_in.items()):
                functions += 1
                path.write_text(_with_another_meaning(source, name, line), encoding="utf-8")
                answers = asking.ask(stages=sorted(stages))
                for stage in sorted(stages):
                    case = f"{file}:{line} {name} changed, and {stage} says {answers[stage]}"
                    tally.expect(_names(answers[stage].get("causes", []), _module(file), name), case)
            path.write_text(source, encoding="utf-8")
        tally.note = f"{functions} functions; every miss named the function, and no other module"


def _names(causes: list[str], module: str, function: str) -> bool:
    """Whether causes name the definition that a function belongs to, or its module, and nothing of another module."""
    edited = f"{OF_CODE}{module}."
    named = [
        cause
        for cause in causes
        if function.startswith("<") or any(cause.split()[1] == f"{module}.{one}" for one in _definitions(function))
    ]
    whole = [cause for cause in causes if cause == f"{edited}* was edited"]
    return bool(named or whole) and all(cause.startswith(edited) for cause in causes)


def _definitions(function: str) -> tuple[str, str]:
    """Return the definitions that a function may belong to: its method, and its function or class."""
    first, *rest = function.split(".")
    return ".".join((first, *rest[:1])), first


def _stages_by_function(walked: Any) -> dict[str, dict[tuple[str, int], set[str]]]:
    """File -> (qualified name, first line) -> stages in which it ran."""
    found: dict[str, dict[tuple[str, int], set[str]]] = {}
    # What operations name themselves (to write a file durably, say) also runs where the stage does not name it.
    modules = (
        path.relative_to(walked.project)
        for package in ("tasks", "model")
        for path in (walked.project / package).rglob("*.py")
    )
    names = sorted(_module(path.as_posix()) for path in modules)
    roots = [name for name in names if is_operations(name) and name not in LOADERS]
    imported = [root for name in LOADERS for root in _imported_from_ours(walked.project, name)]
    serving = code_of([*roots, *imported], walked.project).definitions
    counted = {name: reported["identity_parts"]["code"]["definitions"] for name, reported in walked.manifests().items()}
    for stage, functions in walked.functions.items():
        for file, name, line in functions:
            # `make setup` lays the environment into the checkout; its libraries have a proof of their own.
            if file.startswith(("tests/", ".venv/")) or (file, name) in LISTENERS:
                continue
            assert file.startswith(("tasks/", "model/")), f"{file} ran within {stage}"
            if is_operations(_module(file)) or name == "<module>":
                continue
            # A method that neither counts by itself belongs to its class.
            own, first = (f"{_module(file)}:{one}" for one in _definitions(name))
            definition = own if own in serving or own in counted[stage] else first
            if definition in serving and definition not in counted[stage]:
                continue
            places = found.setdefault(file, {})
            places.setdefault((name, line), set()).add(stage)
    return found


def _imported_from_ours(project: Path, module: str) -> list[str]:
    """Roots `module:name` of what a module imports from counted modules of the project."""
    tree = ast.parse(project.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    return [
        f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ("tasks", "model")
        for alias in node.names
        if not is_operations(node.module)
    ]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _with_another_meaning(source: str, name: str, line: int) -> str:
    """The source with a statement more in the function, or its value taken out of a pair."""
    node = _find(ast.parse(source), name.rpartition(".")[2], line)
    lines = source.splitlines(keepends=True)
    if isinstance(node, _BLOCKS):
        return _with_a_statement(lines, node)
    value = node.value if isinstance(node, ast.DictComp) else node.body if isinstance(node, ast.Lambda) else node.elt
    _insert(lines, value.end_lineno, value.end_col_offset, ", None)[0]")
    _insert(lines, value.lineno, value.col_offset, "(")
    return "".join(lines)


def _find(tree: ast.Module, name: str, line: int) -> Any:
    for node in ast.walk(tree):
        if isinstance(node, _KINDS.get(name, _BLOCKS)):
            first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
            if first == line and getattr(node, "name", name) == name:
                return node
    raise AssertionError(f"no {name} begins in line {line}")


def _with_a_statement(lines: list[str], node: Any) -> str:
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        if len(node.body) == 1:
            _insert(lines, first.end_lineno, first.end_col_offset, "; _changed = None")
            return "".join(lines)
        first = node.body[1]
    line = min([first.lineno, *(mark.lineno for mark in getattr(first, "decorator_list", []))])
    if lines[line - 1][: first.col_offset].isspace() or line != first.lineno:
        lines.insert(line - 1, " " * first.col_offset + "_changed = None\n")
    else:
        _insert(lines, line, first.col_offset, "_changed = None; ")
    return "".join(lines)


def _insert(lines: list[str], line: int, byte: int, text: str) -> None:
    raw = lines[line - 1].encode()
    lines[line - 1] = (raw[:byte] + text.encode() + raw[byte:]).decode()
