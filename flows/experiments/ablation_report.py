"""The report of an ablation as JSON, Markdown and a page: each change compared with the base.

Differences are means with 95% intervals, paired by seed and, for benchmarks, by item.
"""

import logging
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.experiments.ablation_config import BASE, ONLY_SECOND, AblationConfig
from flows.experiments.trials import LOSS, SPEED, RunResult
from flows.metrics.heldout import fair_documents, is_same_text, mean_of_sources
from flows.reports.page.render import write_figures
from model.checksummed_json import write_sealed
from model.files import write_atomically
from tasks.evaluate.comparison import Difference, paired_difference

TABLE, MARKDOWN, PAGE = "table.json", "table.md", "page.html"

Runs = dict[str, dict[int, RunResult]]

NOT_COMPARED = (
    "Where a change alters what is held out, the difference is that of the documents that both runs held out and of"
    " which neither was trained on a copy; the means are each run's own. Losses of other rows and perplexities of other"
    " vocabularies are not compared."
)

log = logging.getLogger(__name__)


def ablation_table(config: AblationConfig, runs: Runs) -> dict[str, Any]:
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
            "settings": config.changes.get(change, {}),
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
    return {"measures": measures, "vary": list(config.vary), "second": _describe_second_run(config), "lines": lines}


def _describe_second_run(config: AblationConfig) -> str:
    if config.then is None:
        return ""
    sets = ", ".join(f"`{key}` {value}" for key, value in config.then.settings.items())
    return (
        f" Each model continued in a second run, alike for all, on {config.then.tokens_share:.0%} as many tokens"
        f" ({sets}), which was measured. `{ONLY_SECOND}` is the second run from new weights; speed is of first runs."
    )


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
    if change == ONLY_SECOND and measure == SPEED:
        return line | {"not_compared": "the speed of a second run"}
    if change != BASE:
        pairs = {seed: (mine[seed], base[seed]) for seed in values.keys() & of_base.keys()}
        if any(one.of_tokens.get(measure) != other.of_tokens.get(measure) for one, other in pairs.values()):
            return line | {"not_compared": "other tokens"}
        if (fair := _on_fair_documents(measure, pairs)) is not None:
            values, of_base, line["documents"] = fair
            if not values:
                return line | {"not_compared": "other text"}
    compared = None if change == BASE else compare_with_baseline(measure, values, of_base, higher)
    if compared is not None:
        line |= {
            key: getattr(compared, key)
            for key in PairedComparison.__dataclass_fields__
            if key not in ("measure", "value")
        }
    by_item = ({seed: one.items.get(measure, {}) for seed, one in runs.items()} for runs in (mine, base))
    found = None if change == BASE else compare_items_with_baseline(*by_item)
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


def write_report(name: str, config: AblationConfig, runs: Runs, folder: Path) -> dict[str, Any]:
    """Write the table of the runs so far, and return it with the paths."""
    found = ablation_table(config, runs)
    markdown = as_markdown(name, found)
    write_sealed(folder / TABLE, found)
    write_atomically(folder / MARKDOWN, markdown.encode())
    try:
        _write_page(name, found, folder / PAGE)
    except Exception:
        log.exception("the page of ablation %s could not be drawn", name)
    outcome = (
        f"{len(found['lines']) - 1} changes, {found['lines'][0]['seeds']} seeds" if found["lines"] else "nothing ran"
    )
    paths = {"table": str(folder / TABLE), "markdown": str(folder / MARKDOWN), "page": str(folder / PAGE)}
    return {**found, **paths, "name": name, "told": outcome}


def as_markdown(name: str, found: dict[str, Any]) -> str:
    """Return a table for each measure: the mean, the difference to the base with its interval, and the verdict."""
    parts = [f"# {name}", "", _how(found)]
    for measure in found["measures"]:
        rows = [(line, line["measures"][measure]) for line in found["lines"] if measure in line["measures"]]
        items = any("items" in one for _, one in rows)
        by_item = ["95% over items", ""] if items else []
        head = ["change", measure, "seeds", "difference", "95% over seeds", "", *by_item]
        parts += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        parts += ["| " + " | ".join(_cells(line["change"], measure, one, items)) + " |" for line, one in rows]
    failed = [(line["change"], seed, cause) for line in found["lines"] for seed, cause in line["failed"].items()]
    parts += ["", *(f"- {change}, seed {seed}, failed: {cause}" for change, seed, cause in failed)] if failed else []
    return "\n".join([*parts, ""])


def _how(found: dict[str, Any]) -> str:
    keys = ", ".join(f"`{key}`" for key in found["vary"])
    return (
        f"Means over seeds, which vary {keys}.{found['second']} Differences are to the base, paired by seed; intervals"
        f" are Student's t. Over items: paired item by item, of scores averaged over seeds. {NOT_COMPARED}"
    )


def _cells(change: str, measure: str, one: dict[str, Any], items: bool) -> list[str]:
    cells = [change, number(measure, one["value"]), str(one["n"])]
    if "difference" in one:
        cells += [signed(measure, one["difference"]), interval(measure, one), verdict(one)]
    else:
        cells += ["", "", verdict(one)]
    if items:
        by_item = one.get("items")
        cells += ["", ""] if by_item is None else [interval(measure, by_item), by_item["verdict"]]
    return cells


def verdict(one: dict[str, Any]) -> str:
    """Return `better`, `worse` or `no difference`, with the number of documents where not all count; or why there is
    none."""
    if "not_compared" in one:
        return f"not compared: {one['not_compared']}"
    verdict = one.get("verdict", "")
    return f"{verdict} (on {one['documents']} documents)".lstrip() if "documents" in one else verdict


def number(measure: str, value: float) -> str:
    """Return `1.2345`; whole numbers for tokens a second."""
    return f"{value:,.0f}" if measure == SPEED else f"{value:.4f}"


def signed(measure: str, value: float) -> str:
    """Return `+0.0123`."""
    return f"{value:+,.0f}" if measure == SPEED else f"{value:+.4f}"


def interval(measure: str, one: dict[str, Any]) -> str:
    """Return `-0.0123 to +0.0045`; empty from a single run or item."""
    if one.get("low") is None:
        return ""
    return f"{signed(measure, one['low'])} to {signed(measure, one['high'])}"


def figure(measure: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return a chart of the differences to the base with their intervals, one row a change."""
    rows = [
        (line["change"], line["measures"][measure])
        for line in reversed(found["lines"])
        if "difference" in line["measures"].get(measure, {})
    ]
    if not rows:
        return None
    reach = [0.0 if one["high"] is None else one["high"] - one["difference"] for _, one in rows]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [one["difference"] for _, one in rows],
        "y": [change for change, _ in rows],
        "error_x": {"type": "data", "array": reach, "thickness": 1.5, "width": 5},
        "meta": {"role": "accent"},
        "showlegend": False,
        "hovertemplate": "%{y}: %{x:+.4f}<extra></extra>",
    }
    zero = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 0, "x1": 0, "line": {"dash": "dot"}}
    layout = {
        "height": 110 + 34 * len(rows),
        "shapes": [zero],
        "xaxis": {"title": {"text": f"{measure}, difference to the base"}},
        "yaxis": {"automargin": True},
    }
    return {"data": [points], "layout": layout}


def _write_page(name: str, found: dict[str, Any], path: Path) -> None:
    figures = {f"measure{place}": figure(measure, found) for place, measure in enumerate(found["measures"])}
    formats = {"number": number, "signed": signed, "interval": interval, "verdict": verdict, "limits": NOT_COMPARED}
    write_figures("flows.experiments", "ablation.html", figures, path, name=name, found=found, **formats)


# 97.5% quantiles of Student's t for 1 to 30 degrees of freedom.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

NORMAL_975 = 1.959964


@dataclass(frozen=True)
class PairedComparison:
    """A measure of a change compared with the base, paired by seed."""

    measure: str
    value: float
    """Mean over seeds."""
    base: float
    n: int
    """Number of seeds that both have."""
    difference: float
    low: float | None
    high: float | None
    """Ends of the 95% interval of the difference over seeds; None from a single one."""
    verdict: str
    """`better`, `worse`, or `no difference` where the interval holds 0; empty without an interval."""


def t_975(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t (above 30 degrees by its expansion, Abramowitz and Stegun 26.7.5)."""
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def compare_with_baseline(
    measure: str, change: Mapping[int, float], base: Mapping[int, float], higher_is_better: bool
) -> PairedComparison | None:
    """Return the mean difference change - base of values by seed, over the seeds that both have; None without any."""
    seeds = sorted(change.keys() & base.keys())
    if not seeds:
        return None
    differences = [change[seed] - base[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    low = high = None
    if len(seeds) > 1:
        reach = t_975(len(seeds) - 1) * statistics.stdev(differences) / math.sqrt(len(seeds))
        low, high = mean - reach, mean + reach
    value, of_base = (statistics.fmean(values[seed] for seed in seeds) for values in (change, base))
    return PairedComparison(measure, value, of_base, len(seeds), mean, low, high, _verdict(low, high, higher_is_better))


def _verdict(low: float | None, high: float | None, higher_is_better: bool) -> str:
    if low is None or high is None:
        return ""
    if low <= 0 <= high:
        return "no difference"
    return "better" if (low > 0) == higher_is_better else "worse"


def compare_items_with_baseline(
    change: Mapping[int, Mapping[Any, float]], base: Mapping[int, Mapping[Any, float]]
) -> Difference | None:
    """Return the paired difference over items of scores by seed and item; None without common items.

    Each item is averaged over the seeds in which both runs have it: seeds may sample different items.
    """
    pairs: dict[Any, list[tuple[float, float]]] = {}
    for seed in sorted(change.keys() & base.keys()):
        for item, score in change[seed].items():
            if item in base[seed]:
                pairs.setdefault(item, []).append((score, base[seed][item]))
    if not pairs:
        return None
    sides = ({item: statistics.fmean(one[side] for one in found) for item, found in pairs.items()} for side in (0, 1))
    return paired_difference(*sides)
