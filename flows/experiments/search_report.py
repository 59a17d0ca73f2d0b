"""Results of a search: the best recipe, and the report of all trials."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import tomlkit

from flows.experiments.samplers import format_settings, format_value, optuna_study
from flows.experiments.search_config import Choices, Range
from flows.experiments.studies import ReportFiles, write_report
from flows.experiments.study import Study
from flows.experiments.trial_log import Trial
from flows.experiments.trials import edited_recipe
from flows.metrics.formatting import format_duration
from flows.recipe.load import as_setting, with_text
from flows.reports.charts.figure import LEGEND, Figure, Trace, axis, bars, figure, points, reach
from flows.reports.document import Chart, Document, Section, Table, Tile
from model.files import write_atomically
from tasks.common.numeric import Z_95

MIN_TRIALS_FOR_IMPORTANCE = 6
"""Least number of trials for importances, which are noise with fewer."""

HEADROOM = 3.0
"""Height of an axis above the third quartile, in distances from the best value to it; larger values are at the edge."""

log = logging.getLogger(__name__)


class SearchOutcome(TypedDict):
    """The best trial, its recipe, and the outcome in words."""

    study: str
    folder: str
    trials: int
    best: dict[str, Any] | None
    """As `Trial.to_json` has it."""
    recipe: str | None
    outcome: str


class SearchFound(SearchOutcome, ReportFiles):
    """What a search found, and its files."""


def write_results(study: Study) -> SearchFound:
    """Write the best recipe and the report."""
    best = study.best
    found: SearchOutcome = {
        "study": study.name,
        "folder": str(study.folder),
        "trials": len(study.trials),
        "best": None if best is None else best.to_json(),
        "recipe": None if best is None else str(_write_best(study, best)),
        "outcome": _summary(study, best),
    }
    return {**found, **write_report(found, search_document(study), study.folder)}


def _summary(study: Study, best: Trial | None) -> str:
    count = f"{len(study.trials)} trials"
    if best is None or best.value is None:
        return f"{count}; none is complete"
    value = f"{study.config.objective.label} {best.value:.4f}"
    return f"{count}; best: trial {best.number}, {value} with {format_settings(best.settings)}"


def _write_best(study: Study, best: Trial) -> Path:
    """Write the recipe's text with the best settings, `{recipe}` in paths replaced by its folder; return the file."""
    settings = [as_setting(key, value) for key, value in best.settings.items()]
    path, given = study.request.recipe, [*study.request.settings, *settings]
    document = edited_recipe(path, with_text(path, study.root, given), "search")
    document["name"] = f"{study.base.name}, best of search {study.name}"[:80]
    value = "" if best.value is None else f", {study.config.objective.label} {best.value:.5g}"
    changed = ", ".join(f"{key} = {format_value(chosen)}" for key, chosen in best.settings.items()) or "unchanged"
    head = f"# Trial {best.number} of {len(study.trials)} of the search {study.name}{value}: {changed}.\n"
    path = study.folder / "best.toml"
    write_atomically(path, (head + tomlkit.dumps(document)).encode())
    return path


def search_document(study: Study) -> Document:
    """Return the report: the best settings, how far trials came, what each setting did, and all trials."""
    best, keys = study.best, list(study.config.space)
    objective = study.config.objective
    compared = {trial.number: value for trial in study.trials if (value := compared_value(study, trial)) is not None}
    lead = f"{_summary(study, best)}. {objective.label}, {objective.direction}d; proposals by {study.config.sampler}"
    if len(study.shares) > 1:
        shares = ", ".join(f"{share:.0%}" for share in study.shares[:-1])
        lead += f"; one of {study.config.eta} trials goes on at {shares} of the training"
    tiles: list[Tile] = []
    if best is not None:
        tiles = [Tile(f"{best.value:.4f}", objective.label, f"trial {best.number}")]
        tiles += [Tile(format_value(value), key) for key, value in best.settings.items()]
    curves = curves_figure(study) if len(study.shares) > 1 else None
    history = history_figure(study.trials, objective.label, objective.direction)
    slices = [
        Chart(f"slice{number}", slice_figure(study, key, values, compared), key)
        for number, (key, values) in enumerate(study.config.space.items())
    ]
    sections = (
        Section(
            "All trials",
            [trials_table(study.trials, keys, None if best is None else best.number)],
            "± 1.96 standard errors of the objective, over documents or items.",
        ),
        Section(
            "How far trials came",
            [Chart("curves", curves)],
            "Training loss at each rung. The best trial in colour, the recipe's own in blue, all others grey; values"
            " far above are drawn at the upper edge.",
        ),
        Section("Finished trials", [Chart("history", history)], "The objective of each, and the best so far."),
        Section(
            "What mattered",
            [Chart("importance", importance_figure(study, compared))],
            "Share of the difference between the better trials and the others that each setting makes, by PED-ANOVA.",
        ),
        Section("What each setting did", slices, "Each point is a trial; triangles are values far above."),
    )
    shown = [section for section in sections if section.has_content]
    return Document(f"search {study.name}", shown, f"{len(study.trials)} trials", f"{lead}.", tiles)


def trials_table(trials: Sequence[Trial], keys: Sequence[str], best: int | None) -> Table:
    short = (key.rpartition(".")[2] for key in keys)
    columns = ("trial", "by", *short, "of training", "loss", "objective", "time", "built", "state")
    rows = []
    for trial in trials:
        error = "" if trial.stderr is None else f" ± {Z_95 * trial.stderr:.4f}"
        settings = (format_value(trial.settings[key]) if key in trial.settings else "" for key in keys)
        rows.append(
            (
                trial.number,
                trial.origin,
                *settings,
                f"{trial.share:.0%}",
                "" if trial.last_loss is None else f"{trial.last_loss:.4f}",
                "" if trial.value is None else f"{trial.value:.4f}{error}",
                format_duration(trial.seconds),
                ", ".join(trial.built),
                trial.cause or trial.state,
            )
        )
    marked = [number for number, trial in enumerate(trials) if trial.number == best]
    return Table(columns, rows, texts=("by", "built", "state"), marked=marked)


def compared_value(study: Study, trial: Trial) -> float | None:
    """Return the figure that all trials have: the loss at the first rung, or the objective without rungs."""
    if len(study.shares) == 1:
        return trial.value
    stop = next((stop for stop in trial.stops if stop.rung == 0), None)
    return None if stop is None else stop.loss


def curves_figure(study: Study) -> Figure | None:
    """Return a chart of training loss at rungs; the best trial and the recipe's own are highlighted."""
    best = study.best
    top = ceiling([stop.loss for trial in study.trials for stop in trial.stops if stop.loss is not None] or [0.0])
    drawn: list[tuple[int, Trace]] = []
    for trial in study.trials:
        stops = [stop for stop in trial.stops if stop.loss is not None]
        if not stops:
            continue
        order = 2 if trial is best else 1 if trial.origin == "recipe" else 0
        settings = ", ".join(f"{key.rpartition('.')[2]} {format_value(value)}" for key, value in trial.settings.items())
        curve = points(
            ("muted1", "series1", "accent")[order],
            [stop.step / stop.steps for stop in stops],
            [min(stop.loss or 0.0, top) for stop in stops],
            f"trial {trial.number}: %{{text}}<br>{settings}",
            mode="lines+markers",
            text=[f"{stop.loss:.4f}" for stop in stops],
            name=f"trial {trial.number}",
            showlegend=False,
        )
        drawn.append((order, curve))
    if not drawn:
        return None
    # Highlighted curves are drawn last, above the others.
    data = [curve for _, curve in sorted(drawn, key=lambda one: one[0])]
    across, up = axis("share of the training", tickformat=".0%"), axis("training loss", automargin=True)
    return figure(data, 360, xaxis=across, yaxis=up)


def history_figure(trials: Sequence[Trial], label: str, direction: str) -> Figure | None:
    """Return a chart of the objective of each complete trial, and the best so far."""
    ended = [(trial, trial.value) for trial in trials if trial.value is not None]
    if not ended:
        return None
    better = min if direction == "minimize" else max
    numbers, values = [trial.number for trial, _ in ended], [value for _, value in ended]
    so_far = [better(values[: place + 1]) for place in range(len(values))]
    errors = reach([Z_95 * (trial.stderr or 0.0) for trial, _ in ended])
    best = points("accent", numbers, so_far, "%{y:.4f}", mode="lines", name="best so far")
    each = points("series1", numbers, values, "trial %{x}: %{y:.4f}", name="trial", error_y=errors)
    return figure([best, each], 320, legend=LEGEND, xaxis=axis("trial"), yaxis=axis(label, automargin=True))


def ceiling(values: Sequence[float]) -> float:
    """Return the upper end of an axis of losses, which one diverging trial must not stretch."""
    ordered = sorted(values)
    third = ordered[(3 * (len(ordered) - 1)) // 4]
    return third + HEADROOM * (third - ordered[0]) if len(ordered) > 3 else ordered[-1]


def slice_figure(study: Study, key: str, values: Range | Choices, compared: dict[int, float]) -> Figure | None:
    """Return a chart of one setting's values against the figure that trials are compared by."""
    trials = [trial for trial in study.trials if trial.number in compared and key in trial.settings]
    if not trials:
        return None
    is_named = isinstance(values, Choices)
    measured = [compared[trial.number] for trial in trials]
    top = ceiling(measured) if study.falls else max(measured)
    dots = points(
        "series1",
        [format_value(trial.settings[key]) if is_named else trial.settings[key] for trial in trials],
        [min(value, top) for value in measured],
        "%{text} with %{x}",
        text=[f"trial {trial.number}, {compared[trial.number]:.4f}" for trial in trials],
        marker={"symbol": ["triangle-up" if value > top else "circle" for value in measured]},
        showlegend=False,
    )
    across = axis(key, type="category" if is_named else "log" if values.log else "linear")
    if isinstance(values, Choices):
        across |= {"categoryorder": "array", "categoryarray": [format_value(value) for value in values.choices]}
    label = "training loss at the first rung" if len(study.shares) > 1 else study.config.objective.label
    return figure([dots], 300, xaxis=across, yaxis=axis(label, automargin=True))


def importance_figure(study: Study, compared: dict[int, float]) -> Figure | None:
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
    lengths, names = [share for _, share in ordered], [key for key, _ in ordered]
    shown = bars("accent", lengths, names, "%{y}: %{x:.0%}")
    height = 90 + 44 * len(ordered)
    return figure([shown], height, xaxis={"tickformat": ".0%"}, yaxis={"automargin": True})
