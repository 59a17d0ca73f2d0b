"""The wipe-out guard: no rule may quietly remove most of a source."""

from collections.abc import Mapping

from model.errors import GuardError
from tasks.report import StageReport

GUARDED_FROM_DOCUMENTS = 100


class SourceWiped(GuardError):
    """A source would be dropped as good as whole."""


def check_wipe_out(stage: str, report: StageReport, limit: float, overrides: Mapping[str, float]) -> None:
    """Raise SourceWiped where a stage dropped more than `limit` (a share of documents) of a source, or every document.

    Sources under 100 documents are not guarded each by itself: of a handful a rule may rightly drop all. One that ends
    empty is a remark of the run (`flows/remarks.py`). `overrides` gives other limits by source name; with 1.0
    for all of them nothing is guarded.
    """
    for source, counts in sorted(report.sources.items()):
        if counts.documents_in < GUARDED_FROM_DOCUMENTS:
            continue
        allowed = overrides.get(source, limit)
        dropped = sum(counts.dropped.values())
        share = dropped / counts.documents_in
        if share > allowed:
            rule, count = max(counts.dropped.items(), key=lambda entry: (entry[1], entry[0]))
            raise SourceWiped(
                f"{stage}: {dropped} of {counts.documents_in} documents ({share:.1%}) of source `{source}` would be"
                f" dropped; the limit is {allowed:.0%}. Most were dropped by `{rule}` ({count}). Look at the source"
                f" and the rule; if this is meant, set [{stage}.wipe_out_overrides]"
                f" {source} = {min(1.0, share + 0.01):.2f}."
            )
    total = report.total()
    meant = all(overrides.get(source, limit) >= 1.0 for source in report.sources)
    if total.documents_in and not total.documents_out and not meant:
        rules = ", ".join(f"`{rule}` ({count})" for rule, count in total.dropped.most_common(3))
        raise SourceWiped(
            f"{stage}: all {total.documents_in} documents would be dropped, most by {rules}. Nothing would be left to"
            f" train on. Look at these rules in the settings of [{stage}], or give it text that they are made for."
        )
