"""What differs between two runs: recipe, code and data by their identities, documents, training, scores."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.metrics.heldout import fair_documents, held_out, is_same_text, mean_of_sources
from flows.metrics.run_metrics import collect_metrics, open_artifacts, read_saved_metrics
from flows.recipe.stages import STAGES
from flows.reports.charts.scores import main_metric
from flows.runs.record import read_recipe, state_of
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.identity import OF_CODE, differences
from tasks.evaluate.comparison import Z_95, paired_differences

SAME, OTHER, ALONE = "the same bytes", "other bytes", "in one run alone"

PAIRED, APART = "item by item", "from standard errors"
"""How two scores were held against each other."""

OTHER_TEXT = (
    "The runs held out other documents, or left other copies of them to learn from: of bits per byte only those compare"
    " that are of documents of both, none of whose copies either run was trained on."
)

MOST_CAUSES = 12

CAUSE_LETTERS = 160


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """All differences of two runs, given by their records, as JSON values; each number is (first, second), None where
    a run has none, and each difference is the second less the first."""
    records = (first, second)
    artifacts = [open_artifacts(record) for record in records]
    findings = [collect_metrics(record, read_saved_metrics(record)) for record in records]
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
        "heldout": _on_both(*artifacts),
        "scores": score_differences(artifacts, [found["scores"] for found in findings]),
    }


def _recipe(record: dict[str, Any]) -> dict[str, Any]:
    return read_recipe(Path(record["root"]) / "runs" / record["run_id"])


def recipe_differences(first: Any, second: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Settings that differ: `path`, and the `values` of both, None where one recipe lacks it. Entries of lists that
    have a name are told by it."""
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


def _stage(stage: str, first: dict[str, Artifact], second: dict[str, Artifact]) -> dict[str, Any]:
    """Whether both runs have the same artifact of a stage, and if not, what of its identity differs: settings and
    inputs one by one, definitions of code as a count."""
    if stage not in first or stage not in second:
        return {"stage": stage, "verdict": ALONE, "causes": [], "contents": [None, None]}
    pair = (first[stage], second[stage])
    told = list(differences(*(artifact.manifest["identity_parts"] for artifact in pair)))
    code = [cause for cause in told if cause.startswith(OF_CODE)]
    causes = [cause for cause in told if not cause.startswith(OF_CODE)]
    if code:
        names = ", ".join(cause.removeprefix(OF_CODE).split()[0] for cause in code[:3])
        causes.append(
            f"{len(code)} definition{'s' if len(code) > 1 else ''} of code: {names}{' …' if len(code) > 3 else ''}"
        )
    rest = [f"{len(causes) - MOST_CAUSES} more"] if len(causes) > MOST_CAUSES else []
    return {
        "stage": stage,
        "verdict": SAME if pair[0].content == pair[1].content else OTHER,
        "causes": [_cut(cause) for cause in causes[:MOST_CAUSES]] + rest,
        "contents": [artifact.content for artifact in pair],
        "seconds": [artifact.manifest["timings"]["seconds"] for artifact in pair],
    }


def _cut(words: str) -> str:
    return words if len(words) <= CAUSE_LETTERS else f"{words[: CAUSE_LETTERS - 1]}…"


def _kept(line: dict[str, Any]) -> int:
    return next(line[key] for key in ("chunk", "decontaminate", "dedup", "clean", "sample", "read") if key in line)


def _pairs(findings: list[dict[str, Any]], name: str, key: Any, value: Any) -> list[dict[str, Any]]:
    """`name` and both `values` of a finding's lines, joined by `key`; those of the first run in their order first."""
    tables: list[dict[Any, Any]] = []
    for found in findings:
        tables.append({_key(line, key): value(line) for line in found[name]})
    names = list(dict.fromkeys([*tables[0], *tables[1]]))
    return [{"name": one, "values": [table.get(one) for table in tables]} for one in names]


def _key(line: dict[str, Any], key: Any) -> str:
    return ": ".join(line[part] for part in key) if isinstance(key, tuple) else line[key]


def _on_both(first: dict[str, Artifact], second: dict[str, Artifact]) -> list[dict[str, Any]] | None:
    """Where the runs held out other text: by metric the mean of sources of both, `values`, over the `documents` that
    both held out and of which neither was trained on a copy. None where both held out the same."""
    runs = held_out(first), held_out(second)
    if is_same_text(*runs) or not all(run.bits for run in runs):
        return None
    found: list[dict[str, Any]] = []
    for metric in runs[0].bits:
        fair = fair_documents(*runs, metric)
        values = [mean_of_sources(run, metric, fair) if fair else None for run in runs]
        name = f"{metric.replace('_', ' ')}, mean of sources, documents of both: {len(fair)}"
        found.append({"name": name, "documents": len(fair), "values": values})
    return found


def _training(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = (
        ("steps", "steps"),
        ("tokens", "tokens read"),
        ("last_loss", "loss at the end"),
        ("skipped_steps", "steps left out"),
        ("tokens_s", "tokens a second"),
    )
    pairs = [{"name": words, "values": [found["training"].get(key) for found in findings]} for key, words in told]
    seconds = [found["cost"].get("seconds") for found in findings]
    energy = [found["cost"].get("watt_hours") for found in findings]
    pairs += [{"name": "seconds of all stages", "values": seconds}, {"name": "watt-hours, about", "values": energy}]
    return [pair for pair in pairs if any(value is not None for value in pair["values"])]


def score_differences(artifacts: list[dict[str, Artifact]], scores: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By benchmark and number of shots: both `values`, their difference `mean` with its 95% interval `low` to `high`,
    a `verdict` (`better`, `worse`, `no difference`) on the second run, on how many items `n`, and `how`.

    Where both runs kept the score of every item, items that both answered are held against each other one by one; else
    the two scores are, as if they were of different items, which sees less.
    """
    evaluated = [found.get("evaluate") for found in artifacts]
    paired: dict[tuple[str, str, int], dict[str, Any]] = {}
    if all(artifact is not None and artifact.rows("item_scores") for artifact in evaluated):
        # The second run beside the first: `better` is the second's.
        second, first = (artifact.table("item_scores") for artifact in reversed(evaluated) if artifact is not None)
        paired = {(line["task"], line["metric"], line["shots"]): line for line in paired_differences(second, first)}
    tables = [_main_scores(rows) for rows in scores]
    found: list[dict[str, Any]] = []
    for key in (key for key in tables[0] if key in tables[1]):
        rows = [table[key] for table in tables]
        named = {"task": key[0], "metric": key[1], "shots": key[2], "values": [row["value"] for row in rows]}
        line = paired.get(key)
        if line is not None:
            told = {name: line[name] for name in ("n", "mean", "low", "high", "verdict")}
            found.append({**named, **told, "how": PAIRED})
        else:
            found.append({**named, **_unpaired(*rows), "how": APART})
    return found


def _main_scores(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row)
    return {
        (row["task"], row["metric"], row["shots"]): row
        for of_task in by_task.values()
        for row in of_task
        if row["metric"] == main_metric(of_task) and row["subset"] == "all" and row["value"] is not None
    }


def _unpaired(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    mean, n = second["value"] - first["value"], min(first["n"], second["n"])
    if first["stderr"] is None or second["stderr"] is None:
        return {"n": n, "mean": mean, "low": None, "high": None, "verdict": "no difference"}
    reach = Z_95 * math.hypot(first["stderr"], second["stderr"])
    verdict = "better" if mean > reach else "worse" if mean < -reach else "no difference"
    return {"n": n, "mean": mean, "low": mean - reach, "high": mean + reach, "verdict": verdict}
