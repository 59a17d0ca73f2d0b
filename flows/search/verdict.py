"""What a search found: the best trial, a table of all, its settings as a recipe, and a page."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit

from flows.recipe import apply_setting
from flows.search.book import Trial
from flows.search.proposing import told_settings, told_value
from flows.search.study import Study
from flows.trial_runs import as_setting
from model.durable import write_atomically

BEST, PAGE = "best.toml", "page.html"

log = logging.getLogger(__name__)


def lines(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """A line a trial: its settings, how far it came, and what it was worth."""
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
    """Write the best recipe and the page; returns where they are and what the best trial is. A page that cannot be
    drawn ends no search."""
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
        from flows.search.picture import write_page

        found["page"] = str(write_page(study, lines(study.trials), study.folder / PAGE))
    except Exception:
        log.exception("the page of study %s could not be drawn", study.name)
    return {**found, "told": _told(study, best)}


def _told(study: Study, best: Trial | None) -> str:
    count = f"{len(study.trials)} trials"
    if best is None or best.value is None:
        return f"{count}; none came to its end"
    return f"{count}; {study.config.objective.told} {best.value:.4f} with {told_settings(best.settings)}"


def _write_best(study: Study, best: Trial) -> Path:
    """The recipe's own text with the best settings written into it; `{recipe}` in paths stays the recipe's folder."""
    source = study.asked.recipe.resolve()
    text = source.read_text(encoding="utf-8").replace("{recipe}", str(source.parent))
    document = tomlkit.parse(text)
    document.pop("search", None)
    for setting in study.asked.settings:
        apply_setting(document, setting)
    for key, value in best.settings.items():
        apply_setting(document, as_setting(key, value))
    document["name"] = f"{study.base.name}, best of search {study.name}"[:80]
    value = "" if best.value is None else f", {study.config.objective.told} {best.value:.5g}"
    head = f"# Trial {best.number} of {len(study.trials)} of the search {study.name}{value}: {_described(best)}.\n"
    path = study.folder / BEST
    write_atomically(path, (head + tomlkit.dumps(document)).encode())
    return path


def _described(trial: Trial) -> str:
    return ", ".join(f"{key} = {told_value(value)}" for key, value in trial.settings.items()) or "as it was"
