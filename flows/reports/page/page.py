"""Write the run page, one HTML file next to the run's record, from the run's metrics, examples and figures.

Every section is made on its own: one that fails is replaced by its error message, so that a page never ends a run.
"""

import html
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from flows.metrics.accounting import describe_conservation
from flows.metrics.formatting import format_count, format_duration, loss_unit
from flows.metrics.heldout import METRICS_BY_NAME, format_heldout_metric, mean_words
from flows.metrics.lines import BitsLine, Metrics, RuleLine
from flows.metrics.run_metrics import EMPTY, METRICS_FILE, metric_readers, samples
from flows.metrics.stage_lines import missing_artifacts, open_artifacts
from flows.reports.charts.data import PASSED, funnel_figure, leak_figure, lineage_figure, mixture_figure, token_figure
from flows.reports.charts.figure import Figure
from flows.reports.charts.heatmap import activations_figure
from flows.reports.charts.scores import (
    PREDICTORS,
    bits_figure,
    duplicates_figure,
    removed_figure,
    score_tables,
    scores_figure,
)
from flows.reports.charts.training import speed_figure, training_figure
from flows.reports.document import Tile
from flows.reports.page.examples import (
    SHOWN_OPEN,
    Removals,
    RemovedDocument,
    document_histories,
    kept_documents,
    leaked_passages,
    rejected,
    removals,
)
from flows.reports.page.render import fill
from flows.reports.page.sections import ShownStep, duplicate_pairs, edited_documents, shown_steps
from flows.reports.tables import leaks_table, measures_table, recall_table
from flows.reports.verdict import verdict
from flows.runs.record import PAGE, RunData, read_recipe, read_run, same_artifacts
from flows.runs.roots import put_record
from model.checksummed_json import write_sealed
from model.errors import BessemerError
from model.files import NOT_WRITABLE, write_atomically
from tasks.artifacts.artifact import Artifact

MAX_RULES = 40

MAX_SAMPLES = 12

SOURCE_COLOURS = 12
"""Number of colours that `style.css` has for sources."""


Attempt = Callable[[str, Callable[[], Any], Any], Any]
"""A function (section, make, fallback) that returns `make()`, or the fallback where that raises."""

if TYPE_CHECKING:
    from flows.runs.run import StageRun

log = logging.getLogger(__name__)

Value = TypeVar("Value")

KEY_METRICS = ("masked_accuracy", "next_accuracy", "target_nats_per_token", "target_bits_per_byte")


def write_run_page(run: "StageRun") -> Path:
    """Write the page of a run that ended, and return its path.

    A run that built nothing has the page of the earlier run with the same artifacts, to which its own leads. Raises
    OSError where the page cannot be written, unless the run failed: then the run's own error is the one to report.
    """
    root, record = run.context.root, run.record
    earlier = same_artifacts(root, record.data)
    page = Path((earlier and earlier.get("page")) or run.folder / PAGE)
    try:
        if earlier is None:
            page = write_page(run.folder, root)
        else:
            there = address(page, run.folder)
            leads = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={there}">'
            write_atomically(run.folder / PAGE, f'{leads}<a href="{there}">{there}</a>\n'.encode())
        record.data["page"] = str(page)
        record.save()
        put_record(root, run.run_id, pages=True)
    except OSError as unwritten:
        if not run.failed:
            raise
        log.error("the page of run %s could not be written: %s", run.run_id, unwritten)
    return page


def address(path: Path, folder: Path) -> str:
    """Return the address of a file as a page in `folder` links to it."""
    return quote(os.path.relpath(path, folder))


def write_page(run_folder: Path, root: Path) -> Path:
    """Write `page.html` of the run whose record is in `run_folder`, and return its path.

    Runs that failed or ran only some stages have a page too. The existing page is kept, and its path returned, where a
    new one would show less because artifacts are missing or damaged.
    """
    record = read_run(run_folder)
    existing = Path(page) if (page := record.get("page")) and Path(page).is_file() else None
    missing = [f"{stage}: {problem}" for stage, problem in missing_artifacts(record).items()]
    if missing and existing is not None:
        log.warning("%s is kept, because a new page would show less: %s", existing, "; ".join(missing))
        return existing
    problems: list[str] = []
    view = page_view(record, run_folder, root, partial(_attempt, problems))
    path = run_folder / PAGE
    if problems and existing is not None:
        lost = ", ".join(problem.partition(":")[0] for problem in problems)
        log.warning("%s is kept, because a new page would lack: %s", existing, lost)
        return existing
    try:
        page = fill("template.html", {**view, "problems": problems, "missing": missing})
    except Exception as error:
        log.exception("the run page could not be made")
        page = f"<!doctype html><title>Bessemer</title><pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
    try:
        if not problems and not missing:
            write_sealed(run_folder / METRICS_FILE, view["findings"], indent=None)
        write_atomically(path, page.encode("utf-8", errors="replace"))
    except OSError as error:
        if existing is None or error.errno not in NOT_WRITABLE:
            raise
        log.warning("%s is kept: %s cannot be written (%s)", existing, run_folder, error.strerror)
        return existing
    return path


def _attempt(problems: list[str], section: str, make: Callable[[], Value], fallback: Value) -> Value:
    try:
        return make()
    except Exception as error:
        is_bug = not isinstance(error, BessemerError)  # Damaged data need no traceback.
        log.error("the section %s of the run page could not be made: %s", section, error, exc_info=is_bug)
        problems.append(f"{section}: {type(error).__name__}: {error}")
        return fallback


def page_view(record: RunData, run_folder: Path, root: Path, attempt: Attempt) -> dict[str, Any]:
    """Return everything that the template shows; a section that cannot be made is empty."""
    artifacts = attempt("artifacts", lambda: open_artifacts(record), {})
    found = metric_readers(record)
    read = {name: attempt(name, find, EMPTY[name]) for name, find in found.items()}
    findings = cast(Metrics, read)
    examples = attempt("removed documents", lambda: removals(artifacts), {})
    steps = attempt("steps", lambda: shown_steps(artifacts), [])
    bits = [line for line in findings["bits_per_byte"] if line.get("model") is not None]
    colours = {line["source"]: number % SOURCE_COLOURS for number, line in enumerate(findings["funnel"])}
    return {
        "record": record,
        "root": str(root),
        "passed": PASSED,
        "findings": findings,
        "verdict": attempt("verdict", lambda: verdict(record, findings, root), None),
        "kept": attempt("kept documents", lambda: kept_documents(artifacts), []),
        "dropped": attempt("dropped documents", lambda: _one_of_each(examples), []),
        "edited": attempt("edited documents", lambda: edited_documents(artifacts), []),
        "errors": [entry for entry in record["stages"] if entry["outcome"] == "failed"],
        "key_figures": attempt("key figures", lambda: key_figures(record, findings), []),
        "colours": colours,
        "cleaned": [line for line in findings["removed"] if line["stage"] == "clean"][:MAX_RULES],
        "rules": attempt("rules", lambda: _rules(findings["removed"], examples), {}),
        "cuts": [
            {"stage": key[0], "rule": key[2], "examples": rows} for key, rows in examples.items() if key[1] == "cut"
        ],
        "pairs": attempt("pairs of duplicates", lambda: duplicate_pairs(artifacts), []),
        "recall": attempt("recall", lambda: recall_table(findings["duplicates"].get("planted", {})), None),
        "rejected": attempt("rejected records", lambda: rejected(artifacts), None),
        "passages": attempt("leaks", lambda: leaked_passages(artifacts), {}),
        "steps": steps,
        "histories": attempt(
            "document histories", lambda: document_histories(record, artifacts, _shown_documents(examples, steps)), {}
        ),
        "compressors": [
            named for named in PREDICTORS if any(line.get(named[0]) is not None for line in findings["bits_per_byte"])
        ],
        "modelled": bool(bits),
        "leaked": attempt("leaked items", lambda: leaks_table(findings["leaks"]), None),
        "measures": attempt("held-out metrics", lambda: measures_table(findings["measures"]), None),
        "measure_notes": list(
            dict.fromkeys(f"{one['source']}: {one['note']}" for one in findings["measures"] if one["source"] != "all")
        ),
        "tables": attempt("scores", lambda: score_tables(findings["scores"], findings["gaps"]), []),
        "samples": attempt("samples", lambda: samples(artifacts)[:MAX_SAMPLES], []),
        "conservation": attempt("conservation", lambda: describe_conservation(findings["conservation"]), ""),
        "recipe": attempt("recipe", lambda: read_recipe(run_folder), {}),
        "figures": _figures(artifacts, findings, bits, colours, attempt),
    }


class ShownRule(RuleLine):
    """A rule, with some documents that it dropped."""

    examples: list[RemovedDocument]


def _rules(removed: list[RuleLine], examples: Removals) -> dict[str, list[ShownRule]]:
    """Return, by stage in pipeline order, its rules with examples of the documents that they dropped."""
    by_stage: dict[str, list[ShownRule]] = {}
    for line in removed[:MAX_RULES]:
        shown = examples.get((line["stage"], "drop", line["rule"]), [])
        by_stage.setdefault(line["stage"], []).append({**line, "examples": shown})
    return by_stage


def _one_of_each(examples: Removals) -> list[RemovedDocument]:
    """Return an example of some rules that dropped documents, of different stages first."""
    firsts = [rows[0] for (_, action, _), rows in examples.items() if action == "drop" and rows]
    of_stage = {row.stage: row for row in reversed(firsts)}
    ordered = [*of_stage.values(), *(row for row in firsts if row not in of_stage.values())]
    return sorted(ordered[:SHOWN_OPEN], key=firsts.index)


def _shown_documents(examples: Removals, steps: list[ShownStep]) -> list[bytes]:
    """Return the ids of the documents that the page shows, each once."""
    removed = [bytes.fromhex(row.doc_id) for rows in examples.values() for row in rows]
    return list(dict.fromkeys([*removed, *(document["doc_id"] for step in steps for document in step.documents)]))


def _figures(
    artifacts: dict[str, Artifact],
    findings: Metrics,
    bits: list[BitsLine],
    colours: dict[str, int],
    attempt: Attempt,
) -> dict[str, Figure]:
    """Return the figures by name; a figure without data is left out."""
    reports = {stage: artifact.report for stage, artifact in artifacts.items()}
    outcomes, train = {line["stage"]: line["outcome"] for line in findings["stages"]}, artifacts.get("train")
    made = {
        "funnel": attempt("document flow", lambda: funnel_figure(reports, colours), None),
        "mixture": attempt("mixture", lambda: mixture_figure(findings["mixture"]), None),
        "removed": attempt("removals by rule", lambda: removed_figure(findings, colours), None),
        "duplicates": attempt("duplicates", lambda: duplicates_figure(findings["duplicates"]), None),
        "leaks": attempt("leaks by benchmark", lambda: leak_figure(findings["leaks"]), None),
        "tokens": attempt("tokens per character", lambda: _tokens(findings), None),
        "training": attempt("training", lambda: _training(artifacts, findings), None),
        "heat": attempt("activations", lambda: activations_figure(train) if train else None, None),
        "speed": attempt("speed", lambda: _speed(train) if train else None, None),
        "bits": attempt("bits per byte", lambda: bits_figure(bits), None),
        "scores": attempt("scores", lambda: scores_figure(findings["scores"]), None),
        "lineage": attempt("lineage", lambda: lineage_figure(artifacts, outcomes), None),
    }
    return {name: figure for name, figure in made.items() if figure}


def _tokens(findings: Metrics) -> Figure | None:
    languages = findings["vocabulary"].get("languages", {})
    extended = {language: line["tokens_per_character"] for language, line in languages.items() if line["characters"]}
    return token_figure(extended or findings["tokens_per_character"])


def _training(artifacts: dict[str, Artifact], findings: Metrics) -> Figure | None:
    if "train" not in artifacts or not artifacts["train"].rows("metrics"):
        return None
    metrics, steps, events = (artifacts["train"].table(name) for name in ("metrics", "steps", "events"))
    whole = next((line for line in findings["bits_per_byte"] if line["source"] == "all"), {})
    validation = artifacts["train"].table("validation") if artifacts["train"].rows("validation") else None
    baselines = {name: whole[key] for name, key in (("5-gram", "5gram"), ("xz", "xz")) if whole.get(key)}
    return training_figure(
        metrics, steps, events, _bytes_per_token(artifacts, findings), whole.get("model"), validation, baselines
    )


def _bytes_per_token(artifacts: dict[str, Artifact], findings: Metrics) -> float | None:
    """Return the mean UTF-8 bytes per token of the training text; None where sequences are not plain text."""
    if not (rows := findings["rows"]) or rows["objective"] != "causal_lm" or "decontaminate" not in artifacts:
        return None
    sources = artifacts["decontaminate"].report.sources
    shares = [
        (line["realised_share"], sources[line["source"]].bytes_out / line["tokens"])
        for line in findings["mixture"]
        if line["tokens"] and line["source"] in sources
    ]
    whole = sum(share for share, _ in shares)
    return sum(share * length for share, length in shares) / whole if whole else None


def _speed(train: Artifact) -> Figure | None:
    return speed_figure(train.table("perf"), train.table("metrics")) if train.rows("perf") else None


def key_figures(record: RunData, findings: Metrics) -> list[Tile]:
    """Return the key figures at the top of the page."""
    found: list[Tile] = []
    whole = next((line for line in findings["bits_per_byte"] if line["source"] == "all"), None)
    if whole is not None and (bits := whole.get("model")) is not None:
        beside = ""
        if unigram := whole.get("unigram"):
            beside = f"{abs(1 - bits / unigram):.0%} {'below' if bits <= unigram else 'above'} the unigram"
        name = f"bits per byte, held out{mean_words(findings['bits_per_byte'])}"
        found.append(Tile(f"{bits:.3f}", name, beside))
    found += [
        Tile(
            METRICS_BY_NAME[line["metric"]].format(line["value"]),
            f"{METRICS_BY_NAME[line['metric']].words}, held out{mean_words(findings['measures'])}",
            format_heldout_metric(line).partition(" ")[2].strip("()"),
        )
        for line in findings["measures"]
        if line["source"] == "all" and line["value"] is not None and line["metric"] in KEY_METRICS
    ]
    training = findings["training"]
    if training and training["last_loss"] is not None:
        note = f"from {training['first_loss']:.2f} in {training['steps']:,} steps"
        found.append(Tile(f"{training['last_loss']:.2f}", f"training loss, {loss_unit(findings['rows'])}", note))
        found.append(Tile(format_count(training["tokens"]), "training tokens"))
    documents = findings["conservation"].get("documents")
    if documents:
        kept = documents.get("packed", documents.get("kept", 0))
        found.append(Tile(f"{kept:,}", "documents kept", f"of {documents['read']:,} read"))
    if findings["leaks"]:
        leaked, items = (sum(line[key] for line in findings["leaks"]) for key in ("leaked", "items"))
        found.append(Tile(f"{leaked:,}", "leaked benchmark items", f"of {items:,}"))
    money, price = findings["cost"].get("money"), record.get("hour_price")
    if money is not None and price is not None:
        found.append(Tile(f"{money:.2f}", "cost of all stages", f"at {price:g} an hour"))
    if finished := record.get("finished"):
        found.append(Tile(format_duration(finished - record["started"]), "total time"))
    return found
