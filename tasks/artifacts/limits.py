"""Limits that end a stage. They change nothing in its result, so they count in no identity.

A build checks them as parts finish, in the order of the parts whatever the order of the workers, and ends as soon as no
later part could help. It checks them again before it publishes, and also for an artifact that it reuses, so that a
limit that was lowered applies to that artifact too."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from model.errors import GuardError
from tasks.artifacts.report import SourceCounts, StageReport

MIN_DOCUMENTS = 100
"""Documents from which on the drop rate of a single source is limited."""


class Limits:
    """Limits of a stage; this base class lets everything pass."""

    def check_so_far(self, report: StageReport) -> None:
        """Raise GuardError if the first parts, whose report this is, exceed a limit whatever the other parts hold."""

    def check(self, report: StageReport) -> None:
        """Raise GuardError if a whole stage, whose report this is, exceeds a limit."""


class HasReport(Protocol):
    """What the limits need of an artifact, whose manifest is read after the stage: an identity needs no manifest."""

    @property
    def report(self) -> StageReport:
        """The report of the stage that made it."""
        ...


class SourceWiped(GuardError):
    """Raised when a stage would drop nearly all of a source."""


@dataclass(frozen=True)
class DropRateLimits(Limits):
    """A stage may drop at most the share `limit` of the documents of a source, and not all documents.

    Sources with fewer than 100 documents have no limit of their own: a rule may rightly drop all of a few documents. A
    source that ends empty is a warning of the run (`flows/metrics/accounting.py`). `overrides` gives other limits by
    source name; with 1.0 for all of them there is no limit. The stage reads all of `documents`."""

    stage: str
    limit: float
    overrides: Mapping[str, float]
    documents: HasReport

    def check_so_far(self, report: StageReport) -> None:
        """Raise SourceWiped if more of a source was dropped than the limit allows for all of its documents."""
        for source, counts in sorted(report.sources.items()):
            total = self._documents_by_source.get(source, 0)
            if counts.documents_in >= total:
                self._check_source(source, counts)
            elif total >= MIN_DOCUMENTS and counts.dropped.total() / total > self._allowed(source):
                raise SourceWiped(
                    f"{self._summary(source, counts, total)} were dropped among the first {counts.documents_in}, and"
                    f" the others were not processed: the limit is {self._allowed(source):.0%}. {_main_rule(counts)}."
                    f" Look at the source and the rule; if this is intended, set [{self.stage}.wipe_out_overrides]"
                    f" {source} = 1.0, and the stage continues from its finished parts."
                )

    def check(self, report: StageReport) -> None:
        """Raise SourceWiped if the stage dropped more of a source than the limit allows, or every document."""
        for source, counts in sorted(report.sources.items()):
            self._check_source(source, counts)
        total = report.total()
        intended = all(self._allowed(source) >= 1.0 for source in report.sources)
        if total.documents_in and not total.documents_out and not intended:
            rules = ", ".join(f"`{rule}` ({count})" for rule, count in total.dropped.most_common(3))
            raise SourceWiped(
                f"{self.stage}: all {total.documents_in} documents would be dropped, most by {rules}. Nothing would be"
                f" left to train on. Look at these rules in the settings of [{self.stage}], or give it text that they"
                f" are made for."
            )

    def _check_source(self, source: str, counts: SourceCounts) -> None:
        """Raise SourceWiped for a source of which every document was processed."""
        total = counts.documents_in
        share = counts.dropped.total() / total if total else 0.0
        if total >= MIN_DOCUMENTS and share > self._allowed(source):
            raise SourceWiped(
                f"{self._summary(source, counts, total)} would be dropped; the limit is {self._allowed(source):.0%}."
                f" {_main_rule(counts)}. Look at the source and the rule; if this is intended, set"
                f" [{self.stage}.wipe_out_overrides] {source} = {min(1.0, share + 0.01):.2f}, and the stage continues"
                f" from its finished parts."
            )

    @functools.cached_property
    def _documents_by_source(self) -> dict[str, int]:
        """Documents that the stage reads of each source."""
        return {source: counts.documents_out for source, counts in self.documents.report.sources.items()}

    def _allowed(self, source: str) -> float:
        return self.overrides.get(source, self.limit)

    def _summary(self, source: str, counts: SourceCounts, total: int) -> str:
        dropped = counts.dropped.total()
        return f"{self.stage}: {dropped} of {total} documents ({dropped / total:.1%}) of source `{source}`"


def _main_rule(counts: SourceCounts) -> str:
    rule, count = max(counts.dropped.items(), key=lambda entry: (entry[1], entry[0]))
    return f"Most were dropped by `{rule}` ({count})"
