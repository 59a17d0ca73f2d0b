"""The wipe-out guard: no rule may quietly remove most of a source."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from model.errors import GuardError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.limits import Limits
from tasks.artifacts.report import SourceCounts, StageReport

GUARDED_FROM_DOCUMENTS = 100


class SourceWiped(GuardError):
    """A source would be dropped as good as whole."""


@dataclass(frozen=True)
class WipeOutLimits(Limits):
    """A stage may drop at most `limit` (a share of documents) of a source, and not every document.

    Sources under 100 documents are not guarded each by itself: of a handful a rule may rightly drop all. One that ends
    empty is a remark of the run (`flows/metrics/accounting.py`). `overrides` gives other limits by source name; with
    1.0 for all of them nothing is guarded. The stage reads all of `documents`."""

    stage: str
    limit: float
    overrides: Mapping[str, float]
    documents: Artifact

    def check_so_far(self, report: StageReport) -> None:
        """Raise SourceWiped where more of a source is dropped than the limit allows of all that is coming."""
        for source, counts in sorted(report.sources.items()):
            total = self._coming.get(source, 0)
            if counts.documents_in >= total:
                self._check_source(source, counts)
            elif total >= GUARDED_FROM_DOCUMENTS and counts.dropped.total() / total > self._allowed(source):
                raise SourceWiped(
                    f"{self._dropped_of(source, counts, total)} are dropped after {counts.documents_in} of them, and"
                    f" the others were not looked at: the limit is {self._allowed(source):.0%}. {_rule(counts)}. Look"
                    f" at the source and the rule; if this is meant, set [{self.stage}.wipe_out_overrides] {source} ="
                    f" 1.0, and the stage goes on from the parts that are finished."
                )

    def check(self, report: StageReport) -> None:
        """Raise SourceWiped where the stage dropped more of a source than the limit allows, or every document."""
        for source, counts in sorted(report.sources.items()):
            self._check_source(source, counts)
        total = report.total()
        meant = all(self._allowed(source) >= 1.0 for source in report.sources)
        if total.documents_in and not total.documents_out and not meant:
            rules = ", ".join(f"`{rule}` ({count})" for rule, count in total.dropped.most_common(3))
            raise SourceWiped(
                f"{self.stage}: all {total.documents_in} documents would be dropped, most by {rules}. Nothing would be"
                f" left to train on. Look at these rules in the settings of [{self.stage}], or give it text that they"
                f" are made for."
            )

    def _check_source(self, source: str, counts: SourceCounts) -> None:
        """Raise SourceWiped for a source that was read whole."""
        total = counts.documents_in
        share = counts.dropped.total() / total if total else 0.0
        if total >= GUARDED_FROM_DOCUMENTS and share > self._allowed(source):
            raise SourceWiped(
                f"{self._dropped_of(source, counts, total)} would be dropped; the limit is {self._allowed(source):.0%}."
                f" {_rule(counts)}. Look at the source and the rule; if this is meant, set"
                f" [{self.stage}.wipe_out_overrides] {source} = {min(1.0, share + 0.01):.2f}, and the stage goes on"
                f" from the parts that are finished."
            )

    @functools.cached_property
    def _coming(self) -> dict[str, int]:
        """Documents by source that the stage will have read in the end."""
        return {source: counts.documents_out for source, counts in self.documents.report.sources.items()}

    def _allowed(self, source: str) -> float:
        return self.overrides.get(source, self.limit)

    def _dropped_of(self, source: str, counts: SourceCounts, total: int) -> str:
        dropped = counts.dropped.total()
        return f"{self.stage}: {dropped} of {total} documents ({dropped / total:.1%}) of source `{source}`"


def _rule(counts: SourceCounts) -> str:
    rule, count = max(counts.dropped.items(), key=lambda entry: (entry[1], entry[0]))
    return f"Most were dropped by `{rule}` ({count})"
