"""Results of a search: the best recipe, the page (one file that opens offline), and the table for the terminal."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.experiments.samplers import format_settings, format_value, optuna_study
from flows.experiments.search_config import Choices, Range
from flows.experiments.study import Study
from flows.experiments.trial_log import Trial
from flows.experiments.trials import as_setting, parse_editable
from flows.metrics.formatting import format_duration
from flows.recipe.load import apply_setting
from flows.reports.page.render import write_figures
from model.files import write_atomically

MIN_TRIALS_FOR_IMPORTANCE = 6
"""Least number of trials for importances, which are noise with fewer."""

HEADROOM = 3.0
"""Height of an axis above the third quartile, in distances from the best value to it; larger values are at the edge."""

log = logging.getLogger(__name__)


def write_page(study: Study, lines: list[dict[str, Any]], path: Path) -> Path:
    """Write the page and return its path."""
    best = study.best
    view = {
        "study": study,
        "keys": list(study.config.space),
        "lines": lines,
        "best": None if best is None else best.number,
        "told": format_value,
    }
    write_figures("flows.experiments", "search.html", _figures(study, lines), path, **view)
    return path


def _figures(study: Study, lines: list[dict[str, Any]]) -> dict[str, dict[str, Any] | None]:
    compared = {trial.number: value for trial in study.trials if (value := compared_value(study, trial)) is not None}
    figures = {"curves": curves_figure(study) if len(study.shares) > 1 else None}
    figures["history"] = history_figure(lines, study.config.objective.label, study.config.objective.direction)
    for number, (key, axis) in enumerate(study.config.space.items()):
        figures[f"slice{number}"] = slice_figure(study, key, axis, compared)
    figures["importance"] = importance_figure(study, compared)
    return figures


def compared_value(study: Study, trial: Trial) -> float | None:
    """Return the figure that all trials have: the loss at the first rung, or the objective without rungs."""
    if len(study.shares) == 1:
        return trial.value
    stop = next((stop for stop in trial.stops if stop.rung == 0), None)
    return None if stop is None else stop.loss


def curves_figure(study: Study) -> dict[str, Any] | None:
    """Return a chart of training loss at rungs; the best trial and the recipe's own are highlighted."""
    best = study.best
    data: list[dict[str, Any]] = []
    top = ceiling([stop.loss for trial in study.trials for stop in trial.stops if stop.loss is not None] or [0.0])
    for trial in study.trials:
        stops = [stop for stop in trial.stops if stop.loss is not None]
        if not stops:
            continue
        role = "accent" if trial is best else "series1" if trial.origin == "recipe" else "muted1"
        settings = ", ".join(f"{key.rpartition('.')[2]} {format_value(value)}" for key, value in trial.settings.items())
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [stop.step / stop.steps for stop in stops],
                "y": [min(stop.loss or 0.0, top) for stop in stops],
                "text": [f"{stop.loss:.4f}" for stop in stops],
                "name": f"trial {trial.number}",
                "meta": {"role": role},
                "showlegend": False,
                "hovertemplate": f"trial {trial.number}: %{{text}}<br>{settings}<extra></extra>",
            }
        )
    # Highlighted curves are drawn last, above the others.
    data.sort(key=lambda trace: ("muted1", "series1", "accent").index(trace["meta"]["role"]))
    layout = {
        "height": 360,
        "xaxis": {"title": {"text": "share of the training"}, "tickformat": ".0%"},
        "yaxis": {"title": {"text": "training loss"}, "automargin": True},
    }
    return {"data": data, "layout": layout} if data else None


def history_figure(lines: list[dict[str, Any]], label: str, direction: str) -> dict[str, Any] | None:
    """Return a chart of the objective of each complete trial, and the best so far."""
    ended = [line for line in lines if line["value"] is not None]
    if not ended:
        return None
    better = min if direction == "minimize" else max
    so_far = [better(line["value"] for line in ended[: place + 1]) for place in range(len(ended))]
    numbers = [line["trial"] for line in ended]
    points = {"type": "scatter", "mode": "markers", "x": numbers, "y": [line["value"] for line in ended]}
    points |= {"name": "trial", "meta": {"role": "series1"}}
    points["error_y"] = {"type": "data", "array": [line["stderr"] or 0.0 for line in ended], "thickness": 1.5}
    best = {"type": "scatter", "mode": "lines", "x": numbers, "y": so_far, "name": "best so far"}
    best |= {"meta": {"role": "accent"}}
    layout = {
        "height": 320,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": "trial"}},
        "yaxis": {"title": {"text": label}, "automargin": True},
    }
    return {"data": [best, points], "layout": layout}


def ceiling(values: Sequence[float]) -> float:
    """Return the upper end of an axis of losses, which one diverging trial must not stretch."""
    ordered = sorted(values)
    third = ordered[(3 * (len(ordered) - 1)) // 4]
    return third + HEADROOM * (third - ordered[0]) if len(ordered) > 3 else ordered[-1]


def slice_figure(study: Study, key: str, axis: Range | Choices, compared: dict[int, float]) -> dict[str, Any] | None:
    """Return a chart of one setting's values against the figure that trials are compared by."""
    trials = [trial for trial in study.trials if trial.number in compared and key in trial.settings]
    if not trials:
        return None
    is_named = isinstance(axis, Choices)
    values = [compared[trial.number] for trial in trials]
    top = ceiling(values) if study.falls else max(values)
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [format_value(trial.settings[key]) if is_named else trial.settings[key] for trial in trials],
        "y": [min(value, top) for value in values],
        "text": [f"trial {trial.number}, {compared[trial.number]:.4f}" for trial in trials],
        "marker": {"symbol": ["triangle-up" if value > top else "circle" for value in values]},
        "meta": {"role": "series1"},
        "showlegend": False,
        "hovertemplate": "%{text} with %{x}<extra></extra>",
    }
    kind = "category" if is_named else "log" if axis.log else "linear"
    measured = "training loss at the first rung" if len(study.shares) > 1 else study.config.objective.label
    layout = {
        "height": 300,
        "xaxis": {"title": {"text": key}, "type": kind, **_in_order(axis)},
        "yaxis": {"title": {"text": measured}, "automargin": True},
    }
    return {"data": [points], "layout": layout}


def _in_order(axis: Range | Choices) -> dict[str, Any]:
    if isinstance(axis, Range):
        return {}
    return {"categoryorder": "array", "categoryarray": [format_value(value) for value in axis.choices]}


def importance_figure(study: Study, compared: dict[int, float]) -> dict[str, Any] | None:
    """Return a chart of the importance of each setting (PED-ANOVA, Watanabe et al. 2023); None for too few trials."""
    if len(study.config.space) < 2 or len(compared) < MIN_TRIALS_FOR_IMPORTANCE:
        return None
    import optuna

    known = optuna_study(study.config, [trial for trial in study.trials if trial.number in compared])
    directed = optuna.create_study(direction="minimize" if study.falls else "maximize")
    for seen in known.get_trials(deepcopy=False):
        value = compared[seen.user_attrs["trial"]]
        kept = {"params": seen.params, "distributions": seen.distributions}
        directed.add_trial(optuna.trial.create_trial(value=value, **kept))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        shares = optuna.importance.get_param_importances(directed, evaluator=evaluator)
    except (RuntimeError, ValueError) as error:
        log.info("importances of study %s: %s", study.name, error)
        return None
    ordered = sorted(shares.items(), key=lambda one: one[1])
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [share for _, share in ordered],
        "y": [key for key, _ in ordered],
        "meta": {"role": "accent"},
        "hovertemplate": "%{y}: %{x:.0%}<extra></extra>",
    }
    layout = {"height": 90 + 44 * len(ordered), "xaxis": {"tickformat": ".0%"}, "yaxis": {"automargin": True}}
    return {"data": [bars], "layout": layout}


BEST, PAGE = "best.toml", "page.html"


def lines(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return a line for each trial: its settings, its progress, and its results."""
    return [
        {
            "trial": trial.number,
            "by": trial.origin,
            "settings": dict(trial.settings),
            "share": trial.share,
            "loss": next((stop.loss for stop in reversed(trial.stops) if stop.loss is not None), None),
            "value": trial.value,
            "stderr": trial.stderr,
            "seconds": trial.seconds,
            "built": list(dict.fromkeys(stage for stop in trial.stops for stage in stop.built)),
            "state": trial.state,
            "cause": trial.cause,
            "run_id": trial.run_id,
        }
        for trial in trials
    ]


def write_results(study: Study) -> dict[str, Any]:
    """Write the best recipe and the page, and return their paths and the best trial. A page that cannot be drawn is
    logged, and does not end the search."""
    best = study.best
    found: dict[str, Any] = {
        "study": study.name,
        "folder": str(study.folder),
        "trials": len(study.trials),
        "best": None,
        "recipe": None,
        "page": None,
    }
    if best is not None:
        found["best"] = lines([best])[0]
        found["recipe"] = str(_write_best(study, best))
    try:
        found["page"] = str(write_page(study, lines(study.trials), study.folder / PAGE))
    except Exception:
        log.exception("the page of study %s could not be drawn", study.name)
    return {**found, "told": _summary(study, best)}


def _summary(study: Study, best: Trial | None) -> str:
    count = f"{len(study.trials)} trials"
    if best is None or best.value is None:
        return f"{count}; none is complete"
    return f"{count}; {study.config.objective.label} {best.value:.4f} with {format_settings(best.settings)}"


def _write_best(study: Study, best: Trial) -> Path:
    """Write the recipe's text with the best settings, `{recipe}` in paths replaced by its folder; return the file."""
    source = study.request.recipe.resolve()
    text = source.read_text(encoding="utf-8").replace("{recipe}", str(source.parent))
    document = parse_editable(text)
    document.pop("search", None)
    for setting in study.request.settings:
        apply_setting(document, setting)
    for key, value in best.settings.items():
        apply_setting(document, as_setting(key, value))
    document["name"] = f"{study.base.name}, best of search {study.name}"[:80]
    value = "" if best.value is None else f", {study.config.objective.label} {best.value:.5g}"
    head = f"# Trial {best.number} of {len(study.trials)} of the search {study.name}{value}: {_described(best)}.\n"
    path = study.folder / BEST
    write_atomically(path, (head + tomlkit.dumps(document)).encode())
    return path


def _described(trial: Trial) -> str:
    return ", ".join(f"{key} = {format_value(value)}" for key, value in trial.settings.items()) or "unchanged"


def print_study(study: Study, found: dict[str, Any], console: Console) -> None:
    """Print the trials as a table, the best one's settings, and how to run them."""
    best = found["best"]
    console.print(trials_table(study, None if best is None else best["trial"]))
    if best is None:
        console.print(escape(found["told"]))
        return
    console.print(f"best: trial {best['trial']}, {escape(study.config.objective.label)} [bold]{best['value']:.4f}[/]")
    for key, value in best["settings"].items():
        console.print(f"    {key} = {format_value(value)}", markup=False)
    console.print(f"run it: bessemer run {found['recipe']} --root {study.root}", markup=False)
    if found["page"]:
        console.print(f"page: {found['page']}", markup=False)


def trials_table(study: Study, best: int | None) -> Table:
    """Return a row for each trial; `built` are the stages that no earlier run had built."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    keys = list(study.config.space)
    for column in (
        "trial",
        "by",
        *(key.rpartition(".")[2] for key in keys),
        "of training",
        "loss",
        "objective",
        "time",
    ):
        table.add_column(column, justify="left" if column == "by" else "right")
    table.add_column("built")
    table.add_column("state")
    for line in lines(study.trials):
        error = "" if line["stderr"] is None else f" ± {line['stderr']:.4f}"
        table.add_row(
            str(line["trial"]),
            escape(line["by"]),
            *(escape(format_value(line["settings"][key])) if key in line["settings"] else "" for key in keys),
            f"{line['share']:.0%}",
            "" if line["loss"] is None else f"{line['loss']:.4f}",
            "" if line["value"] is None else f"{line['value']:.4f}{error}",
            format_duration(line["seconds"]),
            ", ".join(line["built"]),
            escape(line["cause"] or line["state"]),
            style="bold" if line["trial"] == best else "",
        )
    return table
