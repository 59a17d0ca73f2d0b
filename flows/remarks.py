"""What a reader of a run must not overlook: empty sources and rows, and a mixture that is not the recipe's."""

from collections.abc import Mapping
from typing import Any

from tasks.report import SourceCounts, StageReport

WORTH_SAYING = 0.01
"""Difference between the weight of a source and its share of what training read (both 0 to 1) that is told."""
MUCH_PADDING = 0.25
"""Share of the rows' tokens from which on padding is told."""
MOST_RULES = 3
MUCH_UNKNOWN = 0.01
"""Share of a source's tokens that lose what they stand for, from which it is told."""


def remarks(reports: Mapping[str, StageReport], settings: Mapping[str, Any]) -> list[str]:
    """One sentence each, without a stop.

    `reports` by stage in the order of the road; `settings` are the parameters of the run's sample.
    """
    return [
        *_empty_sources(reports),
        *_rejected_files(reports),
        *_shifted_mixture(reports, settings),
        *_unknown_words(reports),
        *_padded_rows(reports),
    ]


def _empty_sources(reports: Mapping[str, StageReport]) -> list[str]:
    """The wipe-out guard looks at sources from 100 documents on; a smaller one that ends empty is told here."""
    stages = [stage for stage, report in reports.items() if report.sources]
    if not stages or stages[0] != "sample":
        return []
    plan = reports["sample"].facts.get("mixture_plan", {})
    told: list[str] = []
    for source in sorted({*plan, *reports["sample"].sources}):
        meant = plan.get(source, {}).get("weight") == 0
        if meant or reports[stages[-1]].sources.get(source, SourceCounts()).documents_out:
            continue
        read = reports["sample"].sources.get(source, SourceCounts()).documents_in
        fates = [fate for stage in stages for fate in _fates(stage, reports[stage].sources.get(source), read)]
        told.append(f"source `{source}` gave nothing to train on: {', '.join(fates) or 'its files hold no document'}")
    return told


def _rejected_files(reports: Mapping[str, StageReport]) -> list[str]:
    facts = reports["sample"].facts if "sample" in reports else {}
    told: list[str] = []
    for source, files in facts.get("rejected_files", {}).items():
        named = "; ".join(f"{file['path']} ({file['records']:,}: {file['reason']})" for file in files[:MOST_RULES])
        told.append(f"source `{source}` has rejects, which `bessemer why FILE` shows: {named}")
    for source, counts in facts.get("files", {}).items():
        told += [f"source `{source}`: {number:,} {what}" for what, number in counts.items() if "folders" in what]
    return told


def _fates(stage: str, counts: SourceCounts | None, read: int) -> list[str]:
    if counts is None:
        return []
    rules = counts.dropped.most_common()
    named = ", ".join(rule if len(rules) == 1 else f"{rule} ({count})" for rule, count in rules[:MOST_RULES])
    more = f" and {len(rules) - MOST_RULES} more rules" if len(rules) > MOST_RULES else ""
    fates = (
        (counts.not_selected, f"not selected in {stage}"),
        (counts.rejected, f"rejected in {stage} as unreadable"),
        (counts.held_out, f"held out in {stage}"),
        (counts.dropped.total(), f"dropped in {stage} by {named}{more}"),
    )
    return [f"{count:,} of {read:,} {fate}" for count, fate in fates if count]


def _shifted_mixture(reports: Mapping[str, StageReport], settings: Mapping[str, Any]) -> list[str]:
    """Shares of the tokens read that are more than a point off the weights of the recipe, and what made them so."""
    mixture = reports["chunk"].facts.get("mixture", {}) if "chunk" in reports else {}
    plan = reports["sample"].facts.get("mixture_plan", {}) if "sample" in reports else {}
    asked = {source: line["weight"] for source, line in mixture.items()}
    if settings.get("temperature") is None:
        asked |= {source: line["weight"] for source, line in plan.items()}
    realised = {source: line["realised_share"] for source, line in mixture.items()}
    shifts = {source: realised.get(source, 0.0) - weight for source, weight in asked.items()}
    far = [source for source, shift in shifts.items() if abs(shift) > WORTH_SAYING]
    if not mixture or not far:
        return []
    told = "; ".join(
        f"{source} {realised.get(source, 0.0):.1%} and not {asked[source]:.1%}"
        f" ({_why(mixture.get(source), shifts[source])})"
        for source in sorted(far, key=lambda source: shifts[source])
    )
    limit = settings.get("limit") or 1.0
    small = f". The limit of {limit:.2%} leaves sources too small for their weights" if limit < 1 else ""
    return [f"training read another mixture than the recipe asks for: {told}{small}"]


def _why(line: Mapping[str, Any] | None, shift: float) -> str:
    if line is None or not line["reads"]:
        return "nothing of it was left"
    if line["planned_share"] < line["weight"] - 1e-9:
        return f"its {line['tokens']:,} tokens are read {line['epochs']:.2f} times, as often as is allowed"
    rounded = abs(line["realised_share"] - line["planned_share"]) > WORTH_SAYING
    return "rounded to whole rows" if rounded else "what others lack went to it" if shift > 0 else "others have more"


def _unknown_words(reports: Mapping[str, StageReport]) -> list[str]:
    vocabulary = reports["vocab"].facts.get("vocabulary", {}) if "vocab" in reports else {}
    if "base" in vocabulary:
        cure = "extend the base by the source's script with vocab.extend, or take another base"
    else:
        cure = "raise vocab.vocab_size or vocab.character_coverage, or take another vocab.model_type"
    return [
        f"{share:.1%} of the tokens of source `{source}` are unknown words, whose text the model never sees: {cure}"
        for source, share in sorted(vocabulary.get("unknown_share", {}).items())
        if share > MUCH_UNKNOWN
    ]


def _padded_rows(reports: Mapping[str, StageReport]) -> list[str]:
    """Rows that are padding for a good part, since texts are shorter than rows or do not fit beside each other."""
    facts = reports["chunk"].facts if "chunk" in reports else {}
    if "rows" not in facts or facts["padding_share"] < MUCH_PADDING:
        return []
    cure = "a smaller train.model.context"
    if facts["rows"]["packing"] == "best_fit":
        cure += " or chunk.packing = concat"
    return [
        f"{facts['padding_share']:.0%} of the rows of {facts['rows']['row_length']:,} tokens are padding: the texts are"
        f" too short for them, or too long to stand two in a row; {cure} leaves less"
    ]
