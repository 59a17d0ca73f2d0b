"""Everything that the run page shows, by name: findings, examples and figures of one run.

Puts the run page together: one HTML file beside the run's record.

The few numbers at the top of the run page: what a reader asks first.
"""

import html
import json
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.metrics.accounting import describe_conservation
from flows.metrics.activation_stats import training_activation_map
from flows.metrics.formatting import format_count, format_duration, loss_unit
from flows.metrics.heldout import METRICS_BY_NAME, format_heldout_metric
from flows.metrics.run_metrics import DICTIONARIES, METRICS_FILE, metric_readers, missing_artifacts, open_artifacts
from flows.reports.charts.data import funnel_figure, leak_figure, lineage_figure, mixture_figure, token_figure
from flows.reports.charts.heatmap import MOST_COLUMNS, heat_figure
from flows.reports.charts.scores import (
    bits_figure,
    duplicates_figure,
    measure_table,
    removed_figure,
    score_tables,
    scores_figure,
)
from flows.reports.charts.training import speed_figure, training_figure
from flows.reports.page.examples import fates_of, leaked_passages, rejected, removals
from flows.reports.page.render import render
from flows.reports.page.sections import duplicate_pairs, shown_steps
from flows.runs.record import PAGE, RECORD, read_recipe, same_artifacts
from flows.runs.roots import put_record
from model.checksummed_json import write_sealed
from model.errors import BessemerError
from model.files import NOT_WRITABLE, write_atomically
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.remote.metadata import read_record

if TYPE_CHECKING:
    from flows.runs.run import Run

MOST_RULES = 40

MOST_RULES_DRAWN = 12

MOST_SAMPLES = 12

SOURCE_COLOURS = 12

COMPRESSORS = (("model", "this model"), ("5gram", "5-gram"), ("unigram", "token unigram"), ("xz", "xz"))
"""Whose bits per byte are told, and their names; one without a figure has no column."""

Attempt = Callable[[str, Callable[[], Any], Any], Any]
"""Section, how it is made, and what stands in its place where that fails."""


def view_of(record: dict[str, Any], run_folder: Path, root: Path, attempt: Attempt) -> dict[str, Any]:
    """Everything that the template shows; a section that cannot be made has its empty value."""
    artifacts = attempt("artifacts", lambda: open_artifacts(record), {})
    found = metric_readers(record)
    findings = {name: attempt(name, find, {} if name in DICTIONARIES else []) for name, find in found.items()}
    examples = attempt("removed documents", lambda: removals(artifacts), {})
    steps = attempt("steps", lambda: shown_steps(artifacts), [])
    bits = [line for line in findings["bits_per_byte"] if line.get("model") is not None]
    colours = _colours([line["source"] for line in findings["funnel"]])
    return {
        "record": record,
        "root": str(root),
        "findings": findings,
        "errors": [entry for entry in record["stages"] if entry["outcome"] == "failed"],
        "headlines": attempt("headlines", lambda: headlines(record, findings), []),
        "colours": colours,
        "cleaned": [line for line in findings["removed"] if line["stage"] == "clean"][:MOST_RULES],
        "rules": attempt("rules", lambda: _rules(findings["removed"], examples), {}),
        "cuts": [
            {"stage": key[0], "rule": key[2], "examples": rows} for key, rows in examples.items() if key[1] == "cut"
        ],
        "pairs": attempt("pairs of duplicates", lambda: duplicate_pairs(artifacts), []),
        "rejected": attempt("rejected records", lambda: rejected(artifacts), {}),
        "passages": attempt("leaks", lambda: leaked_passages(artifacts), {}),
        "steps": steps,
        "fates": attempt("fates", lambda: fates_of(record, artifacts, _shown_documents(examples, steps)), {}),
        "compressors": [named for named in COMPRESSORS if _any_of(findings["bits_per_byte"], named[0])],
        "modelled": bool(bits),
        "measures": attempt("measures", lambda: measure_table(findings["measures"]), {}),
        "tables": attempt("scores", lambda: score_tables(findings["scores"], findings["gaps"]), []),
        "samples": attempt("samples", lambda: _samples(artifacts), []),
        "conservation": attempt("conservation", lambda: describe_conservation(findings["conservation"]), ""),
        "recipe": attempt("recipe", lambda: _recipe(run_folder), ""),
        "figures": _figures(artifacts, findings, colours, attempt),
    }


def _figures(
    artifacts: dict[str, Artifact], findings: dict[str, Any], colours: dict[str, int], attempt: Attempt
) -> dict[str, Any]:
    """The figures that there are, by name."""
    reports = {stage: artifact.report for stage, artifact in artifacts.items()}
    outcomes = {line["stage"]: line["outcome"] for line in findings["road"]}
    bits = [line for line in findings["bits_per_byte"] if line.get("model") is not None]
    made = {
        "funnel": attempt("the way of documents", lambda: funnel_figure(reports, colours), None),
        "mixture": attempt("mixture", lambda: mixture_figure(findings["mixture"]), None),
        "removed": attempt("what rules removed", lambda: _removed(findings, colours), None),
        "duplicates": attempt("duplicates", lambda: _duplicates(findings["duplicates"]), None),
        "leaks": attempt("leaks by benchmark", lambda: leak_figure(findings["leaks"]), None),
        "tokens": attempt("tokens a character", lambda: _tokens(findings), None),
        "training": attempt("training", lambda: _training(artifacts, findings), None),
        "heat": attempt("thermometers", lambda: _heat(artifacts), None),
        "speed": attempt("speed", lambda: _speed(artifacts), None),
        "bits": attempt("bits per byte", lambda: bits_figure(bits) if bits else None, None),
        "scores": attempt("scores", lambda: scores_figure(findings["scores"]), None),
        "lineage": attempt("lineage", lambda: lineage_figure(artifacts, outcomes), None),
    }
    return {name: figure for name, figure in made.items() if figure}


def _any_of(lines: list[dict[str, Any]], key: str) -> bool:
    return any(line.get(key) is not None for line in lines)


def _shown_documents(examples: dict[Any, Any], steps: list[dict[str, Any]]) -> list[bytes]:
    """Ids of the documents that the page shows, each once."""
    removed = [bytes.fromhex(row["doc_id"]) for rows in examples.values() for row in rows]
    return list(dict.fromkeys([*removed, *(document["doc_id"] for step in steps for document in step["documents"])]))


def _training(artifacts: dict[str, Artifact], findings: dict[str, Any]) -> dict[str, Any] | None:
    if "train" not in artifacts or not artifacts["train"].rows("metrics"):
        return None
    metrics, steps, events = (artifacts["train"].table(name) for name in ("metrics", "steps", "events"))
    whole = next((line for line in findings["bits_per_byte"] if line["source"] == "all"), {})
    validation = artifacts["train"].table("validation") if artifacts["train"].rows("validation") else None
    return training_figure(
        metrics, steps, events, _bytes_per_token(artifacts, findings), whole.get("model"), validation
    )


def _bytes_per_token(artifacts: dict[str, Artifact], findings: dict[str, Any]) -> float | None:
    """UTF-8 bytes that a token of the text that training read stands for; None where a row is not plain text."""
    if findings["rows"].get("objective") != "causal_lm" or "decontaminate" not in artifacts:
        return None
    sources = artifacts["decontaminate"].report.sources
    shares = [
        (line["realised_share"], sources[line["source"]].bytes_out / line["tokens"])
        for line in findings["mixture"]
        if line["tokens"] and line["source"] in sources
    ]
    whole = sum(share for share, _ in shares)
    return sum(share * length for share, length in shares) / whole if whole else None


def _tokens(findings: dict[str, Any]) -> dict[str, Any] | None:
    languages = findings["vocabulary"].get("languages", {})
    extended = {language: line["tokens_per_character"] for language, line in languages.items() if line["characters"]}
    return token_figure(extended or findings["tokens_per_character"])


def _speed(artifacts: dict[str, Artifact]) -> dict[str, Any] | None:
    if "train" not in artifacts or not artifacts["train"].rows("perf"):
        return None
    return speed_figure(artifacts["train"].table("perf"), artifacts["train"].table("metrics"))


def _heat(artifacts: dict[str, Artifact]) -> dict[str, Any] | None:
    """The figure of what the thermometers read; None for a training without."""
    heat = training_activation_map(artifacts["train"], MOST_COLUMNS) if "train" in artifacts else None
    return None if heat is None else heat_figure(heat)


def _duplicates(duplicates: dict[str, Any]) -> dict[str, Any] | None:
    shown = duplicates.get("s_curve") and duplicates.get("planted", {}).get("planted")
    return duplicates_figure(duplicates) if shown else None


def _removed(findings: dict[str, Any], colours: dict[str, int]) -> dict[str, Any] | None:
    """The figure of what rules removed, those that removed most; None where none removed anything."""
    lines = sorted(findings["removed"], key=lambda line: -line["documents"])[:MOST_RULES_DRAWN]
    sampled = {line["source"]: line.get("sample", 0) for line in findings["funnel"]}
    return removed_figure(lines, sampled, colours) if lines else None


def _colours(sources: list[str]) -> dict[str, int]:
    return {source: number % SOURCE_COLOURS for number, source in enumerate(sources)}


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
    recipe = read_recipe(run_folder)
    return json.dumps(recipe, indent=1) if recipe else ""


log = logging.getLogger(__name__)

Value = TypeVar("Value")


def write_run_page(run: "Run") -> Path:
    """Write the page of a run that ended; return that of an earlier run where this one built nothing.

    Raises OSError where it cannot be written, unless the run failed already: its own error is the one to report.
    """
    root, record = run.context.root, run.record
    earlier = same_artifacts(root, record.data)
    page = Path(earlier["page"]) if earlier is not None else run.folder / PAGE
    try:
        if earlier is None:
            page = write_page(run.folder, root)
        record.data["page"] = str(page)
        record.save()
        put_record(root, run.run_id, pages=True)
    except OSError as unwritten:
        if not run.failed:
            raise
        log.error("the page of run %s could not be written: %s", run.run_id, unwritten)
    return page


def write_page(run_folder: Path, root: Path) -> Path:
    """Write `page.html` of the run whose record is in `run_folder`, and return its path.

    A run that failed or covered some stages only has a page too. A section that cannot be drawn says why instead: no
    page may end a run that trained for days. The page that a run made at its end stays, and its path is returned, where
    less could be shown now: an artifact is gone or damaged.
    """
    record = read_record(run_folder / RECORD)
    fuller = Path(record["page"]) if record.get("page") and Path(record["page"]).is_file() else None
    gone = [f"{stage}: {told}" for stage, told in missing_artifacts(record).items()]
    if gone and fuller is not None:
        log.warning("%s stays as the run made it, for less could be shown now: %s", fuller, "; ".join(gone))
        return fuller
    problems: list[str] = []
    view = view_of(record, run_folder, root, partial(_attempt, problems))
    path = run_folder / PAGE
    if problems and fuller is not None:
        lost = ", ".join(problem.partition(":")[0] for problem in problems)
        log.warning("%s stays as the run made it, for less could be shown now: no %s", fuller, lost)
        return fuller
    try:
        page = render({**view, "problems": problems, "gone": gone})
    except Exception as error:
        log.exception("the run page could not be made")
        page = f"<!doctype html><title>Bessemer</title><pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
    try:
        if not problems and not gone:
            write_sealed(run_folder / METRICS_FILE, view["findings"], indent=None)
        write_atomically(path, page.encode("utf-8", errors="replace"))
    except OSError as error:
        if fuller is None or error.errno not in NOT_WRITABLE:
            raise
        log.warning("%s stays as the run made it: %s cannot be written (%s)", fuller, run_folder, error.strerror)
        return fuller
    return path


def _attempt(problems: list[str], section: str, make: Callable[[], Value], instead: Value) -> Value:
    try:
        return make()
    except Exception as error:
        at_fault = not isinstance(error, BessemerError)  # Damaged data need no traceback.
        log.error("the section %s of the run page could not be made: %s", section, error, exc_info=at_fault)
        problems.append(f"{section}: {type(error).__name__}: {error}")
        return instead


HEADLINE_MEASURES = ("masked_accuracy", "next_accuracy", "target_nats_per_token", "target_bits_per_byte")


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
            "value": METRICS_BY_NAME[line["metric"]].format(line["value"]),
            "name": f"{METRICS_BY_NAME[line['metric']].words}, held out, mean of the sources",
            "note": format_heldout_metric(line).partition(" ")[2].strip("()"),
        }
        for line in findings["measures"]
        if line["source"] == "all" and line["value"] is not None and line["metric"] in HEADLINE_MEASURES
    ]
    training = findings["training"]
    if training.get("last_loss") is not None:
        note = f"from {training['first_loss']:.2f} in {training['steps']:,} steps"
        name = f"training loss, {loss_unit(findings['rows'])}"
        found.append({"value": f"{training['last_loss']:.2f}", "name": name, "note": note})
        found.append({"value": format_count(training["tokens"]), "name": "tokens trained", "note": ""})
    documents = findings["conservation"].get("documents")
    if documents:
        kept = documents.get("packed", documents.get("kept", 0))
        found.append({"value": f"{kept:,}", "name": "documents kept", "note": f"of {documents['read']:,} read"})
    if findings["leaks"]:
        leaked, items = (sum(line[key] for line in findings["leaks"]) for key in ("leaked", "items"))
        found.append({"value": f"{leaked:,}", "name": "benchmark items found leaked", "note": f"of {items:,}"})
    if record.get("finished"):
        took = format_duration(record["finished"] - record["started"])
        found.append({"value": took, "name": "from start to end", "note": ""})
    return found
