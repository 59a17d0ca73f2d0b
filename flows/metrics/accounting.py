"""The accounts of a run: conservation of documents and rows, cost in time and energy, and warnings.

Conservation: every document that was read has one outcome, and every row given to training was read, skipped or not
reached. Cost: only time is measured; energy is estimated as by Green Algorithms (Lannelongue, Grealey and Inouye 2021,
doi:10.1002/advs.202100707), from the power of cores and memory and the overhead of a data centre. Warnings: empty
sources, rejected files, padding, unknown tokens, and a mixture that differs from the recipe's.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

from flows.metrics.lines import Conservation, Cost, DocumentCounts, PositionCounts, RowCounts, StageCost
from flows.recipe.stages import STAGES
from flows.runs.record import Machine, RunData
from model.checkpoint.metrics import final_steps
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.results import ChunkResult, MixedSource, SampleResult, VocabResult
from tasks.common.text import counted
from tasks.sample.rejects import UNREADABLE

DOCUMENT_STAGES = ("sample", "clean", "dedup", "decontaminate", "chunk")


def conservation(artifacts: dict[str, Artifact], reports: dict[str, StageReport]) -> Conservation | None:
    """Count documents and positions by outcome, and say whether they add up; None without documents."""
    stages = [stage for stage in DOCUMENT_STAGES if stage in reports]
    if not stages or stages != list(DOCUMENT_STAGES[: len(stages)]):
        return None
    totals = {stage: reports[stage].total() for stage in stages}
    last = stages[-1]
    documents: DocumentCounts = {
        "read": totals[stages[0]].documents_in,
        "rejected": sum(total.rejected for total in totals.values()),
        "not_selected": sum(total.not_selected for total in totals.values()),
        "dropped": {stage: total.dropped.total() for stage, total in totals.items() if total.dropped.total()},
        "held_out": sum(total.held_out for total in totals.values()),
    }
    if empty := sum(empty_files(reports).values()):
        documents["empty"] = empty
    documents["packed" if last == "chunk" else "kept"] = totals[last].documents_out
    lost = (
        documents["rejected"] + documents["not_selected"] + documents["held_out"] + sum(documents["dropped"].values())
    )
    balanced = documents["read"] == lost + totals[last].documents_out and all(
        totals[before].documents_out == totals[after].documents_in for before, after in pairwise(stages)
    )
    found: Conservation = {"documents": documents, "balanced": balanced}
    if "train" in artifacts and "chunk" in artifacts:
        found["positions"] = positions = _positions(artifacts)
        spent = positions["trained"] + positions["skipped"] + positions["not_reached"]
        found["balanced"] = found["balanced"] and spent == positions["given"]
        found["rows"] = _rows(artifacts)
    return found


def empty_files(reports: Mapping[str, StageReport]) -> dict[str, int]:
    """Return the rejected files of each source that lost no record: those of 0 bytes, pipes among them."""
    sample = reports.get("sample", StageReport())
    if (lost := sample.facts.get(UNREADABLE)) is None:
        return {}
    return {name: counts.rejected - lost.get(name, 0) for name, counts in sample.sources.items()}


def _positions(artifacts: dict[str, Artifact]) -> PositionCounts:
    steps = final_steps(artifacts["train"].table("steps"))
    applied = steps.filter(steps.column("applied"))
    given = artifacts["chunk"].rows("order")
    reached = pc.max(steps.column("pos_end")).as_py() or 0
    trained = pc.sum(pc.subtract(applied.column("pos_end"), applied.column("pos_start"))).as_py() or 0
    return {"given": given, "trained": trained, "skipped": reached - trained, "not_reached": given - reached}


def _rows(artifacts: dict[str, Artifact]) -> RowCounts:
    rows = artifacts["chunk"].rows("sequences")
    read = len(np.unique(artifacts["chunk"].table("order").column("row").to_numpy()))
    return {"packed": rows, "in_order": read, "never_read": rows - read}


def not_selected(reports: Mapping[str, StageReport], settings: Mapping[str, Any]) -> dict[str, int]:
    """Count the documents that sample left out by reason: a source is read at the smaller of the rate that its weight
    needs and the limit, and below rate 1 documents that are left out by their id are not counted apart."""
    found: Counter[str] = Counter()
    if (sampled := SampleResult.among(reports)) is None:
        return found
    limit = settings.get("limit") or 1.0
    for source, counts in reports["sample"].sources.items():
        rate = sampled.mixture_plan[source]["rate"] if counts.not_selected else 0.0
        words = "not needed for the mixture" if rate < limit else f"left out by --limit {100 * limit:g}%"
        found[words if rate < 1 else "left out by exclude_documents"] += counts.not_selected
    return +found


def describe_conservation(found: Conservation) -> str:
    """Return the counts as one line: `2,688 read = 12 rejected + 0 not selected + ...`; empty without counts."""
    if not found:
        return ""
    documents = found["documents"]
    dropped = " + ".join(f"{count:,} dropped in {stage}" for stage, count in documents["dropped"].items())
    last = "packed" if "packed" in documents else "kept"
    outcomes = [
        f"{documents['rejected']:,} rejected",
        f"{documents['not_selected']:,} not selected",
        *([dropped] if dropped else []),
        f"{documents['held_out']:,} held out",
        f"{documents.get(last, 0):,} {last}",
    ]
    line = f"{documents['read']:,} documents read = {' + '.join(outcomes)}"
    if "positions" in found:
        positions = found["positions"]
        line += f"; {positions['given']:,} rows given = {positions['trained']:,} trained"
        for word in ("skipped", "not_reached"):
            if positions[word]:
                line += f" + {positions[word]:,} {word.replace('_', ' ')}"
    return line if found["balanced"] else f"{line} (DOES NOT BALANCE)"


WATTS_PER_CORE = 12.0
"""Green Algorithms' figure for an unknown processor."""

WATTS_PER_GIGABYTE = 0.3725

WATTS_OF_GPU = {"H200": 700.0, "H100": 700.0, "A100": 400.0, "V100": 300.0, "L40": 300.0, "T4": 70.0}
"""Power limits of boards as their maker states them, by a word of the board's name."""

WATTS_OF_OTHER_GPU = 200.0
"""Green Algorithms' figure for an unknown GPU."""

POWER_USAGE_EFFECTIVENESS = 1.67
"""Green Algorithms' worldwide mean: energy that a data centre takes over the energy that its machines take."""


def cost(record: RunData, artifacts: dict[str, Artifact]) -> Cost | None:
    """Return seconds, estimated watt-hours and money of all stages; None where no stage has an artifact.

    Stages built in an earlier run count as they were built: the model needs them as well.
    """
    machine = record.get("machine")
    stages: list[StageCost] = []
    for stage in STAGES:
        if stage not in artifacts:
            continue
        seconds = manifest_of(artifacts[stage])["timings"]["seconds"]
        watts = _watts(artifacts[stage], machine) if machine else None
        hours = None if watts is None else POWER_USAGE_EFFECTIVENESS * watts * seconds / 3600
        stages.append({"stage": stage, "seconds": seconds, "watt_hours": hours})
    if not stages:
        return None
    price, seconds = record.get("hour_price"), sum(line["seconds"] for line in stages)
    return {
        "stages": stages,
        "seconds": seconds,
        "money": None if price is None else price * seconds / 3600,
        "watt_hours": sum(line["watt_hours"] or 0.0 for line in stages) if machine else None,
        "assumption": _assumption(artifacts, machine) if machine else "",
    }


def _watts(artifact: Artifact, machine: Machine) -> float:
    """Return the power in watts of all cores, all memory, and the GPUs that the stage trained on."""
    watts = machine["cores"] * WATTS_PER_CORE + machine["memory_bytes"] / 1e9 * WATTS_PER_GIGABYTE
    count, name = _gpus(artifact)
    return watts + count * _gpu_watts(name)


def _gpu_watts(name: str) -> float:
    return next((watts for word, watts in WATTS_OF_GPU.items() if word in name), WATTS_OF_OTHER_GPU)


def _gpus(artifact: Artifact) -> tuple[int, str]:
    """Return how many GPUs a training ran on, and their name."""
    parts = manifest_of(artifact)["identity_parts"]
    params = parts.get("params", {})
    if artifact.stage != "train" or params.get("device") != "cuda":
        return 0, ""
    libraries = parts.get("libs", {})
    return int(params.get("ranks", 1)), str(libraries.get("gpu", ""))


def _assumption(artifacts: dict[str, Artifact], machine: Machine) -> str:
    text = f"{machine['cores']} cores of {WATTS_PER_CORE:g} W, {machine['memory_bytes'] / 1e9:,.0f} GB of memory"
    text += f" of {WATTS_PER_GIGABYTE:g} W a GB"
    count, name = _gpus(artifacts["train"]) if "train" in artifacts else (0, "")
    if count:
        text += f", {count} GPU{'s' if count > 1 else ''} of {_gpu_watts(name):g} W while training"
    return f"{text}, all of them busy while a stage ran, times {POWER_USAGE_EFFECTIVENESS:g} for the building"


def format_energy(watt_hours: float) -> str:
    """Return `8.1 Wh`, `1.2 kWh`, `3.4 MWh`."""
    # What would be rounded to a thousand of a unit is one of the next.
    for least, unit, name in ((999.95e3, 1e6, "MWh"), (999.5, 1e3, "kWh")):
        if watt_hours >= least:
            return f"{watt_hours / unit:.1f} {name}"
    return f"{watt_hours:.2g} Wh" if watt_hours < 10 else f"{watt_hours:.0f} Wh"


MIN_SHIFT = 0.01
"""Least difference between a source's weight and its share of what training read (both 0 to 1) that is reported."""

MIN_PADDING = 0.25
"""Least share of the rows' tokens at which padding is reported."""

MAX_RULES = 3

MIN_UNKNOWN = 0.01
"""Least share of unknown tokens of a source that is reported."""


def run_warnings(reports: Mapping[str, StageReport], settings: Mapping[str, Any]) -> list[str]:
    """Return warnings about a run, each a sentence without full stop.

    `reports` by stage in the order of the pipeline; `settings` are the parameters of the run's sample.
    """
    return [
        *_empty_sources(reports),
        *_rejected_files(reports),
        *_shifted_mixture(reports, settings),
        *_unknown_words(reports),
        *_padded_rows(reports),
    ]


def _empty_sources(reports: Mapping[str, StageReport]) -> list[str]:
    """Return a warning for each source that ends empty; the drop-rate limit covers sources of 100 documents or more."""
    stages = [stage for stage, report in reports.items() if report.sources]
    if not stages or stages[0] != "sample":
        return []
    plan = SampleResult.of(reports["sample"]).mixture_plan
    warnings: list[str] = []
    for source, planned in sorted(plan.items()):
        if planned["weight"] == 0 or reports[stages[-1]].sources.get(source, SourceCounts()).documents_out:
            continue
        read = reports["sample"].sources.get(source, SourceCounts()).documents_in
        empty = empty_files(reports).get(source, 0)
        losses = [
            loss
            for stage in stages
            for loss in _losses(stage, reports[stage].sources.get(source), read, empty if stage == "sample" else 0)
        ]
        warnings.append(
            f"source `{source}` gave nothing to train on: {', '.join(losses) or 'its files hold no document'}"
        )
    return warnings


def _rejected_files(reports: Mapping[str, StageReport]) -> list[str]:
    found = SampleResult.among(reports)
    if found is None:
        return []
    warnings: list[str] = []
    for source, files in found.rejected_files.items():
        # The reason is that of a file's first reject; others may have other ones.
        named = "; ".join(
            f"{file['path']} ({file['records']:,}{', the first' if file['records'] > 1 else ''}: {file['reason']})"
            for file in files[:MAX_RULES]
        )
        read, lost_records = reports["sample"].sources[source].documents_in, found.unreadable_records.get(source, 0)
        lost = f"{lost_records:,} of {counted(read, 'record')} could not be read" if lost_records else "has rejects"
        warnings.append(f"source `{source}`: {lost} (`bessemer data history FILE` shows why): {named}")
    for source, outcomes in found.files.items():
        warnings += [f"source `{source}`: {number:,} {what}" for what, number in outcomes.items() if "folders" in what]
    return warnings


def _losses(stage: str, counts: SourceCounts | None, read: int, empty: int) -> list[str]:
    if counts is None:
        return []
    rules = counts.dropped.most_common()
    named = ", ".join(rule if len(rules) == 1 else f"{rule} ({count})" for rule, count in rules[:MAX_RULES])
    more = f" and {len(rules) - MAX_RULES} more rules" if len(rules) > MAX_RULES else ""
    losses = (
        (counts.not_selected, f"not selected in {stage}"),
        (counts.rejected - empty, f"rejected in {stage} as unreadable"),
        (empty, f"rejected in {stage} as empty"),
        (counts.held_out, f"held out in {stage}"),
        (counts.dropped.total(), f"dropped in {stage} by {named}{more}"),
    )
    return [f"{count:,} of {read:,} {what}" for count, what in losses if count]


def _shifted_mixture(reports: Mapping[str, StageReport], settings: Mapping[str, Any]) -> list[str]:
    """Return which shares of the tokens read are more than a point off the recipe's weights, and why."""
    packed, sampled = ChunkResult.among(reports), SampleResult.among(reports)
    if packed is None:
        return []
    mixture = packed.mixture
    weights = {source: line["weight"] for source, line in mixture.items()}
    # With phases, chunk has the mean of all parts, and sample knows those of the main part alone.
    if sampled and settings.get("temperature") is None and packed.phases is None:
        weights |= {source: line["weight"] for source, line in sampled.mixture_plan.items()}
    realised = {source: line["realised_share"] for source, line in mixture.items()}
    shifts = {source: realised.get(source, 0.0) - weight for source, weight in weights.items()}
    far = [source for source, shift in shifts.items() if abs(shift) > MIN_SHIFT]
    if not far:
        return []
    shares = "; ".join(
        f"{source} {realised.get(source, 0.0):.1%} and not {weights[source]:.1%}"
        f" ({_why(mixture.get(source), shifts[source])})"
        for source in sorted(far, key=lambda source: shifts[source])
    )
    limit = settings.get("limit") or 1.0
    small = (
        f". The limit of {limit:.2%} leaves sources too small for their weights"
        if limit < 1
        else _left_out(reports, mixture)
    )
    return [f"training read another mixture than the recipe asks for: {shares}{small}"]


def _left_out(reports: Mapping[str, StageReport], mixture: Mapping[str, MixedSource]) -> str:
    """Return of which sources sampling left text out that training then lacked, as a sentence behind a full stop, and
    what to set; empty where there are none."""
    sampled = SampleResult.among(reports)
    left: list[str] = []
    for source, planned in (sampled.mixture_plan if sampled else {}).items():
        counts, line = reports["sample"].sources.get(source, SourceCounts()), mixture.get(source)
        lacks = line is not None and line["reads"] and line["planned_share"] < line["weight"] - 1e-9
        if lacks and counts.not_selected and planned["rate"] < 1:
            left.append(f"{counts.not_selected:,} of {counted(counts.documents_in, 'record')} of {source}")
    if not left:
        return ""
    return (
        f". Sampling left out {', '.join(left)}, since it expected more tokens of its bytes than were left after"
        " cleaning: set sample.tokens_per_byte and slack to what `bessemer estimate` prints"
    )


def _why(line: MixedSource | None, shift: float) -> str:
    if line is None or not line["reads"]:
        return "none of its text was left"
    if line["planned_share"] < line["weight"] - 1e-9:
        return f"its {line['tokens']:,} tokens are read {line['epochs']:.2f} times, as often as is allowed"
    if abs(line["realised_share"] - line["planned_share"]) > MIN_SHIFT:
        return "rounded to whole rows"
    return "it replaces what other sources lack" if shift > 0 else "other sources have more"


def _unknown_words(reports: Mapping[str, StageReport]) -> list[str]:
    found = VocabResult.among(reports)
    if found is None:
        return []
    if "base" in found.vocabulary:
        hint = "extend the base by the source's script with vocab.extend, or take another base"
    else:
        hint = "raise vocab.vocab_size or vocab.character_coverage, or take another vocab.model_type"
    return [
        f"{share:.1%} of the tokens of source `{source}` are unknown words, whose text the model never sees: {hint}"
        for source, share in sorted(found.vocabulary.get("unknown_share", {}).items())
        if share > MIN_UNKNOWN
    ]


def _padded_rows(reports: Mapping[str, StageReport]) -> list[str]:
    """Return a warning where much of the rows is padding: texts are too short for them or do not fit together."""
    found = ChunkResult.among(reports)
    if found is None or found.padding_share < MIN_PADDING:
        return []
    hint = "a smaller train.model.context"
    if found.rows["packing"] == "best_fit":
        hint += " or chunk.packing = concat"
    return [
        f"{found.padding_share:.0%} of the rows of {found.rows['row_length']:,} tokens are padding: the texts are too"
        f" short for them, or too long for two in a row; {hint} leaves less"
    ]
