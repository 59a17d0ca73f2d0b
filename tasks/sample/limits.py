"""Limits of unreadable records, which end the sample stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from model.errors import GuardError
from tasks.artifacts.limits import Limits
from tasks.artifacts.report import StageReport
from tasks.sample.rejects import REJECTED, SOURCES_READ, UNREADABLE


@dataclass(frozen=True)
class RejectLimits(Limits):
    """At most the share `share` of all records may be rejected, and never all records of a source.

    Empty files, and FIFOs and the like, lose no record and do not count.
    """

    share: float

    def check_so_far(self, report: StageReport) -> None:
        """Raise GuardError if no record could be read of a source that was read to its end."""
        _check_sources(report, report.facts.get(SOURCES_READ, ()))

    def check(self, report: StageReport) -> None:
        """Raise GuardError if too many records were rejected, or all of a source."""
        _check_sources(report, sorted(report.sources))
        total = report.total()
        lost = sum(report.facts[UNREADABLE].values())
        records = total.documents_in - (total.rejected - lost)
        share = lost / max(1, records)
        if share > self.share:
            raise GuardError(
                f"sample: {lost} of {records} records ({share:.1%}) were rejected, and [sample] max_reject_share allows"
                f" {self.share:.1%}. {_worst(report, sorted(report.sources))}; if the loss is intended, raise"
                f" max_reject_share."
            )


def _check_sources(report: StageReport, sources: Sequence[str]) -> None:
    lost = report.facts[UNREADABLE]
    for name in sources:
        counts = report.source(name)
        if lost.get(name) and counts.rejected == counts.documents_in:
            raise GuardError(
                f"sample: no record of source `{name}` could be read. {_worst(report, [name])}; or remove the source."
            )


def _worst(report: StageReport, sources: Sequence[str]) -> str:
    lost, rejected = report.facts[UNREADABLE], report.facts[REJECTED]
    source = max((name for name in sources if lost.get(name)), key=lambda name: rejected[name][0]["records"])
    file = rejected[source][0]
    return (
        f"The worst file is `{file['path']}` of source `{source}` with {file['records']} rejects; its first:"
        f" {file['reason']}. Repair or exclude the file, or correct format, text_field and id_field of the source"
    )
