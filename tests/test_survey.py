"""Every row of the survey says what became of its technique, and names files that exist."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SURVEY = (PROJECT / "docs" / "survey.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SURVEY.splitlines()
    if line.startswith("| ") and not line.startswith("| technique |")
]


def test_every_row_has_its_four_cells_and_one_fate():
    assert len(ROWS) > 100
    fates = r"\*\*(stands|in part|open|declined)\*\*"
    assert [row[0] for row in ROWS if len(row) != 4 or not re.match(fates, row[3])] == []


def test_no_technique_comes_twice():
    names = [row[0] for row in ROWS]
    assert sorted(names) == sorted(set(names))


def test_what_stands_names_its_place():
    """A file, a setting or a function; so does what stands in part."""
    assert [row[0] for row in ROWS if re.match(r"\*\*(stands|in part)", row[3]) and "`" not in row[3]] == []


def test_every_file_named_exists():
    named = re.findall(r"`((?:model|tasks|flows|tests|docs|benchmarks)/[^`]*)`", SURVEY)
    assert len(named) > 60
    assert [name for name in named if not (PROJECT / name).exists()] == []
    assert [name for name in re.findall(r"\]\(([^)]+)\)", SURVEY) if not (PROJECT / "docs" / name).exists()] == []


def test_what_is_declined_gives_a_reason():
    declined = [row for row in ROWS if row[3].startswith("**declined**")]
    assert [row[0] for row in declined if len(row[3]) < len("**declined**") + 20] == []
