"""Compare two runs: recipe settings, stage identities, documents, training, held-out text and benchmark scores.

Only records and artifacts are read. `flows.reports.comparison_page` renders the result.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

from flows.metrics.formatting import shorten
from flows.metrics.heldout import fair_documents, held_out, is_same_text, mean_of_sources
from flows.metrics.lines import FunnelLine, Metrics
from flows.metrics.run_metrics import metrics_of
from flows.metrics.stage_lines import open_artifacts
from flows.metrics.statistics import interval_of_score
from flows.recipe.schema import differing_settings
from flows.recipe.stages import STAGES
from flows.reports.charts.scores import main_rows
from flows.runs.record import RunData, read_recipe, state_of
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.identity import OF_CODE, differences
from tasks.artifacts.tables.rows import ScoreRow
from tasks.evaluate.comparison import Difference, paired_differences

SAME, DIFFERENT, IN_ONE_RUN = "the same bytes", "different bytes", "in one run only"

PAIRED, UNPAIRED = "item by item", "from standard errors"
"""How the difference of two scores was tested."""

HELDOUT_DIFFERS = (
    "The runs held out different documents, or trained on different near-copies of them. Compare bits per byte only on"
    " the documents that both runs held out and of which neither run trained on a copy."
)

MAX_CAUSES = 12

MAX_CAUSE_CHARS = 160


Line = TypeVar("Line")


class ComparedRun(TypedDict):
    """A run that is compared."""

    run_id: str
    recipe: str
    state: str


class Pair(TypedDict):
    """A number of both runs, None where a run has none."""

    name: str
    values: list[float | None]


class ComparedSetting(TypedDict):
    """A setting that differs, by its dotted path; None where one recipe lacks it."""

    path: str
    values: list[Any]


class ComparedStage(TypedDict):
    """The artifacts of a stage in both runs, and what differs in their identities."""

    stage: str
    verdict: str
    causes: list[str]
    contents: list[str | None]
    seconds: NotRequired[list[float]]


class ComparedScore(TypedDict):
    """A benchmark's scores in both runs, and how far the second is above the first, with the 95% interval."""

    task: str
    metric: str
    shots: int
    values: list[float | None]
    n: int
    mean: float
    low: float | None
    high: float | None
    verdict: str
    """On the second run."""
    how: str


class CommonDocuments(Pair):
    """A held-out metric over the documents that both held out and of which neither trained on a copy."""

    documents: int


class Comparison(TypedDict):
    """All differences of two runs, JSON values; each difference is second minus first."""

    runs: list[ComparedRun]
    recipe: list[ComparedSetting]
    stages: list[ComparedStage]
    documents: list[Pair]
    mixture: list[Pair]
    epochs: list[Pair]
    removed: list[Pair]
    leaks: list[Pair]
    training: list[Pair]
    bits_per_byte: list[Pair]
    heldout: list[CommonDocuments] | None
    """None where both runs held out the same text."""
    scores: list[ComparedScore]


def compare(first: RunData, second: RunData) -> Comparison:
    """Return all differences of two runs, given by their records."""
    records = (first, second)
    artifacts = [open_artifacts(record) for record in records]
    findings = [metrics_of(record) for record in records]
    mixtures, bits = [found["mixture"] for found in findings], [found["bits_per_byte"] for found in findings]
    removed, leaks = [found["removed"] for found in findings], [found["leaks"] for found in findings]
    return {
        "runs": [
            {"run_id": record["run_id"], "recipe": record["recipe_name"], "state": state_of(record)}
            for record in records
        ],
        "recipe": [
            {"path": path, "values": [*values]} for path, *values in differing_settings(_recipe(first), _recipe(second))
        ],
        "stages": [_stage(stage, *artifacts) for stage in STAGES if any(stage in found for found in artifacts)],
        "documents": _pairs([found["funnel"] for found in findings], lambda line: line["source"], _kept),
        "mixture": _pairs(mixtures, lambda line: line["source"], lambda line: line["realised_share"]),
        "epochs": _pairs(mixtures, lambda line: line["source"], lambda line: line["epochs"]),
        "removed": _pairs(removed, lambda line: f"{line['stage']}: {line['rule']}", lambda line: line["documents"]),
        "leaks": _pairs(leaks, lambda line: line["benchmark"], lambda line: line["leaked"]),
        "training": _training(findings),
        "bits_per_byte": _pairs(bits, lambda line: line["source"], lambda line: line.get("model")),
        "heldout": _on_common_documents(*artifacts),
        "scores": score_differences(artifacts, [found["scores"] for found in findings]),
    }


def _recipe(record: RunData) -> dict[str, Any]:
    return read_recipe(Path(record["root"]) / "runs" / record["run_id"])


def _stage(stage: str, first: dict[str, Artifact], second: dict[str, Artifact]) -> ComparedStage:
    """Compare the artifacts of one stage, and list what differs in their identities.

    Settings and inputs are listed one by one, definitions of code as a count.
    """
    if stage not in first or stage not in second:
        return {"stage": stage, "verdict": IN_ONE_RUN, "causes": [], "contents": [None, None]}
    pair = (first[stage], second[stage])
    all_causes = list(differences(*(manifest_of(artifact)["identity_parts"] for artifact in pair)))
    code = [cause for cause in all_causes if cause.startswith(OF_CODE)]
    causes = [cause for cause in all_causes if not cause.startswith(OF_CODE)]
    if code:
        names = ", ".join(cause.removeprefix(OF_CODE).split()[0] for cause in code[:3])
        causes.append(
            f"{len(code)} code definition{'s' if len(code) > 1 else ''}: {names}{' …' if len(code) > 3 else ''}"
        )
    rest = [f"{len(causes) - MAX_CAUSES} more"] if len(causes) > MAX_CAUSES else []
    return {
        "stage": stage,
        "verdict": SAME if pair[0].content == pair[1].content else DIFFERENT,
        "causes": [shorten(cause, MAX_CAUSE_CHARS) for cause in causes[:MAX_CAUSES]] + rest,
        "contents": [artifact.content for artifact in pair],
        "seconds": [manifest_of(artifact)["timings"]["seconds"] for artifact in pair],
    }


def _pairs(lines: list[list[Line]], name: Callable[[Line], str], value: Callable[[Line], float | None]) -> list[Pair]:
    """Join a metric's lines of both runs by name, in the order of the first run."""
    tables = [{name(line): value(line) for line in of_run} for of_run in lines]
    names = list(dict.fromkeys([*tables[0], *tables[1]]))
    return [{"name": one, "values": [table.get(one) for table in tables]} for one in names]


def _kept(line: FunnelLine) -> int:
    stages = ("chunk", "decontaminate", "dedup", "clean", "sample")
    return next((kept for stage in stages if (kept := line.get(stage)) is not None), line["read"])


def _training(findings: list[Metrics]) -> list[Pair]:
    names = (
        ("steps", "steps"),
        ("tokens", "tokens read"),
        ("last_loss", "final loss"),
        ("skipped_steps", "skipped steps"),
        ("tokens_s", "tokens per second"),
    )
    pairs: list[Pair] = [
        {"name": name, "values": [found["training"].get(key) for found in findings]} for key, name in names
    ]
    costs = (("seconds", "seconds, all stages"), ("watt_hours", "watt-hours (estimate)"))
    pairs.extend({"name": name, "values": [found["cost"].get(key) for found in findings]} for key, name in costs)
    return [pair for pair in pairs if any(value is not None for value in pair["values"])]


def _on_common_documents(first: dict[str, Artifact], second: dict[str, Artifact]) -> list[CommonDocuments] | None:
    """Return the means of the sources over common documents, or None where both runs held out the same text."""
    runs = held_out(first), held_out(second)
    if is_same_text(*runs) or not all(run.bits for run in runs):
        return None
    found: list[CommonDocuments] = []
    for metric in runs[0].bits:
        fair = fair_documents(*runs, metric)
        values = [mean_of_sources(run, metric, fair) if fair else None for run in runs]
        name = f"{metric.replace('_', ' ')}, mean of sources, common documents: {len(fair)}"
        found.append({"name": name, "documents": len(fair), "values": values})
    return found


def score_differences(artifacts: list[dict[str, Artifact]], scores: list[list[ScoreRow]]) -> list[ComparedScore]:
    """Compare benchmark scores, one entry for each benchmark and number of shots.

    Where both runs kept the score of every item, the test is paired by item; otherwise the scores are compared as
    independent samples, which has less power.
    """
    evaluated = [found.get("evaluate") for found in artifacts]
    paired: dict[tuple[str, str, int], Difference] = {}
    if all(artifact is not None and artifact.rows("item_scores") for artifact in evaluated):
        # `paired_differences` judges its first argument, here the second run.
        of_first, of_second = (artifact.table("item_scores") for artifact in evaluated if artifact is not None)
        paired = paired_differences(of_second, of_first)
    tables = [
        {(row["task"], row["metric"], row["shots"]): row for row in main_rows(rows) if row["subset"] == "all"}
        for rows in scores
    ]
    found: list[ComparedScore] = []
    for key in (key for key in tables[0] if key in tables[1]):
        first, second = (table[key] for table in tables)
        tested = paired.get(key) or _unpaired(first, second)
        found.append(
            {
                "task": key[0],
                "metric": key[1],
                "shots": key[2],
                "values": [first["value"], second["value"]],
                "n": tested.n,
                "mean": tested.mean,
                "low": tested.low,
                "high": tested.high,
                "verdict": tested.verdict,
                "how": PAIRED if key in paired else UNPAIRED,
            }
        )
    return found


def _unpaired(first: ScoreRow, second: ScoreRow) -> Difference:
    n, mean = min(first["n"], second["n"]), (second["value"] or 0.0) - (first["value"] or 0.0)
    before, after = (interval_of_score(row["value"] or 0.0, row["stderr"], row["n"]) for row in (first, second))
    if before is None or after is None:
        return Difference(n, mean, None, None)
    # Newcombe 1998, method 10, which for intervals with two equal sides adds standard errors in quadrature.
    below = math.hypot(after.value - after.low, before.high - before.value)
    above = math.hypot(after.high - after.value, before.value - before.low)
    return Difference(n, mean, mean - below, mean + above)
