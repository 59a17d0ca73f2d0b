"""Every function of the operations packages changed in a way that keeps it working: no identity and no byte changes.

In a copy of the project each function and lambda counts its calls, and constants of seconds are a quarter longer, all
at once: identities that stay then stay for each edit. That of a function which counts changes the identity is the proof
of `test_functions_that_ran.py`.
"""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.stages import STAGES
from tasks.common.code_cache import cached_code_of
from tasks.common.code_fingerprint import code_of
from tasks.common.operations import is_operations
from tests.stages import roots_of

LONGER = 1.25


class _Edit(ast.NodeTransformer):
    """Edits one module; `edited` are the qualified names of what was changed."""

    def __init__(self) -> None:
        self.edited: list[str] = []
        self._around: list[str] = []

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        for statement in node.body:
            self._lengthen(statement)
        node.body.insert(_first_place(node.body), *ast.parse("_calls = [0]").body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._visit_within(node, node.name)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.edited.append(".".join([*self._around, node.name]))
        self._visit_within(node, f"{node.name}.<locals>")
        node.body.insert(_first_place(node.body), *ast.parse("_calls[0] += 1").body)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.edited.append(".".join([*self._around, "<lambda>"]))
        self.generic_visit(node)
        counted: Any = ast.parse("(_calls.append(0), None)[1]", mode="eval").body
        counted.value.elts[1] = node.body
        node.body = counted
        return node

    def _visit_within(self, node: ast.AST, name: str) -> None:
        self._around.append(name)
        self.generic_visit(node)
        self._around.pop()

    def _lengthen(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=float(seconds)) as constant):
                if name.endswith("_SECONDS"):
                    constant.value = seconds * LONGER
                    self.edited.append(name)


def _first_place(body: list[ast.stmt]) -> int:
    at = 0
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) | ast.ImportFrom(module="__future__"):
                at += 1
            case _:
                break
    return at


def edit_operations(project: Path) -> dict[str, list[str]]:
    """Edit all modules of operations below `project`: file -> names of what was changed."""
    edited: dict[str, list[str]] = {}
    for package in ("tasks", "model"):
        for path in sorted((project / package).rglob("*.py")):
            file = path.relative_to(project).as_posix()
            if is_operations(file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")):
                edit = _Edit()
                path.write_text(ast.unparse(edit.visit(ast.parse(path.read_text()))))
                edited[file] = edit.edited
    return edited


def test_what_a_stage_counts_holds_no_operation(checkout: Path, joint: Callable[..., Any]) -> None:
    before = {stage: cached_code_of(roots_of(stage)) for stage in STAGES}
    edited = edit_operations(checkout)
    assert {"executor.py", "dask.py", "workspace.py", "published.py"} <= {Path(file).name for file in edited}
    with joint("identity: operations edited, all at once") as tally:
        for stage in STAGES:
            after = code_of(roots_of(stage), checkout)
            changed = [name for name, digest in after.definitions.items() if before[stage].definitions[name] != digest]
            tally.expect(after.digest == before[stage].digest, f"{stage} counts {', '.join(changed)}")
        tally.note = f"{sum(map(len, edited.values()))} functions and constants of {len(edited)} modules"


Edit = tuple[str, str, str]
"""A file, text in it, and other text."""
EVERY = frozenset(STAGES)
EDITS: dict[str, tuple[set[str] | frozenset[str], list[Edit]]] = {
    "a default of the guard": (
        {"train"},
        [("model/config/options.py", "window: int = Field(default=128", "window: int = Field(default=129")],
    ),
    "how an artifact is read": (
        EVERY,
        [("tasks/artifacts/artifact.py", "pa.concat_tables(tables)", "pa.concat_tables([*tables])")],
    ),
    "how a table is written": (
        EVERY - {"train"},
        [("tasks/artifacts/tables/files.py", "ROWS_PER_BATCH = 4096", "ROWS_PER_BATCH = 2048")],
    ),
    "a timeout of Dask, how a file is checked, what is reported of a limit, the longest pause before a restart": (
        set(),
        [
            ("tasks/execution/dask.py", "WORKERLESS_SECONDS = 300.0", "WORKERLESS_SECONDS = 301.0"),
            ("tasks/artifacts/published.py", "if found != record.digest:", "if not found == record.digest:"),
            ("tasks/artifacts/limits.py", "Look at the source and", "Look at the source, and"),
            ("model/launch/failures.py", "LONGEST_PAUSE = 60.0", "LONGEST_PAUSE = 61.0"),
        ],
    ),
}
"""The stages that edits decide, and the edits."""


@pytest.mark.parametrize(("stages", "edits"), EDITS.values(), ids=EDITS)
def test_an_edit_changes_the_code_of_the_stages_that_it_decides(
    checkout: Path, stages: set[str], edits: list[Edit]
) -> None:
    before = {stage: cached_code_of(roots_of(stage)).digest for stage in STAGES}
    for file, old, new in edits:
        source = (checkout / file).read_text()
        assert old in source
        (checkout / file).write_text(source.replace(old, new))
    assert {stage for stage in STAGES if code_of(roots_of(stage), checkout).digest != before[stage]} == stages


@pytest.mark.joints
def test_operations_change_no_identity_and_no_byte(
    walked: Any,
    checkout: Path,
    forecaster: Callable[..., Any],
    run_program: Callable[..., str],
    joint: Callable[..., Any],
    tmp_path: Path,
) -> None:
    edited = edit_operations(checkout)
    ran = {
        (file, name)
        for functions in walked.functions.values()
        for file, name, _ in functions
        if name in edited.get(file, ())
    }
    reported = f"{sum(map(len, edited.values()))} edits, {len(ran)} of functions that ran within a stage"
    assert len(ran) > 50, reported
    with joint("identity: every stage, operations edited") as tally:
        for stage, answer in forecaster(project=checkout).ask().items():
            tally.expect(answer.get("outcome") == "reused", f"{stage}: {answer}")
        tally.note = reported
    with joint("bytes: every stage built anew, operations edited") as tally:
        built = run_program("walk_road.py", walked.recipe, tmp_path / "root", STAGES[-1], project=checkout)
        existing = walked.manifests()
        for line in map(json.loads, built.splitlines()):
            manifest = existing[line["stage"]]
            same = line["outcome"] == "built" and line["content"] == manifest["content"]
            told_bytes = f"{line['stage']}: {line['outcome']}, {line['content']} and not {manifest['content']}"
            tally.expect(same and Path(line["path"]).name == manifest["identity"], told_bytes)
        tally.note = reported
