"""The page of a study, one file that opens offline: curves of all trials, what each setting did, and the table."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.page.rendering import write_drawn
from flows.search.book import Trial
from flows.search.config import Choices, Range
from flows.search.proposing import study_of, told_value
from flows.search.study import Study

FEWEST_FOR_IMPORTANCE = 6
"""Trials below which shares of importance are noise."""
REACH = 3.0
"""Times the way from the best value to the third quarter that is drawn above it; values beyond stand at the edge."""

log = logging.getLogger(__name__)


def write_page(study: Study, lines: list[dict[str, Any]], path: Path) -> Path:
    """Write the page and return its path."""
    best = study.best
    view = {
        "study": study,
        "keys": list(study.config.space),
        "lines": lines,
        "best": None if best is None else best.number,
        "told": told_value,
    }
    write_drawn("flows.search", "page.html", _figures(study, lines), path, **view)
    return path


def _figures(study: Study, lines: list[dict[str, Any]]) -> dict[str, dict[str, Any] | None]:
    compared = {trial.number: value for trial in study.trials if (value := compared_value(study, trial)) is not None}
    figures = {"curves": curves_figure(study) if len(study.shares) > 1 else None}
    figures["history"] = history_figure(lines, study.config.objective.told, study.config.objective.direction)
    for number, (key, axis) in enumerate(study.config.space.items()):
        figures[f"slice{number}"] = slice_figure(study, key, axis, compared)
    figures["importance"] = importance_figure(study, compared)
    return figures


def compared_value(study: Study, trial: Trial) -> float | None:
    """What all trials have: the loss at the first rung, or the objective where there is none."""
    if len(study.shares) == 1:
        return trial.value
    stop = next((stop for stop in trial.stops if stop.rung == 0), None)
    return None if stop is None else stop.loss


def curves_figure(study: Study) -> dict[str, Any] | None:
    """Training loss at rungs by share of the training; the best trial's and the recipe's own stand out."""
    best = study.best
    data: list[dict[str, Any]] = []
    top = ceiling([stop.loss for trial in study.trials for stop in trial.stops if stop.loss is not None] or [0.0])
    for trial in study.trials:
        stops = [stop for stop in trial.stops if stop.loss is not None]
        if not stops:
            continue
        role = "accent" if trial is best else "series1" if trial.origin == "recipe" else "muted1"
        settings = ", ".join(f"{key.rpartition('.')[2]} {told_value(value)}" for key, value in trial.settings.items())
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
    # What stands out is drawn last, above the others.
    data.sort(key=lambda trace: ("muted1", "series1", "accent").index(trace["meta"]["role"]))
    layout = {
        "height": 360,
        "xaxis": {"title": {"text": "share of the training"}, "tickformat": ".0%"},
        "yaxis": {"title": {"text": "training loss"}, "automargin": True},
    }
    return {"data": data, "layout": layout} if data else None


def history_figure(lines: list[dict[str, Any]], told: str, direction: str) -> dict[str, Any] | None:
    """The objective of each trial that came to its end, and the best so far."""
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
        "yaxis": {"title": {"text": told}, "automargin": True},
    }
    return {"data": [best, points], "layout": layout}


def ceiling(values: Sequence[float]) -> float:
    """Where an axis of losses ends: one trial that got out of hand must not press all others into a line."""
    ordered = sorted(values)
    third = ordered[(3 * (len(ordered) - 1)) // 4]
    return third + REACH * (third - ordered[0]) if len(ordered) > 3 else ordered[-1]


def slice_figure(study: Study, key: str, axis: Range | Choices, compared: dict[int, float]) -> dict[str, Any] | None:
    """One setting's values against what all trials are compared by."""
    trials = [trial for trial in study.trials if trial.number in compared and key in trial.settings]
    if not trials:
        return None
    is_named = isinstance(axis, Choices)
    values = [compared[trial.number] for trial in trials]
    top = ceiling(values) if study.falls else max(values)
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [told_value(trial.settings[key]) if is_named else trial.settings[key] for trial in trials],
        "y": [min(value, top) for value in values],
        "text": [f"trial {trial.number}, {compared[trial.number]:.4f}" for trial in trials],
        "marker": {"symbol": ["triangle-up" if value > top else "circle" for value in values]},
        "meta": {"role": "series1"},
        "showlegend": False,
        "hovertemplate": "%{text} with %{x}<extra></extra>",
    }
    kind = "category" if is_named else "log" if axis.log else "linear"
    measured = "training loss at the first rung" if len(study.shares) > 1 else study.config.objective.told
    layout = {
        "height": 300,
        "xaxis": {"title": {"text": key}, "type": kind, **_in_order(axis)},
        "yaxis": {"title": {"text": measured}, "automargin": True},
    }
    return {"data": [points], "layout": layout}


def _in_order(axis: Range | Choices) -> dict[str, Any]:
    if isinstance(axis, Range):
        return {}
    return {"categoryorder": "array", "categoryarray": [told_value(value) for value in axis.choices]}


def importance_figure(study: Study, compared: dict[int, float]) -> dict[str, Any] | None:
    """How much of the difference between good and other trials each setting makes (PED-ANOVA, Watanabe et al. 2023)."""
    if len(study.config.space) < 2 or len(compared) < FEWEST_FOR_IMPORTANCE:
        return None
    import optuna

    known = study_of(study.config, [trial for trial in study.trials if trial.number in compared])
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
