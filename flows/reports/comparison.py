"""Compare two runs: recipe settings, stage identities, documents, training, held-out text and benchmark scores.

Only records and artifacts are read. `flows.reports.comparison_page` renders the result.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.metrics.formatting import shorten
from flows.metrics.heldout import fair_documents, held_out, is_same_text, mean_of_sources
from flows.metrics.run_metrics import Metrics, metrics_of, open_artifacts
from flows.metrics.statistics import Z_95, verdict_of
from flows.recipe.stages import STAGES
from flows.reports.charts.scores import main_rows
from flows.runs.record import RunData, read_recipe, state_of
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.identity import OF_CODE, differences
from tasks.evaluate.comparison import paired_differences

SAME, DIFFERENT, IN_ONE_RUN = "the same bytes", "different bytes", "in one run only"

PAIRED, UNPAIRED = "item by item", "from standard errors"
"""How the difference of two scores was tested."""

HELDOUT_DIFFERS = (
    "The runs held out different documents, or trained on different near-copies of them. Compare bits per byte only on"
    " the documents that both runs held out and of which neither run trained on a copy."
)

MAX_CAUSES = 12

MAX_CAUSE_CHARS = 160


def compare(first: RunData, second: RunData) -> dict[str, Any]:
    """Return all differences of two runs, given by their records, as JSON values.

    Each number is a pair (first, second), with None where a run has no value; each difference is second minus first.
    """
    records = (first, second)
    artifacts = [open_artifacts(record) for record in records]
    findings = [metrics_of(record) for record in records]
    return {
        "runs": [
            {"run_id": record["run_id"], "recipe": record["recipe_name"], "state": state_of(record)}
            for record in records
        ],
        "recipe": list(recipe_differences(_recipe(first), _recipe(second))),
        "stages": [_stage(stage, *artifacts) for stage in STAGES if any(stage in found for found in artifacts)],
        "documents": _pairs(findings, "funnel", "source", _kept),
        "mixture": _pairs(findings, "mixture", "source", lambda line: line["realised_share"]),
        "epochs": _pairs(findings, "mixture", "source", lambda line: line["epochs"]),
        "removed": _pairs(findings, "removed", ("stage", "rule"), lambda line: line["documents"]),
        "leaks": _pairs(findings, "leaks", "benchmark", lambda line: line["leaked"]),
        "training": _training(findings),
        "bits_per_byte": _pairs(findings, "bits_per_byte", "source", lambda line: line.get("model")),
        "heldout": _on_common_documents(*artifacts),
        "scores": score_differences(artifacts, [found["scores"] for found in findings]),
    }


def _recipe(record: RunData) -> dict[str, Any]:
    return read_recipe(Path(record["root"]) / "runs" / record["run_id"])


def _stage(stage: str, first: dict[str, Artifact], second: dict[str, Artifact]) -> dict[str, Any]:
    """Compare the artifacts of one stage, and list what differs in their identities.

    Settings and inputs are listed one by one, definitions of code as a count.
    """
    if stage not in first or stage not in second:
        return {"stage": stage, "verdict": IN_ONE_RUN, "causes": [], "contents": [None, None]}
    pair = (first[stage], second[stage])
    all_causes = list(differences(*(artifact.manifest["identity_parts"] for artifact in pair)))
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
        "seconds": [artifact.manifest["timings"]["seconds"] for artifact in pair],
    }


def _pairs(findings: list[Metrics], name: str, key: Any, value: Any) -> list[dict[str, Any]]:
    """Join a metric's lines of both runs by `key` into `name` and `values`, in the order of the first run."""
    tables = [{_key(line, key): value(line) for line in found[name]} for found in findings]
    names = list(dict.fromkeys([*tables[0], *tables[1]]))
    return [{"name": one, "values": [table.get(one) for table in tables]} for one in names]


def _key(line: dict[str, Any], key: Any) -> str:
    return ": ".join(line[part] for part in key) if isinstance(key, tuple) else line[key]


def _kept(line: dict[str, Any]) -> int:
    return next(line[key] for key in ("chunk", "decontaminate", "dedup", "clean", "sample", "read") if key in line)


def _training(findings: list[Metrics]) -> list[dict[str, Any]]:
    names = (
        ("steps", "steps"),
        ("tokens", "tokens read"),
        ("last_loss", "final loss"),
        ("skipped_steps", "skipped steps"),
        ("tokens_s", "tokens per second"),
    )
    pairs = [{"name": name, "values": [found["training"].get(key) for found in findings]} for key, name in names]
    seconds = [found["cost"].get("seconds") for found in findings]
    energy = [found["cost"].get("watt_hours") for found in findings]
    pairs += [{"name": "seconds, all stages", "values": seconds}, {"name": "watt-hours (estimate)", "values": energy}]
    return [pair for pair in pairs if any(value is not None for value in pair["values"])]


def _on_common_documents(first: dict[str, Artifact], second: dict[str, Artifact]) -> list[dict[str, Any]] | None:
    """Return held-out metrics over common documents, or None where both runs held out the same text.

    `values` are, by metric, the means of the sources in both runs, over the number of `documents` that both held out
    and of which neither run trained on a copy.
    """
    runs = held_out(first), held_out(second)
    if is_same_text(*runs) or not all(run.bits for run in runs):
        return None
    found: list[dict[str, Any]] = []
    for metric in runs[0].bits:
        fair = fair_documents(*runs, metric)
        values = [mean_of_sources(run, metric, fair) if fair else None for run in runs]
        name = f"{metric.replace('_', ' ')}, mean of sources, common documents: {len(fair)}"
        found.append({"name": name, "documents": len(fair), "values": values})
    return found


def recipe_differences(first: Any, second: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yield each setting that differs as its dotted `path` and both `values`, None where one recipe lacks it.

    Entries of a list of named tables are matched by name.
    """
    first, second = _by_name(first), _by_name(second)
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted({*first, *second}):
            inner = f"{path}.{key}" if path else str(key)
            yield from recipe_differences(first.get(key), second.get(key), inner)
    elif first != second:
        yield {"path": path, "values": [first, second]}


def _by_name(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        return {one["name"]: one for one in value}
    return value


def score_differences(artifacts: list[dict[str, Artifact]], scores: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Compare benchmark scores, one entry for each benchmark and number of shots.

    An entry has both `values`, their difference `mean` with its 95% interval `low` to `high`, the number of items `n`,
    a `verdict` on the second run (`better`, `worse`, `no difference`), and `how` it was tested. Where both runs kept
    the score of every item, the test is paired by item; otherwise the scores are compared as independent samples, which
    has less power.
    """
    evaluated = [found.get("evaluate") for found in artifacts]
    paired: dict[tuple[str, str, int], dict[str, Any]] = {}
    if all(artifact is not None and artifact.rows("item_scores") for artifact in evaluated):
        # `paired_differences` judges its first argument, here the second run.
        second, first = (artifact.table("item_scores") for artifact in reversed(evaluated) if artifact is not None)
        paired = {(line["task"], line["metric"], line["shots"]): line for line in paired_differences(second, first)}
    tables = [_main_scores(rows) for rows in scores]
    found: list[dict[str, Any]] = []
    for key in (key for key in tables[0] if key in tables[1]):
        rows = [table[key] for table in tables]
        named = {"task": key[0], "metric": key[1], "shots": key[2], "values": [row["value"] for row in rows]}
        line = paired.get(key)
        if line is not None:
            tested = {name: line[name] for name in ("n", "mean", "low", "high", "verdict")}
            found.append({**named, **tested, "how": PAIRED})
        else:
            found.append({**named, **_unpaired(*rows), "how": UNPAIRED})
    return found


def _main_scores(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {(row["task"], row["metric"], row["shots"]): row for row in main_rows(rows) if row["subset"] == "all"}


def _unpaired(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    mean, n = second["value"] - first["value"], min(first["n"], second["n"])
    if first["stderr"] is None or second["stderr"] is None:
        return {"n": n, "mean": mean, "low": None, "high": None, "verdict": "no difference"}
    reach = Z_95 * math.hypot(first["stderr"], second["stderr"])
    verdict = verdict_of(mean - reach, mean + reach, higher_is_better=True)
    return {"n": n, "mean": mean, "low": mean - reach, "high": mean + reach, "verdict": verdict}
