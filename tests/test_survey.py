"""The survey names files that exist, tests that pytest collects, and a reason for whatever is declined."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SURVEY = (PROJECT / "docs" / "survey.md").read_text(encoding="utf-8")
EXISTING, DECLINED = (
    [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("| ") and not line.startswith("| technique |")
    ]
    for part in SURVEY.split("## What is declined")
)
"""Rows of (technique, source, where, tests), and of (technique, source, reason)."""


def test_every_row_has_its_cells():
    assert len(EXISTING) > 90
    assert [row[0] for row in EXISTING if len(row) != 4] == []
    assert len(DECLINED) > 50
    assert [row[0] for row in DECLINED if len(row) != 3] == []


def test_no_technique_comes_twice():
    names = [row[0] for row in EXISTING + DECLINED]
    assert sorted(names) == sorted(set(names))


def test_what_exists_names_its_place():
    """A file, a setting, a command or a table."""
    assert [row[0] for row in EXISTING if not re.search(r"`|[A-Z]{4}", row[2])] == []


def test_every_file_named_exists():
    named = re.findall(r"`((?:model|tasks|flows|tests|docs|benchmarks)/[^`]*)`", SURVEY)
    assert len(named) > 60
    assert [name for name in named if not (PROJECT / name.partition("::")[0]).exists()] == []
    assert [name for name in re.findall(r"\]\(([^)]+)\)", SURVEY) if not (PROJECT / "docs" / name).exists()] == []


def collected(module: Path) -> set[str]:
    """Return the names under which pytest collects functions of a module, from its syntax tree: to import all modules
    takes half a minute."""
    assert module.match("test_*.py"), module
    body = ast.parse(module.read_text(encoding="utf-8")).body
    functions = (node for node in body if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("test") and not _is_fixture(node)}


def _is_fixture(function: ast.FunctionDef) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_every_row_names_a_test_that_pytest_collects():
    """Rows that exist in part may name none."""
    named = {row[0]: re.findall(r"`(tests/[^`:]*)::(\w+)`", row[3]) for row in EXISTING}
    in_part = {row[0] for row in EXISTING if row[2].startswith("in part")}
    assert len(named) > 90
    assert [technique for technique, tests in named.items() if not tests and technique not in in_part] == []
    names = {file: collected(PROJECT / file) for tests in named.values() for file, _ in tests}
    assert [f"{file}::{test}" for tests in named.values() for file, test in tests if test not in names[file]] == []


def test_no_test_is_named_in_another_form():
    """As a file alone, or with parameters, a test would not be looked up."""
    named = re.findall(r"`(tests/[^`]*)`", "\n".join(row[3] for row in EXISTING))
    assert [name for name in named if not re.fullmatch(r"tests/[\w/]+\.py::test_\w+", name)] == []


def test_what_is_declined_gives_a_reason():
    assert [row[0] for row in DECLINED if len(row[2]) < 10] == []
