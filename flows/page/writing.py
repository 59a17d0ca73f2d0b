"""Puts the run page together: findings, examples and charts into one HTML file beside the run's record."""

import html
import importlib.resources
import json
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from flows.base_model import base_model_told
from flows.conservation import conservation_line
from flows.findings import DICTIONARIES, FINDINGS, finders, gone_artifacts, open_artifacts
from flows.gate import gate_told
from flows.heat import trained_heat
from flows.measures import MEASURES, OF_METRIC, line_told
from flows.page.charts import bits_figure, duplicates_figure, removed_figure, scores_figure
from flows.page.examples import leaked_passages, rejected, removals
from flows.page.heat_chart import MOST_COLUMNS, heat_figure
from flows.page.training_chart import training_figure
from flows.record import RECORD
from flows.wording import clock, compact, duration, language_word, loss_unit, rows_told, shots_word, size
from model.durable import write_atomically
from model.errors import BessemerError
from tasks.artifact import Artifact

PAGE = "page.html"
MOST_RULES = 40
MOST_SAMPLES = 12
MAIN_METRIC = "acc"
COMPRESSORS = (("model", "this model"), ("5gram", "5-gram"), ("unigram", "token unigram"), ("xz", "xz"))
"""Whose bits per byte are told, and their names; one without a figure has no column."""
HEADLINE_MEASURES = ("masked_accuracy", "next_accuracy", "target_nats_per_token", "target_bits_per_byte")
HERE = importlib.resources.files("flows.page")

log = logging.getLogger(__name__)
Value = TypeVar("Value")


def write_page(run_folder: Path, root: Path) -> Path:
    """Write `page.html` of the run whose record is in `run_folder`, and return its path.

    A run that failed or covered some stages only has a page too. A section that cannot be drawn says why instead: no
    page may end a run that trained for days. The page that a run made at its end stays, and its path is returned, where
    less could be shown now: an artifact is gone or damaged.
    """
    record = json.loads((run_folder / RECORD).read_text(encoding="utf-8"))
    fuller = Path(record["page"]) if record.get("page") and Path(record["page"]).is_file() else None
    gone = [f"{stage}: {told}" for stage, told in gone_artifacts(record).items()]
    if gone and fuller is not None:
        log.warning("%s stays as the run made it, for less could be shown now: %s", fuller, "; ".join(gone))
        return fuller
    problems: list[str] = []
    view = _view(record, run_folder, root, partial(_attempt, problems))
    path = run_folder / PAGE
    if problems and fuller is not None:
        lost = ", ".join(problem.partition(":")[0] for problem in problems)
        log.warning("%s stays as the run made it, for less could be shown now: no %s", fuller, lost)
        return fuller
    try:
        page = _environment().get_template("template.html").render(**view, problems=problems, gone=gone)
    except Exception as error:
        log.exception("the run page could not be made")
        page = f"<!doctype html><title>Bessemer</title><pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
    if not problems and not gone:
        write_atomically(run_folder / FINDINGS, json.dumps(view["findings"]).encode())
    write_atomically(path, page.encode("utf-8", errors="replace"))
    return path


def _attempt(problems: list[str], section: str, make: Callable[[], Value], instead: Value) -> Value:
    try:
        return make()
    except Exception as error:
        at_fault = not isinstance(error, BessemerError)  # Damaged data need no traceback.
        log.error("the section %s of the run page could not be made: %s", section, error, exc_info=at_fault)
        problems.append(f"{section}: {type(error).__name__}: {error}")
        return instead


def _view(
    record: dict[str, Any], run_folder: Path, root: Path, attempt: Callable[[str, Callable[[], Any], Any], Any]
) -> dict[str, Any]:
    """Everything that the template shows, by name."""
    artifacts = attempt("artifacts", lambda: open_artifacts(record), {})
    found = finders(record)
    findings = {name: attempt(name, find, {} if name in DICTIONARIES else []) for name, find in found.items()}
    examples = attempt("removed documents", lambda: removals(artifacts), {})
    bits = [line for line in findings["bits_per_byte"] if line.get("model") is not None]
    sources = [line["source"] for line in findings["funnel"]]
    figures = {
        "training": attempt("training", lambda: _training(artifacts), None),
        "heat": attempt("thermometers", lambda: _heat(artifacts), None),
        "duplicates": attempt("duplicates", lambda: _duplicates(findings["duplicates"]), None),
        "removed": attempt("what rules removed", lambda: _removed(findings, sources), None),
        "bits": attempt("bits per byte", lambda: bits_figure(bits) if bits else None, None),
    }
    tables = attempt("scores", lambda: _score_tables(findings["scores"]), [])
    figures |= {f"scores{number}": table["figure"] for number, table in enumerate(tables)}
    return {
        "record": record,
        "root": str(root),
        "findings": findings,
        "errors": [entry for entry in record["stages"] if entry["outcome"] == "failed"],
        "headlines": attempt("headlines", lambda: headlines(record, findings), []),
        "colours": _colours(sources),
        "cleaned": [line for line in findings["removed"] if line["stage"] == "clean"][:MOST_RULES],
        "rules": attempt("rules", lambda: _rules(findings["removed"], examples), {}),
        "cuts": [
            {"stage": key[0], "rule": key[2], "examples": rows} for key, rows in examples.items() if key[1] == "cut"
        ],
        "rejected": attempt("rejected records", lambda: rejected(artifacts), {}),
        "passages": attempt("leaks", lambda: leaked_passages(artifacts), {}),
        "compressors": [named for named in COMPRESSORS if _any_of(findings["bits_per_byte"], named[0])],
        "modelled": bool(bits),
        "measures": attempt("measures", lambda: _measures(findings["measures"]), {}),
        "tables": tables,
        "samples": attempt("samples", lambda: _samples(artifacts), []),
        "conservation": attempt("conservation", lambda: conservation_line(findings["conservation"]), ""),
        "recipe": attempt("recipe", lambda: _recipe(run_folder), ""),
        "figures": {name: figure for name, figure in figures.items() if figure},
        "plotly": attempt("plotly", _plotly, "") if any(figures.values()) else "",
        "style": (HERE / "style.css").read_text(encoding="utf-8"),
        "draw": (HERE / "draw.js").read_text(encoding="utf-8"),
    }


def _any_of(lines: list[dict[str, Any]], key: str) -> bool:
    return any(line.get(key) is not None for line in lines)


def headlines(record: dict[str, Any], findings: dict[str, Any]) -> list[dict[str, str]]:
    """The few numbers at the top: what a reader asks first."""
    found: list[dict[str, str]] = []
    whole = next((line for line in findings["bits_per_byte"] if line["source"] == "all"), None)
    if whole is not None and whole.get("model") is not None:
        below = f"{1 - whole['model'] / whole['unigram']:.0%} under the unigram" if whole.get("unigram") else ""
        found.append(
            {"value": f"{whole['model']:.3f}", "name": "bits per byte, held out, mean of the sources", "note": below}
        )
    found += [
        {
            "value": OF_METRIC[line["metric"]].told(line["value"]),
            "name": f"{OF_METRIC[line['metric']].words}, held out, mean of the sources",
            "note": line_told(line).partition(" ")[2].strip("()"),
        }
        for line in findings["measures"]
        if line["source"] == "all" and line["value"] is not None and line["metric"] in HEADLINE_MEASURES
    ]
    training = findings["training"]
    if training.get("last_loss") is not None:
        note = f"from {training['first_loss']:.2f} in {training['steps']:,} steps"
        name = f"training loss, {loss_unit(findings['rows'])}"
        found.append({"value": f"{training['last_loss']:.2f}", "name": name, "note": note})
        found.append({"value": compact(training["tokens"]), "name": "tokens trained", "note": ""})
    documents = findings["conservation"].get("documents")
    if documents:
        kept = documents.get("packed", documents.get("kept", 0))
        found.append({"value": f"{kept:,}", "name": "documents kept", "note": f"of {documents['read']:,} read"})
    if findings["leaks"]:
        leaked, items = (sum(line[key] for line in findings["leaks"]) for key in ("leaked", "items"))
        found.append({"value": f"{leaked:,}", "name": "benchmark items found leaked", "note": f"of {items:,}"})
    if record.get("finished"):
        took = duration(record["finished"] - record["started"])
        found.append({"value": took, "name": "from start to end", "note": ""})
    return found


def _measures(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a BERT or a T5 is measured by: `names` of those that there are, `lines` a source with a cell for each."""
    present = [measure for measure in MEASURES if any(line["metric"] == measure.metric for line in lines)]
    by_source: dict[str, dict[str, str]] = {}
    for line in lines:
        by_source.setdefault(line["source"], {})[line["metric"]] = line_told(line)
    notes = list(dict.fromkeys(f"{line['source']}: {line['note']}" for line in lines if line["source"] != "all"))
    ordered = sorted(by_source.items(), key=lambda item: (item[0] == "all", item[0]))
    rows = [{"source": source, "cells": [cells.get(m.metric, "-") for m in present]} for source, cells in ordered]
    return {"names": [measure.words for measure in present], "lines": rows, "notes": notes}


def _training(artifacts: dict[str, Artifact]) -> dict[str, Any] | None:
    if "train" not in artifacts or not artifacts["train"].rows("metrics"):
        return None
    train = artifacts["train"]
    return training_figure(*(train.table(name) for name in ("metrics", "steps", "events")))


def _heat(artifacts: dict[str, Artifact]) -> dict[str, Any] | None:
    """The figure of what the thermometers read; None for a training without."""
    heat = trained_heat(artifacts["train"], MOST_COLUMNS) if "train" in artifacts else None
    return None if heat is None else heat_figure(heat)


def _duplicates(duplicates: dict[str, Any]) -> dict[str, Any] | None:
    shown = duplicates.get("s_curve") and duplicates.get("planted", {}).get("planted")
    return duplicates_figure(duplicates) if shown else None


def _score_tables(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By benchmark: accuracy as lines of shots with a cell for each subset, its figure, and all other metrics."""
    tables: list[dict[str, Any]] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        accuracy = [row for row in mine if row["metric"] == MAIN_METRIC]
        lines = [
            {"shots": shots, "cells": {row["subset"]: row for row in accuracy if row["shots"] == shots}}
            for shots in sorted({row["shots"] for row in accuracy})
        ]
        notes = list(dict.fromkeys(f"{shots_word(r['shots'])}: {r['note']}" for r in accuracy if r["note"]))
        others = [row for row in mine if row["metric"] != MAIN_METRIC]
        figure = scores_figure(accuracy) if any(row["value"] is not None for row in accuracy) else None
        tables.append({"task": task, "lines": lines, "notes": notes, "others": others, "figure": figure})
    return tables


def _removed(findings: dict[str, Any], sources: list[str]) -> dict[str, Any] | None:
    """The figure of what cleaning removed; None where it removed nothing."""
    lines = [line for line in findings["removed"] if line["stage"] == "clean"][:MOST_RULES]
    before = {line["source"]: line.get("sample", 0) for line in findings["funnel"]}
    return removed_figure(lines, before, _colours(sources)) if lines else None


def _colours(sources: list[str]) -> dict[str, int]:
    return {source: number % 12 for number, source in enumerate(sources)}


def _rules(removed: list[dict[str, Any]], examples: dict[tuple[str, str, str], Any]) -> dict[str, list[dict[str, Any]]]:
    """Stage, in the order of the road -> its rules with some of the documents that they dropped."""
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for line in removed[:MOST_RULES]:
        shown = examples.get((line["stage"], "drop", line["rule"]), [])
        by_stage.setdefault(line["stage"], []).append({**line, "examples": shown})
    return by_stage


def _samples(artifacts: dict[str, Artifact]) -> list[dict[str, Any]]:
    if "evaluate" not in artifacts or not artifacts["evaluate"].files("samples"):
        return []
    samples = artifacts["evaluate"].table("samples").to_pylist()[:MOST_SAMPLES]
    return [{**sample, "text": _line_runs_told(sample["text"])} for sample in samples]


def _line_runs_told(text: str) -> str:
    """Runs of empty lines as one line that counts them: a weak model writes little else."""
    return re.sub(r"(?:[ \t]*\n){3,}", lambda run: f"\n[{run[0].count(chr(10))} line ends]\n", text)


def _recipe(run_folder: Path) -> str:
    for name in ("recipe.toml", "recipe.json"):
        if (run_folder / name).exists():
            return (run_folder / name).read_text(encoding="utf-8")
    return ""


def _plotly() -> str:
    return (importlib.resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _environment() -> jinja2.Environment:
    """Autoescape is on: documents, paths and evidence hold HTML that must be shown, never run."""
    loader = jinja2.FunctionLoader(lambda name: (HERE / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        duration=duration,
        compact=compact,
        size=size,
        clock=clock,
        shots=shots_word,
        rows_told=rows_told,
        base_model_told=base_model_told,
        gate_told=gate_told,
        language_word=language_word,
        inline_script=inline_script,
    )
    return environment


def inline_script(value: Any) -> str:
    """JSON that may stand within a script element: nothing in it can end the element or begin a comment."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
