"""Everything that the run page shows, by name: findings, examples and figures of one run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.conservation import conservation_line
from flows.findings import DICTIONARIES, finders, open_artifacts
from flows.heat import trained_heat
from flows.page.charts import bits_figure, duplicates_figure, removed_figure, scores_figure
from flows.page.clusters import duplicate_pairs
from flows.page.examples import leaked_passages, rejected, removals
from flows.page.fates import fates_of
from flows.page.funnel_chart import funnel_figure
from flows.page.headlines import headlines
from flows.page.heat_chart import MOST_COLUMNS, heat_figure
from flows.page.leak_chart import leak_figure
from flows.page.lineage_chart import lineage_figure
from flows.page.mixture_chart import mixture_figure
from flows.page.score_tables import measure_table, score_tables
from flows.page.speed_chart import speed_figure
from flows.page.steps import shown_steps
from flows.page.token_chart import token_figure
from flows.page.training_chart import training_figure
from flows.record import read_recipe
from tasks.artifact import Artifact

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
    found = finders(record)
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
        "conservation": attempt("conservation", lambda: conservation_line(findings["conservation"]), ""),
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
    heat = trained_heat(artifacts["train"], MOST_COLUMNS) if "train" in artifacts else None
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
