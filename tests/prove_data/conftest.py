"""What `make prove-data` measures, in one table: each proof states a number, its 95% interval, its target.

    def test_recall(measured: Measured) -> None:
        measured("dedup", "recall at J >= .8", recall, at_least=0.97, low=low, high=high, note="1,200 planted pairs")

The corpora lie in `../shared/data` beside the checkout, or where BESSEMER_DATA says; proofs that need them are skipped,
and say so, where they are not. MEASURED_JSON names a file that takes the same rows as JSON.
"""

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROW, TABLE = "measured", "table"
_HEADER = ("stage", "measured", "value", "95% interval", "target", "", "note")

Measured = Callable[..., None]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real corpora."""
    folder = Path(os.environ.get("BESSEMER_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no corpora at {folder}; name their folder in BESSEMER_DATA")
    return folder


@dataclass(frozen=True)
class Corpora:
    """Texts of the real corpora by the names of their folders."""

    folder: Path

    def documents(self, *names: str, kept_out: bool | None = None) -> Iterator[str]:
        """All documents; of every five the first alone where `kept_out`, the other four where it is False."""
        for name in names:
            for part in sorted((self.folder / name).glob("*.jsonl.gz")):
                with gzip.open(part, "rt", encoding="utf-8") as stream:
                    for number, record in enumerate(stream):
                        if kept_out is None or (number % 5 == 0) == kept_out:
                            yield json.loads(record)["text"]

    def lines(self, *names: str, kept_out: bool | None = None) -> list[str]:
        """The lines of those documents that are not empty."""
        return [line for text in self.documents(*names, kept_out=kept_out) for line in text.split("\n") if line]


@pytest.fixture(scope="session")
def corpora(data: Path) -> Corpora:
    """The texts of the corpora."""
    return Corpora(data)


@pytest.fixture
def tabled(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keeps a table of its own, which is printed at the end: a title, a header, lines of cells."""

    def keep(title: str, header: list[str], lines: list[list[str]]) -> None:
        request.node.user_properties.append((TABLE, (title, header, lines)))

    return keep


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Keeps a row of the table, and fails the proof where the value misses `at_least` or exceeds `at_most`."""

    def keep(
        stage: str,
        what: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        low: float | None = None,
        high: float | None = None,
        note: str = "",
    ) -> None:
        held = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        limits = {"at_least": at_least, "at_most": at_most, "low": low, "high": high}
        row = {"stage": stage, "what": what, "value": value, **limits, "held": held, "note": note}
        request.node.user_properties.append((ROW, row))
        assert held, f"{stage}: {what} is {value}, and should be {_target(row)}"

    return keep


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, at the end of the session; nothing where nothing was measured."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.stats.get(group, [])]
    for title, header, lines in (it for report in reports for name, it in report.user_properties if name == TABLE):
        terminalreporter.section(title)
        _write(terminalreporter, [header, *lines])
    rows = [row for report in reports for name, row in report.user_properties if name == ROW]
    if not rows:
        return
    terminalreporter.section("measured")
    _write(terminalreporter, [_HEADER, *(_cells(row) for row in sorted(rows, key=lambda row: row["stage"]))])
    if path := os.environ.get("MEASURED_JSON"):
        Path(path).write_text(json.dumps(rows, indent=1, ensure_ascii=False))
        terminalreporter.write_line(f"rows written to {path}")


def _write(terminalreporter: Any, cells: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        reported = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.write_line(reported.rstrip())


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    interval = f"{row['low']:.4g} to {row['high']:.4g}" if row["low"] is not None else ""
    held = "" if row["held"] else "MISSED"
    return row["stage"], row["what"], f"{row['value']:.6g}", interval, _target(row), held, row["note"]


def _target(row: dict[str, Any]) -> str:
    limits = ((">=", row["at_least"]), ("<=", row["at_most"]))
    return " ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
