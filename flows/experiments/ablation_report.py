"""The report of an ablation: each change compared with the base.

Differences are means with 95% intervals, paired by seed and, for benchmarks, by item.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from flows.experiments.studies import LOSS, SPEED, ReportFiles, RunResult, Setting, write_report
from flows.metrics.heldout import fair_documents, is_same_text, mean_of_sources
from flows.metrics.statistics import compare_items_with_baseline, compare_with_baseline
from flows.reports.charts.figure import Figure, axis, figure, points, reach, upright
from flows.reports.document import Chart, Document, Section, Table
from tasks.common.text import counted

BASE = "base"

ONLY_SECOND = "second-run-alone"
"""Name of the second run from new weights, which shows what all first runs are worth."""


class ItemDifference(TypedDict):
    """The difference of a benchmark to the base over items, with its 95% interval."""

    n: int
    difference: float
    low: float | None
    high: float | None
    verdict: str


class MeasureLine(TypedDict):
    """One measure of a change: its mean over `n` seeds and, unless it is the base, the difference to the base."""

    value: float
    n: int
    base: NotRequired[float]
    difference: NotRequired[float]
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    verdict: NotRequired[str]
    not_compared: NotRequired[str]
    """Why there is no difference."""
    documents: NotRequired[int]
    """Documents that were compared, where not all were."""
    items: NotRequired[ItemDifference]


class ChangeLine(TypedDict):
    """What one change did."""

    change: str
    settings: dict[str, Setting]
    seeds: int
    built: list[str]
    failed: dict[int, str]
    runs: dict[int, str]
    measures: dict[str, MeasureLine]


class Ablation(TypedDict):
    """The table of an ablation."""

    measures: list[str]
    lines: list[ChangeLine]
    vary: list[str]
    second: str


class AblationFound(Ablation, ReportFiles):
    """The table, its files, and the outcome in words."""

    name: str
    outcome: str


Runs = dict[str, dict[int, RunResult]]
"""Change -> seed -> metrics of its run."""

NOT_COMPARED = (
    "Where a change alters what is held out, the difference is that of the documents that both runs held out and of"
    " which neither was trained on a copy; the means are each run's own. Losses of other rows and perplexities of other"
    " vocabularies are not compared."
)


def write_ablation(
    folder: Path, runs: Runs, changes: Mapping[str, Mapping[str, Setting]], vary: Sequence[str], second: str = ""
) -> AblationFound:
    """Write the report of the runs so far, and return what it holds and where it is.

    `changes` are the settings of each change, `vary` the keys that seeds are written to, `second` says what a second
    run is.
    """
    found = ablation_table(runs, changes, vary, second)
    paths = write_report(found, ablation_document(folder.name, found), folder)
    return {**found, **paths, "name": folder.name, "outcome": _outcome(found["lines"])}


def _outcome(lines: Sequence[ChangeLine]) -> str:
    done = len(lines[0]["runs"]) if lines else 0
    if not done:
        return "nothing ran"
    failed, every = (sum(len(line[part]) for line in lines) for part in ("failed", "runs"))
    failures = f"; {failed} of {every} runs failed" if failed else ""
    return f"{counted(len(lines) - 1, 'change')}, {counted(done, 'seed')}{failures}"


def ablation_table(
    runs: Runs, changes: Mapping[str, Mapping[str, Setting]], vary: Sequence[str] = (), second: str = ""
) -> Ablation:
    """Return the table of the runs so far."""
    base = _numbers(runs.get(BASE, {}))
    measures = _measures(base, *(_numbers(seeds) for seeds in runs.values()))
    higher = {name for seeds in runs.values() for one in seeds.values() for name in one.higher}
    lines: list[ChangeLine] = [
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
    return {"measures": measures, "lines": lines, "vary": list(vary), "second": second}


def _numbers(seeds: dict[int, RunResult]) -> dict[int, RunResult]:
    return {seed: one for seed, one in seeds.items() if not one.cause}


def _measures(*runs: dict[int, RunResult]) -> list[str]:
    """Return the names of held-out metrics, then benchmarks, loss and speed."""
    found = dict.fromkeys(name for seeds in runs for one in seeds.values() for name in one.values)
    last = [name for name in (LOSS, SPEED) if name in found]
    return [*(name for name in found if name not in last), *last]


def _line(
    measure: str, change: str, mine: dict[int, RunResult], base: dict[int, RunResult], higher: bool
) -> MeasureLine:
    values, of_base = (
        {seed: one.values[measure] for seed, one in runs.items() if measure in one.values} for runs in (mine, base)
    )
    line: MeasureLine = {"value": statistics.fmean(values.values()), "n": len(values)}
    if change == BASE:
        return line
    if change == ONLY_SECOND and measure == SPEED:
        return {**line, "not_compared": "the speed of a second run"}
    pairs = {seed: (mine[seed], base[seed]) for seed in values.keys() & of_base.keys()}
    if any(one.of_tokens.get(measure) != other.of_tokens.get(measure) for one, other in pairs.values()):
        return {**line, "not_compared": "other tokens"}
    if (fair := _on_fair_documents(measure, pairs)) is not None:
        values, of_base, line["documents"] = fair
        if not values:
            return {**line, "not_compared": "other text"}
    compared = compare_with_baseline(values, of_base, higher_is_better=higher)
    if compared is not None:
        line = {
            **line,
            "n": compared.n,
            "base": compared.base,
            "difference": compared.difference,
            "low": compared.low,
            "high": compared.high,
            "verdict": compared.verdict,
        }
    by_item = ({seed: one.items.get(measure, {}) for seed, one in runs.items()} for runs in (mine, base))
    found = compare_items_with_baseline(*by_item)
    if found is not None:
        line["items"] = {
            "n": found.n,
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "verdict": found.verdict,
        }
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
    return change, base, min((len(fair[seed]) for seed in comparable), default=0)


def ablation_document(name: str, found: Ablation) -> Document:
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
    badge = counted(len(lines) - 1, "change")
    return Document(f"ablation {name}", [Section("Changes", [changes]), *sections], badge, lead, problems=failed)


def _measure_table(measure: str, lines: Sequence[ChangeLine]) -> Table:
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


def _items(measure: str, items: ItemDifference | None) -> tuple[str, str]:
    return ("", "") if items is None else (_interval(measure, items), items["verdict"])


def _verdict(one: MeasureLine) -> str:
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


def _interval(measure: str, one: MeasureLine | ItemDifference) -> str:
    """Return `-0.0123 to +0.0045`; empty from a single run or item."""
    low, high = one.get("low"), one.get("high")
    return "" if low is None or high is None else f"{_signed(measure, low)} to {_signed(measure, high)}"


def measure_figure(measure: str, found: Ablation) -> Figure | None:
    """Return a chart of the differences to the base with their intervals, one row a change."""
    rows = [
        (line["change"], one["difference"], one.get("high"))
        for line in reversed(found["lines"])
        if (one := line["measures"].get(measure)) is not None and "difference" in one
    ]
    if not rows:
        return None
    names, differences = [name for name, _, _ in rows], [difference for _, difference, _ in rows]
    lengths = [0.0 if high is None else high - difference for _, difference, high in rows]
    shown = {"error_x": reach(lengths), "showlegend": False}
    dots = points("accent", differences, names, "%{y}: %{x:+.4f}", **shown)
    across = axis(f"{measure}, difference to the base")
    return figure([dots], 110 + 34 * len(rows), shapes=[upright(0)], xaxis=across, yaxis={"automargin": True})
