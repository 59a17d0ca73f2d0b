"""The table that `make prove-joints` prints: what each proof tried, and how often the joint held.

A proof counts its cases in a block and says in words what a case was. Every row is printed, also of a failing proof:

    pytestmark = pytest.mark.joints

    def test_every_field_counts(joint: Joint) -> None:
        with joint("identity: fields changed") as tally:
            for field in fields:
                tally.expect(key_after(field) != key, f"{field} changed, and the key stayed")
            tally.note = "every miss named its field"

Leaving the block fails the test with the first cases that did not hold. Rows travel with the test reports, so the table
is whole under pytest-xdist too. JOINTS_JSON names a file that takes the same rows as JSON.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROW = "joint"
FIRST = ("test_builders.py", "test_durable_order.py")
"""The proofs that say most in the least time."""
_MISSES_TOLD = 10
_HEADER = ("joint", "tried", "held", "missed", "seconds", "note")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Builders and the order of their writes first, where only joints were asked for."""
    here = Path(__file__).parent
    if all(here in item.path.parents for item in items):
        items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


@dataclass
class Tally:
    """The cases of one proof: `tried`, and in words those that did not hold."""

    joint: str
    tried: int = 0
    missed: list[str] = field(default_factory=list)
    note: str = ""
    """The last column: the worst case met, or what held besides the count."""

    def expect(self, held: bool, case: str) -> bool:
        """Count a case; `case` says what was done and found, and is printed when it did not hold. Returns `held`."""
        self.tried += 1
        if not held:
            self.missed.append(case)
        return held


Joint = Callable[[str], AbstractContextManager[Tally]]


@pytest.fixture
def joint(request: pytest.FixtureRequest) -> Joint:
    """`with joint("name of the row") as tally`: counts cases, keeps the row, fails when a case did not hold."""

    @contextmanager
    def count(name: str) -> Iterator[Tally]:
        tally = Tally(name)
        began = time.monotonic()
        try:
            yield tally
        except BaseException as error:
            tally.missed.append(f"the proof itself broke: {type(error).__name__}: {error}")
            raise
        finally:
            row = {**asdict(tally), "seconds": round(time.monotonic() - began, 3)}
            request.node.user_properties.append((ROW, row))
        assert tally.tried > 0, f"{name}: nothing was tried"
        assert not tally.missed, _told(tally)

    return count


def _told(tally: Tally) -> str:
    left = len(tally.missed) - _MISSES_TOLD
    lines = [*tally.missed[:_MISSES_TOLD], *([f"... and {left} more"] if left > 0 else [])]
    return f"{tally.joint}: {len(tally.missed)} of {tally.tried} did not hold:\n  " + "\n  ".join(lines)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, at the end of the session; nothing where no proof ran."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.stats.get(group, [])]
    reported = [(report.nodeid, row) for report in reports for name, row in report.user_properties if name == ROW]
    rows = [row for _, row in sorted(reported, key=lambda item: item[0])]
    if not rows:
        return
    terminalreporter.section("joints")
    for line in _table(rows):
        terminalreporter.write_line(line)
    if path := os.environ.get("JOINTS_JSON"):
        Path(path).write_text(json.dumps(rows, indent=1, ensure_ascii=False))
        terminalreporter.write_line(f"rows written to {path}")


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [_HEADER, *(_cells(row) for row in rows), _cells(_total(rows))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if column in (0, len(_HEADER) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    missed = len(row["missed"])
    note = f"MISSED: {row['missed'][0]}" if missed and row["joint"] != "total" else row["note"]
    note = note if len(note) <= 100 else f"{note[:97]}..."
    held = str(max(0, row["tried"] - missed))
    return row["joint"], str(row["tried"]), held, str(missed), f"{row['seconds']:.1f}", " ".join(note.split())


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "joint": "total",
        "tried": sum(row["tried"] for row in rows),
        "missed": [miss for row in rows for miss in row["missed"]],
        "seconds": sum(row["seconds"] for row in rows),
        "note": "",
    }
