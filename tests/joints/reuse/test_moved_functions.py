"""Every function and class of a stage moved to another file, and every import of them with it: all identities stay.

The constants of a module stay behind, but for those that importing it computes with its functions: what moved imports
them from where they are.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.stages import STAGES
from tasks.common.code_cache import cached_code_of
from tasks.common.code_fingerprint import code_of
from tests.stages import roots_of

STAGE = "dedup"
LEFT = {"__init__"}
"""The module without functions of the stage."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Moved:
    """A module in two: what stays, and the names that go to the other file."""

    name: str
    source: str
    names: set[str] = field(default_factory=set)

    @property
    def target(self) -> str:
        """Where the names go: another module of another folder."""
        package, _, last = self.name.rpartition(".")
        return f"{package}.moved.{last}_moved"


def test_the_code_of_no_stage_changes(checkout: Path) -> None:
    before = {stage: cached_code_of(roots_of(stage)) for stage in STAGES}
    moved = move(checkout)
    after = {stage: code_of([_root(root, moved) for root in roots_of(stage)], checkout) for stage in STAGES}
    assert {stage: code.digest for stage, code in after.items()} == {
        stage: code.digest for stage, code in before.items()
    }
    places = {name.partition(":")[0] for name in after[STAGE].definitions if ":" in name}
    assert {one.target for one in moved} <= places


@pytest.mark.joints
def test_eight_identities_stay(
    walked: Any, checkout: Path, forecaster: Callable[..., Any], joint: Callable[..., Any]
) -> None:
    with joint("identity: every function of a stage moved to another file") as tally:
        existing = {path.parent.name: path.name for path in walked.root.glob("artifacts/*/*")}
        moved = move(checkout)
        for stage, answer in forecaster(project=checkout).ask().items():
            same = (answer.get("key"), answer.get("outcome")) == (existing[stage], "reused")
            tally.expect(same, f"{stage}: {answer}")
        tally.note = f"{sum(len(one.names) for one in moved)} definitions of {len(moved)} modules of {STAGE}"


def test_what_moved_can_be_imported(checkout: Path) -> None:
    moved = move(checkout)
    program = (
        f"import {', '.join(one.target for one in moved)}, tasks.prefect_tasks, flows.runs.pipeline, flows.reports.page"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _root(root: str, moved: list[Moved]) -> str:
    module, _, name = root.partition(":")
    return next((f"{one.target}:{name}" for one in moved if one.name == module and name in one.names), root)


def move(project: Path) -> list[Moved]:
    """Move the functions and classes of a stage, and everything that names their places."""
    folder = project / "tasks" / STAGE
    modules = [
        Moved(f"tasks.{STAGE}.{path.stem}", path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.py"))
        if path.stem not in LEFT
    ]
    for module in modules:
        module.names = _names_that_move(module.source)
    moved = [module for module in modules if module.names]
    (folder / "moved").mkdir()
    (folder / "moved" / "__init__.py").write_text('"""Functions that moved."""\n')
    for path in sorted(project.rglob("*.py")):
        name = ".".join(path.relative_to(project).with_suffix("").parts)
        source = path.read_text(encoding="utf-8")
        one = next((one for one in moved if one.name == name), None)
        if one is not None:
            stays, goes = _split(one)
            target = project.joinpath(*one.target.split(".")).with_suffix(".py")
            target.write_text(_renamed(goes, moved), encoding="utf-8")
            source = stays
        path.write_text(_renamed(source, moved), encoding="utf-8")
    return moved


def _names_that_move(source: str) -> set[str]:
    """Functions and classes, and constants that are computed with some of them."""
    body = ast.parse(source).body
    names = {statement.name for statement in body if isinstance(statement, _DEFINITIONS)}
    constants = {name: statement for statement in body for name in _targets(statement)}
    while True:
        more = {name for name, statement in constants.items() if name not in names and names & _used(statement)}
        if not more:
            return names
        names |= more


def _targets(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _used(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _split(module: Moved) -> tuple[str, str]:
    """The text that stays, and the text that goes: imports are in both."""
    lines = module.source.splitlines()
    body = ast.parse(module.source).body
    stays, goes = [], ['"""What moved."""']
    constants: set[str] = set()
    for statement in body:
        first = min([statement.lineno, *(mark.lineno for mark in getattr(statement, "decorator_list", []))])
        text = "\n".join(lines[first - 1 : statement.end_lineno])
        names = {statement.name} if isinstance(statement, _DEFINITIONS) else {*_targets(statement)}
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.If):
            goes.append(text)
        if names & module.names:
            goes.append(text)
        else:
            stays.append(text)
            constants |= names
    wanted = sorted(constants & _used(ast.parse("\n".join(goes))))
    if wanted:
        goes.insert(1, f"from {module.name} import {', '.join(wanted)}")
    return "\n".join(stays) + "\n", "\n\n\n".join(goes) + "\n"


def _renamed(source: str, moved: list[Moved]) -> str:
    """The source with every import of what moved, and the root of the stage, at its new place."""
    by_name = {one.name: one for one in moved}
    lines = source.splitlines(keepends=True)
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(imports, key=lambda node: node.lineno, reverse=True):
        one = by_name.get(node.module or "")
        if one is None or node.end_lineno is None:
            continue
        new = [alias for alias in node.names if alias.name in one.names]
        old = [alias for alias in node.names if alias.name not in one.names]
        parts = ((one.name, old), (one.target, new))
        text = "; ".join(
            f"from {name} import {', '.join(map(ast.unparse, aliases))}" for name, aliases in parts if aliases
        )
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + text + "\n"]
    text = "".join(lines)
    for one in moved:
        for name in one.names:
            text = text.replace(f'"{one.name}:{name}"', f'"{one.target}:{name}"')
    return text
