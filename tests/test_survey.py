"""The survey names files that exist, tests that pytest collects, and a reason for whatever is declined."""

import ast
import re
from collections import Counter
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
    assert len(DECLINED) >= 50
    assert [row[0] for row in DECLINED if len(row) != 3] == []


def test_no_technique_comes_twice():
    names = [row[0] for row in EXISTING + DECLINED]
    assert sorted(names) == sorted(set(names))


def test_what_exists_names_its_place():
    """A file, a setting, a command or a table."""
    assert [row[0] for row in EXISTING if not re.search(r"`|[A-Z]{4}", row[2])] == []


def test_every_file_named_exists():
    named = re.findall(r"`((?:model|tasks|flows|tests|docs|benchmarks)/[^`]*)`", SURVEY)
    assert len(named) > 40
    assert [name for name in named if not (PROJECT / name.partition("::")[0]).exists()] == []
    assert [name for name in re.findall(r"\]\(([^)]+)\)", SURVEY) if not (PROJECT / "docs" / name).exists()] == []


def collected() -> Counter[str]:
    """Return how many functions pytest collects under each name, from syntax trees: to import all modules takes half a
    minute."""
    trees = (ast.parse(module.read_text(encoding="utf-8")) for module in (PROJECT / "tests").rglob("test_*.py"))
    functions = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef))
    return Counter(node.name for node in functions if node.name.startswith("test") and not _is_fixture(node))


def _is_fixture(function: ast.FunctionDef) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_every_row_names_one_test_that_pytest_collects():
    """Rows that exist in part may name none. A name that two files use would not lead to its test."""
    named = {row[0]: re.findall(r"`(test_\w+)`", row[3]) for row in EXISTING}
    in_part = {row[0] for row in EXISTING if row[2].startswith("in part")}
    assert len(named) > 90
    assert [technique for technique, tests in named.items() if not tests and technique not in in_part] == []
    names = collected()
    assert [(test, names[test]) for tests in named.values() for test in tests if names[test] != 1] == []


def test_no_test_is_named_in_another_form():
    """As a file, or with parameters, a test would not be looked up."""
    cells = "\n".join(row[3] for row in EXISTING)
    assert re.sub(r"`test_\w+`", "", cells).strip() == ""


def test_what_is_declined_gives_a_reason():
    assert [row[0] for row in DECLINED if len(row[2]) < 10] == []
