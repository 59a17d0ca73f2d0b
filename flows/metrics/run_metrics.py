"""The metrics of a run, collected from its artifacts and its record; the run page, the summary and others show them.

Nothing is recomputed: counts come from the stages' reports, scores and steps from their tables. A run that ended early
has fewer metrics, never wrong ones. `metric_readers` names every metric and the function that reads it.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.accounting import DOCUMENT_STAGES, conservation, cost, not_selected, run_warnings
from flows.metrics.formatting import SHORT_ID
from flows.metrics.heldout import describe_repeated_text, heldout_metrics, tokens_per_character
from flows.metrics.lines import (
    BaseModelLine,
    BenchmarkLine,
    BitsLine,
    Duplicates,
    FunnelLine,
    LeakSearch,
    Metrics,
    RuleLine,
    Sampling,
    SkippedDocuments,
    SkippedLine,
    SourceLine,
)
from flows.metrics.stage_lines import open_artifacts, stage_results
from flows.runs.lineage import model_of
from flows.runs.record import RunData, read_recipe, warn_once
from flows.runs.run_documents import documents_at
from model.checksummed_json import read_sealed
from model.errors import IntegrityError
from tasks.artifacts import results
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.tables.rows import HELDOUT, LANGUAGE, GapRow, SampleRow, ScoreRow, rows_of

EMPTY_LINES = re.compile(r"(?:[ \t]*\n){3,}")

LEFT_TO_RIGHT = {
    "bits_per_byte": "model",
    "5gram_bits_per_byte": "5gram",
    "unigram_bits_per_byte": "unigram",
    "xz_bits_per_byte": "xz",
    "new_bits_per_byte": "model_new",
    "5gram_new_bits_per_byte": "5gram_new",
    "repeated_bits_per_byte": "model_repeated",
    "5gram_repeated_bits_per_byte": "5gram_repeated",
}
"""Metrics of held-out text that can be compared: each token predicted from what precedes it, over all text, and over
text that is new or that training read too (`tasks/evaluate/repeated_passages.py`)."""


METRICS_FILE = "findings.json"

EMPTY = {name: {list: [], str: ""}.get(get_origin(kind) or kind, {}) for name, kind in get_type_hints(Metrics).items()}
"""The value of each metric where there is none."""

FROM_TABLES = (
    "model",
    "bits_per_byte",
    "measures",
    "repeated_text",
    "scores",
    "gaps",
    "tokens_per_character",
    "conservation",
)
"""Metrics that need tables or weights to be read, not only manifests."""


def collect_metrics(record: RunData, known: Mapping[str, Any] | None = None) -> Metrics:
    """Return all metrics of a run; absent stages give empty values.

    `known` are metrics of an earlier run with the same artifacts: with them no table is read, only manifests.
    """
    earlier = {name: known[name] for name in FROM_TABLES if name in known} if known else {}
    found = {name: earlier[name] if name in earlier else find() for name, find in metric_readers(record).items()}
    return cast(Metrics, found)


def metrics_of(record: RunData) -> Metrics:
    """Return all metrics of a run, from tables only what was not saved with its page."""
    return collect_metrics(record, read_saved_metrics(record))


def read_saved_metrics(record: RunData) -> Metrics | None:
    """Return the metrics that were written with the page of a run; None where there are none."""
    path = Path(page).with_name(METRICS_FILE) if (page := record.get("page")) else None
    if path is None or not path.is_file():
        return None
    try:
        saved = read_sealed(path, "`bessemer runs report` writes it again; until then tables are read.")
        return cast(Metrics, saved)
    except IntegrityError as error:
        warn_once(str(error))
        return None


def metric_readers(record: RunData) -> dict[str, Callable[[], Any]]:
    """Return a function for each metric by name; read one by one, damage to one leaves the others readable."""
    artifacts = open_artifacts(record)
    reports = {stage: artifact.report for stage, artifact in artifacts.items()}
    return {
        "stages": lambda: stage_results(record, artifacts, reports),
        "files": lambda: found.files if (found := results.SampleResult.among(reports)) else {},
        "sampling": lambda: _only(results.SampleResult.among(reports), Sampling.__annotations__),
        "not_selected": lambda: not_selected(reports, _sample_settings(artifacts)),
        "funnel": lambda: funnel(reports),
        "languages": lambda: found.languages if (found := results.CleanResult.among(reports)) else {},
        "remarks": lambda: run_warnings(reports, _sample_settings(artifacts)),
        "removed": lambda: documents_by_rule(reports, "dropped"),
        "edited": lambda: documents_by_rule(reports, "edited"),
        "mixture": lambda: mixture(results.ChunkResult.among(reports)),
        "rows": lambda: (
            {**found.rows, "padding_share": found.padding_share}
            if (found := results.ChunkResult.among(reports))
            else {}
        ),
        "leaks": lambda: leaks(results.DecontaminateResult.among(reports)),
        "leak_search": lambda: _only(results.DecontaminateResult.among(reports), LeakSearch.__annotations__),
        "training": lambda: found.training if (found := results.TrainResult.among(reports)) else {},
        "left_out": lambda: skipped_steps(artifacts),
        "model": lambda: model_of(record, Path(record["root"])),
        "base_model": lambda: base_model(record, artifacts) or {},
        "gate": lambda: {
            "max_rise": record.get("max_rise"),
            **(_only(results.EvaluateResult.among(reports), ("gate",)).get("gate") or {}),
        },
        "bits_per_byte": lambda: bits_per_byte(artifacts),
        "measures": lambda: heldout_metrics(_heldout_rows(artifacts)),
        "repeated_text": lambda: describe_repeated_text(_heldout_rows(artifacts)),
        "scores": lambda: scores(artifacts),
        "gaps": lambda: gaps(artifacts),
        "tokens_per_character": lambda: tokens_per_character(artifacts),
        "duplicates": lambda: _only(results.DedupResult.among(reports), Duplicates.__annotations__),
        "vocabulary": lambda: found.vocabulary if (found := results.VocabResult.among(reports)) else {},
        "made": lambda: made_of_model(reports),
        "conservation": lambda: conservation(artifacts, reports) or {},
        "cost": lambda: cost(record, artifacts) or {},
    }


def _only(found: results.StageResult | None, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in found.facts().items() if name in names} if found else {}


def made_of_model(reports: dict[str, StageReport]) -> list[str]:
    """Return what a run of a trained model made of it: the scores of each task, or what loads the export."""
    if finetuned := results.FinetuneResult.among(reports):
        from model.finetune.output import format_result

        return format_result(finetuned.finetuned)
    if exported := results.ExportResult.among(reports):
        found = exported.exported
        return [f"transformers loads it as {found['class']}, its tokenizer as {found['tokenizer_class']}"]
    return []


def base_model(record: RunData, artifacts: Mapping[str, Artifact]) -> BaseModelLine | None:
    """Return what training recorded of its base model, with the `folder` in the recipe and what was `trainable`; None
    where it started with a new network."""
    if "train" not in artifacts:
        return None
    train = artifacts["train"]
    base = results.TrainResult.of(train.report).base_model
    if base is None:
        return None
    config = read_recipe(Path(record["root"]) / "runs" / record["run_id"]).get("train", {})
    trainable = manifest_of(train)["identity_parts"]["params"].get("trainable", "all")
    return {**base, "folder": config.get("base_model"), "trainable": trainable}


def funnel(reports: dict[str, StageReport]) -> list[FunnelLine]:
    """Return the documents of each source through the stages, the largest source first."""
    stages = [stage for stage in DOCUMENT_STAGES if stage in reports]
    if not stages:
        return []
    first = stages[0]
    found: list[FunnelLine] = []
    for source, counts in reports[first].sources.items():
        passed = {stage: reports[stage].sources.get(source, SourceCounts()).documents_out for stage in stages}
        held_out = sum(report.sources[source].held_out for report in reports.values() if source in report.sources)
        line = {"source": source, "read": counts.documents_in, **passed, "held_out": held_out}
        found.append(cast(FunnelLine, line))
    return sorted(found, key=lambda line: (-line["read"], line["source"]))


def documents_by_rule(reports: dict[str, StageReport], what: Literal["dropped", "edited"]) -> list[RuleLine]:
    """Return every rule that dropped or edited documents, by stage; most first within a stage."""
    found: list[RuleLine] = []
    for stage in DOCUMENT_STAGES:
        rules: dict[str, Counter[str]] = {}
        for source, counts in reports[stage].sources.items() if stage in reports else ():
            for rule, count in getattr(counts, what).items():
                rules.setdefault(rule, Counter())[source] += count
        for rule, by_source in sorted(rules.items(), key=lambda pair: (-pair[1].total(), pair[0])):
            sorted_sources = dict(sorted(by_source.items()))
            found.append({"stage": stage, "rule": rule, "documents": by_source.total(), "by_source": sorted_sources})
    return found


def mixture(found: results.ChunkResult | None) -> list[SourceLine]:
    """Return by source documents, tokens, rows, weight, planned and realised share, epochs (as GPT-3's table 2.2)."""
    lines: list[SourceLine] = [{"source": source, **line} for source, line in found.mixture.items()] if found else []
    return sorted(lines, key=lambda line: -line["weight"])


def leaks(found: results.DecontaminateResult | None) -> list[BenchmarkLine]:
    """Return by benchmark: items, and how many are leaked, clean, unmatchable; `remains`: leaked and still in text."""
    return [{"benchmark": name, **line} for name, line in found.benchmarks.items()] if found else []


def bits_per_byte(artifacts: dict[str, Artifact]) -> list[BitsLine]:
    """Return by held-out source, `all` last: bits per UTF-8 byte of the model, a 5-gram, the token unigram and xz, and
    of the first two on new and on repeated text.

    A model that does not predict each next token has none; the metric `measures` has its figures.
    """
    by_source: dict[str, dict[str, Any]] = {}
    for row in _heldout_rows(artifacts):
        predictor = LEFT_TO_RIGHT.get(row["metric"])
        if predictor is None:
            continue
        line = by_source.setdefault(row["task"].removeprefix(HELDOUT), {"source": row["task"].removeprefix(HELDOUT)})
        line[predictor] = row["value"]
        if predictor == "model" or "n" not in line:
            line.update(n=row["n"], stderr=row["stderr"], note=row["note"])
    lines = cast(list[BitsLine], [*by_source.values()])
    return sorted(lines, key=lambda line: (line["source"] == "all", line["source"]))


def scores(artifacts: dict[str, Artifact]) -> list[ScoreRow]:
    """Return all rows of SCORES about benchmarks, in the order of the artifact."""
    return [row for row in _score_rows(artifacts) if not row["task"].startswith((HELDOUT, LANGUAGE))]


def gaps(artifacts: dict[str, Artifact]) -> list[GapRow]:
    """Return the contamination gap of each benchmark."""
    evaluate = artifacts.get("evaluate")
    return rows_of(evaluate.table("gaps"), GapRow) if evaluate is not None and evaluate.rows("gaps") else []


def samples(artifacts: dict[str, Artifact]) -> list[SampleRow]:
    """Return the rows of the evaluation's table of generated texts, with the empty lines that weak models write counted
    instead of shown."""
    if "evaluate" not in artifacts or not artifacts["evaluate"].files("samples"):
        return []
    rows = rows_of(artifacts["evaluate"].table("samples"), SampleRow)
    return [
        {**row, "text": EMPTY_LINES.sub(lambda run: f"\n[{run[0].count(chr(10))} line ends]\n", row["text"])}
        for row in rows
    ]


def _heldout_rows(artifacts: dict[str, Artifact]) -> list[ScoreRow]:
    return [row for row in _score_rows(artifacts) if row["task"].startswith(HELDOUT)]


def _score_rows(artifacts: dict[str, Artifact]) -> list[ScoreRow]:
    return score_rows(artifacts["evaluate"]) if "evaluate" in artifacts else []


def score_rows(evaluate: Artifact) -> list[ScoreRow]:
    """Return all rows of SCORES."""
    return rows_of(evaluate.table("scores"), ScoreRow)


def _sample_settings(artifacts: dict[str, Artifact]) -> dict[str, Any]:
    return manifest_of(artifacts["sample"])["identity_parts"]["params"] if "sample" in artifacts else {}


SKIPPED_STEP_KINDS = ("spike", "skipped_step")
"""Kinds of EVENTS by which the guard skipped a single step."""

MAX_STEPS, MAX_DOCUMENTS = 20, 8


def skipped_steps(artifacts: dict[str, Artifact]) -> list[SkippedLine]:
    """Return the rollbacks of a training, then the first single steps that were skipped; each with its positions of
    ORDER, their number of documents, and some of these by source and file."""
    if "train" not in artifacts:
        return []
    train = artifacts["train"]
    found = results.TrainResult.of(train.report)
    lines: list[SkippedLine] = [
        {
            "kind": "rollback" if decision["by"] == "guard" else "by hand",
            "step": decision["step"],
            "to_step": decision["to_step"],
            "cause": decision["cause"],
            "settings": decision["settings"],
            **_documents(artifacts, *(decision["skipped"] or (0, 0))),
        }
        for decision in found.decisions or ()
    ]
    # A run whose training skipped nothing must read no table.
    if not found.training["skipped_steps"]:
        return lines
    events = train.table("events")
    alone = events.filter(
        pc.is_in(events.column("kind"), value_set=pa.array(SKIPPED_STEP_KINDS, pa.string()))
    ).to_pylist()
    for event in alone[:MAX_STEPS]:
        begin, end = min(event["positions"]), max(event["positions"]) + 1
        lines.append({"kind": event["kind"], "step": event["step"], **_documents(artifacts, begin, end)})
    if len(alone) > MAX_STEPS:
        lines[-1]["further_steps"] = len(alone) - MAX_STEPS
    return lines


def _documents(artifacts: dict[str, Artifact], begin: int, end: int) -> SkippedDocuments:
    found = documents_at(artifacts, begin, end) if end > begin else []
    return {"positions": [begin, end], "documents": len(found), "first_documents": found[:MAX_DOCUMENTS]}


STARTS = {
    "mean": "the mean of the rows of their old tokens",
    "mean_noise": "the mean of the rows of their old tokens plus some noise",
    "random": "noise, like those of a new network",
}
"""How new rows of the embedding were initialised, in words."""


def describe_base_model(found: BaseModelLine) -> str:
    """Return how training used its base model, as a sentence without full stop; empty where there was none."""
    if not found:
        return ""
    named = f"{found['folder']} (" if found.get("folder") else "a trained model ("
    text = f"Training started from {named}weights {found['weights'][:SHORT_ID]})"
    rows = found.get("new_rows")
    if rows is None:
        return f"{text}, under its own vocabulary; all weights were trained"
    start, without_meaning = found.get("start", ""), found.get("without_meaning", 0)
    text += f" with {rows:,} new rows, initialised as {STARTS.get(start, start)}"
    if without_meaning and start != "random":
        text += f"; {without_meaning:,} of them, to which the base's ids give no meaning, near the mean of all"
    alone = found["trainable"] == "new_rows"
    return f"{text}; {'only the new rows were' if alone else 'all weights were'} trained"
