"""The report of a stage: counts by source that must balance, and facts of its own.

Conservation of documents, for each source:

    in = out + not_selected + rejected + held_out + sum(dropped by rule)

and between two stages, in documents and bytes: what the parent passed on is what the stage reads.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from model.errors import Bug, IntegrityError


@dataclass
class SourceCounts:
    """Documents (and UTF-8 bytes of text) of one source by their outcome in one stage."""

    documents_in: int = 0
    documents_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    not_selected: int = 0
    rejected: int = 0
    held_out: int = 0
    pieces_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    edited: Counter[str] = field(default_factory=Counter)

    def add(self, other: "SourceCounts") -> None:
        """Add another part's counts of the same source."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        self.edited.update(other.edited)

    def surplus(self) -> int:
        """Return the number of documents without a recorded outcome; 0 if conservation holds."""
        accounted = self.documents_out + self.not_selected + self.rejected + self.held_out + sum(self.dropped.values())
        return self.documents_in - accounted


_NUMBERS = tuple(number.name for number in fields(SourceCounts) if number.type is int)


class StageReport:
    """Counts by source, and `facts` (JSON values) for the run page; reports of parts are merged into the stage's."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceCounts] = {}
        self.facts: dict[str, Any] = {}

    def source(self, name: str) -> SourceCounts:
        """Return the counts of one source, created empty at first use."""
        return self.sources.setdefault(name, SourceCounts())

    def merge(self, other: "StageReport") -> None:
        """Add another part's report: counts and facts that are mappings of numbers are summed, other facts replaced."""
        for name, counts in other.sources.items():
            self.source(name).add(counts)
        for key, value in other.facts.items():
            mine = self.facts.get(key)
            if isinstance(mine, dict) and isinstance(value, dict) and _all_numbers(mine) and _all_numbers(value):
                self.facts[key] = {k: mine.get(k, 0) + value.get(k, 0) for k in sorted({*mine, *value})}
            else:
                self.facts[key] = value

    def total(self) -> SourceCounts:
        """Return the counts of all sources together."""
        together = SourceCounts()
        for counts in self.sources.values():
            together.add(counts)
        return together

    def check_conservation(self, stage: str) -> None:
        """Raise Bug if a document was read and has no recorded outcome."""
        for name, counts in sorted(self.sources.items()):
            if counts.surplus():
                raise Bug(
                    f"{stage}: conservation fails for source `{name}`: {counts.documents_in} documents were read"
                    f" and {counts.documents_in - counts.surplus()} have a recorded outcome. This is a bug in the"
                    f" stage's code, not a fault of your data; nothing was published."
                )

    def check_rows(self, stage: str, rows: int | None) -> None:
        """Raise Bug if the stage has a table of documents and its number of `rows` differs from these counts."""
        total = self.total()
        counted = total.pieces_out or total.documents_out
        if self.sources and rows is not None and counted != rows:
            raise Bug(
                f"{stage}: by its counts {counted} rows of documents are passed on, and its table has {rows}. This is a"
                f" bug in the stage's code, not a fault of your data; nothing was published."
            )

    def check_taken_in(self, stage: str, parent: str, given: "StageReport") -> None:
        """Raise IntegrityError if the documents or bytes read differ from those that the parent, whose report is
        `given`, passed on."""
        for name in sorted({*given.sources, *self.sources}):
            out, taken = (report.sources.get(name, SourceCounts()) for report in (given, self))
            for unit, there, here in (
                ("documents", out.documents_out, taken.documents_in),
                ("bytes", out.bytes_out, taken.bytes_in),
            ):
                if there != here:
                    raise IntegrityError(
                        f"{stage}: `{parent}` passed on {there} {unit} of source `{name}`, and {here} were read."
                        f" Nothing was published. Run `bessemer store verify`: if it finds no damage, this is a bug in"
                        f" one of the two stages."
                    )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values with sorted keys."""
        return {
            "sources": {
                name: {
                    **{number: getattr(counts, number) for number in _NUMBERS},
                    "dropped": dict(sorted(counts.dropped.items())),
                    "edited": dict(sorted(counts.edited.items())),
                }
                for name, counts in sorted(self.sources.items())
            },
            "facts": self.facts,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "StageReport":
        """Return the report that `to_json` wrote."""
        report = StageReport()
        for name, numbers in data["sources"].items():
            rules = {kind: Counter(numbers[kind]) for kind in ("dropped", "edited")}
            report.sources[name] = SourceCounts(**{**numbers, **rules})
        report.facts = dict(data["facts"])
        return report

    @staticmethod
    def merged(reports: Iterable["StageReport"]) -> "StageReport":
        """Return all reports merged into one."""
        together = StageReport()
        for report in reports:
            together.merge(report)
        return together


def _all_numbers(values: dict[Any, Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values())
