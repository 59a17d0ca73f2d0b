"""The report of an ablation: each change compared with the base.

Differences are means with 95% intervals, paired by seed and, for benchmarks, by item.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.experiments.studies import Setting, write_report
from flows.experiments.trials import LOSS, SPEED, RunResult
from flows.metrics.heldout import fair_documents, is_same_text, mean_of_sources
from flows.metrics.statistics import compare_items_with_baseline, compare_with_baseline
from flows.reports.charts.figure import Figure, axis, figure, points, reach, upright
from flows.reports.document import Chart, Document, Section, Table

BASE = "base"

ONLY_SECOND = "second-run-alone"
"""Name of the second run from new weights, which shows what all first runs are worth."""

Runs = dict[str, dict[int, RunResult]]
"""Change -> seed -> metrics of its run."""

NOT_COMPARED = (
    "Where a change alters what is held out, the difference is that of the documents that both runs held out and of"
    " which neither was trained on a copy; the means are each run's own. Losses of other rows and perplexities of other"
    " vocabularies are not compared."
)


def write_ablation(
    folder: Path, runs: Runs, changes: Mapping[str, Mapping[str, Setting]], vary: Sequence[str], second: str = ""
) -> dict[str, Any]:
    """Write the report of the runs so far, and return its table with the paths and `told`, the outcome in words.

    `changes` are the settings of each change, `vary` the keys that seeds are written to, `second` says what a second
    run is.
    """
    found = {**ablation_table(runs, changes), "vary": list(vary), "second": second}
    paths = write_report(found, ablation_document(folder.name, found), folder)
    done = len(found["lines"][0]["runs"]) if found["lines"] else 0
    told = f"{len(found['lines']) - 1} changes, {done} seeds" if done else "nothing ran"
    return {**found, **paths, "name": folder.name, "told": told}


def ablation_table(runs: Runs, changes: Mapping[str, Mapping[str, Setting]]) -> dict[str, Any]:
    """Return the table as JSON values: the `measures`, and a line for each change.

    A line has settings, failures, stages built, and for each measure the mean, the difference to the base, and its 95%
    interval over seeds and, for benchmarks, over items.
    """
    base = _numbers(runs.get(BASE, {}))
    measures = _measures(base, *(_numbers(seeds) for seeds in runs.values()))
    higher = {name for seeds in runs.values() for one in seeds.values() for name in one.higher}
    lines = [
        {
            "change": change,
            "settings": dict(changes.get(change, {})),
            "seeds": len(_numbers(seeds)),
            "built": sorted({stage for one in seeds.values() for stage in one.built}),
            "failed": {seed: one.cause for seed, one in seeds.items() if one.cause},
            "runs": {seed: one.run_id for seed, one in seeds.items()},
            "measures": {
                measure: _line(measure, change, _numbers(seeds), base, measure in higher)
                for measure in measures
                if any(measure in one.values for one in seeds.values())
            },
        }
        for change, seeds in runs.items()
    ]
    return {"measures": measures, "lines": lines}


def _numbers(seeds: dict[int, RunResult]) -> dict[int, RunResult]:
    return {seed: one for seed, one in seeds.items() if not one.cause}


def _measures(*runs: dict[int, RunResult]) -> list[str]:
    """Return the names of held-out metrics, then benchmarks, loss and speed."""
    found = dict.fromkeys(name for seeds in runs for one in seeds.values() for name in one.values)
    last = [name for name in (LOSS, SPEED) if name in found]
    return [*(name for name in found if name not in last), *last]


def _line(
    measure: str, change: str, mine: dict[int, RunResult], base: dict[int, RunResult], higher: bool
) -> dict[str, Any]:
    values, of_base = (
        {seed: one.values[measure] for seed, one in runs.items() if measure in one.values} for runs in (mine, base)
    )
    line: dict[str, Any] = {"value": statistics.fmean(values.values()), "n": len(values)}
    if change == BASE:
        return line
    if change == ONLY_SECOND and measure == SPEED:
        return line | {"not_compared": "the speed of a second run"}
    pairs = {seed: (mine[seed], base[seed]) for seed in values.keys() & of_base.keys()}
    if any(one.of_tokens.get(measure) != other.of_tokens.get(measure) for one, other in pairs.values()):
        return line | {"not_compared": "other tokens"}
    if (fair := _on_fair_documents(measure, pairs)) is not None:
        values, of_base, line["documents"] = fair
        if not values:
            return line | {"not_compared": "other text"}
    compared = compare_with_baseline(values, of_base, higher_is_better=higher)
    if compared is not None:
        line |= asdict(compared) | {"value": line["value"]}
    by_item = ({seed: one.items.get(measure, {}) for seed, one in runs.items()} for runs in (mine, base))
    found = compare_items_with_baseline(*by_item)
    if found is not None:
        numbers = {"n": found.n, "difference": found.mean, "low": found.low, "high": found.high}
        line["items"] = {**numbers, "verdict": found.verdict}
    return line


def _on_fair_documents(
    measure: str, pairs: dict[int, tuple[RunResult, RunResult]]
) -> tuple[dict[int, float], dict[int, float], int] | None:
    """Return a held-out metric of a change and of the base by seed, over the documents on which a seed's two runs can
    be compared, and the least number of these documents. None where both held out the same, or for another metric."""
    metric = next((one.of_heldout[measure] for one, _ in pairs.values() if measure in one.of_heldout), None)
    if metric is None or all(is_same_text(one.heldout, other.heldout) for one, other in pairs.values()):
        return None
    fair = {seed: fair_documents(one.heldout, other.heldout, metric) for seed, (one, other) in pairs.items()}
    comparable = {seed: pairs[seed] for seed, documents in fair.items() if documents}
    change, base = (
        {seed: mean_of_sources(pair[side].heldout, metric, fair[seed]) for seed, pair in comparable.items()}
        for side in (0, 1)
    )
    return change, base, min(len(documents) for documents in fair.values())


def ablation_document(name: str, found: dict[str, Any]) -> Document:
    """Return the report: the changes, and for each measure means, differences to the base, intervals and verdicts."""
    lines = found["lines"]
    failed = [
        (f"{line['change']}, seed {seed}, failed", cause) for line in lines for seed, cause in line["failed"].items()
    ]
    settings = [
        (
            line["change"],
            ", ".join(f"{key} = {value}" for key, value in line["settings"].items()),
            line["seeds"],
            ", ".join(line["built"]) or ("all reused" if line["seeds"] else ""),
        )
        for line in lines
    ]
    changes = Table(("change", "settings", "seeds", "built"), settings, texts=("settings", "built"))
    lead = (
        f"Means over seeds, which vary {', '.join(found['vary'])}.{found['second']} Differences are to the base, paired"
        f" by seed; intervals are Student's t. Over items: paired item by item, of scores averaged over seeds."
        f" {NOT_COMPARED}"
    )
    sections = [
        Section(measure, [Chart(f"measure{place}", measure_figure(measure, found)), _measure_table(measure, lines)])
        for place, measure in enumerate(found["measures"])
    ]
    count = len(lines) - 1
    badge = f"{count} change{'s' if count != 1 else ''}"
    return Document(f"ablation {name}", [Section("Changes", [changes]), *sections], badge, lead, problems=failed)


def _measure_table(measure: str, lines: Sequence[dict[str, Any]]) -> Table:
    rows = [(line, line["measures"][measure]) for line in lines if measure in line["measures"]]
    by_item = any("items" in one for _, one in rows)
    columns = ("change", measure, "seeds", "difference", "95% over seeds", "verdict")
    cells = [
        (
            line["change"],
            _number(measure, one["value"]),
            one["n"],
            _signed(measure, one["difference"]) if "difference" in one else "",
            _interval(measure, one),
            _verdict(one),
            *(_items(measure, one.get("items")) if by_item else ()),
        )
        for line, one in rows
    ]
    over_items = ("95% over items", "over items")
    return Table([*columns, *(over_items if by_item else ())], cells, texts=("verdict", "over items"))


def _items(measure: str, items: dict[str, Any] | None) -> tuple[str, str]:
    return ("", "") if items is None else (_interval(measure, items), items["verdict"])


def _verdict(one: dict[str, Any]) -> str:
    """Return `better`, `worse` or `no difference`, with the number of documents where not all count; or why there is
    none."""
    if "not_compared" in one:
        return f"not compared: {one['not_compared']}"
    verdict = one.get("verdict", "")
    return f"{verdict} (on {one['documents']} documents)".lstrip() if "documents" in one else verdict


def _number(measure: str, value: float) -> str:
    return f"{value:,.0f}" if measure == SPEED else f"{value:.4f}"


def _signed(measure: str, value: float) -> str:
    return f"{value:+,.0f}" if measure == SPEED else f"{value:+.4f}"


def _interval(measure: str, one: dict[str, Any]) -> str:
    """Return `-0.0123 to +0.0045`; empty from a single run or item."""
    return "" if one.get("low") is None else f"{_signed(measure, one['low'])} to {_signed(measure, one['high'])}"


def measure_figure(measure: str, found: dict[str, Any]) -> Figure | None:
    """Return a chart of the differences to the base with their intervals, one row a change."""
    rows = [
        (line["change"], line["measures"][measure])
        for line in reversed(found["lines"])
        if "difference" in line["measures"].get(measure, {})
    ]
    if not rows:
        return None
    lengths = [0.0 if one["high"] is None else one["high"] - one["difference"] for _, one in rows]
    differences, names = [one["difference"] for _, one in rows], [change for change, _ in rows]
    shown = {"error_x": reach(lengths), "showlegend": False}
    dots = points("accent", differences, names, "%{y}: %{x:+.4f}", **shown)
    across = axis(f"{measure}, difference to the base")
    return figure([dots], 110 + 34 * len(rows), shapes=[upright(0)], xaxis=across, yaxis={"automargin": True})
