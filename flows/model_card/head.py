"""The head of a model card: what Hugging Face's hub reads, as YAML."""

import re
from typing import Any

import yaml

from flows.model_card.facts import CardFacts
from flows.page.score_tables import main_metric
from flows.wording import shots_word

PIPELINES = {"gpt": "text-generation", "bert": "fill-mask", "t5": "text2text-generation"}
HUB_LICENCE = re.compile(
    r"apache-2\.0|mit|isc|zlib|afl-3\.0|bsd-[23]-clause|bsl-1\.0|unlicense|gfdl|pddl|odbl|odc-by|eupl-1\.[12]|mpl-2\.0|"
    r"cc0-1\.0|cc-by(-nc)?-[234]\.0|cc-by-sa-[34]\.0|cc-by-nc-sa-[234]\.0|a?gpl-3\.0|gpl-2\.0|lgpl-(2\.1|3\.0)"
)
"""Identifiers that the hub knows; others are `other` with a name."""
METRICS: dict[str, str] = {"acc": "accuracy", "exact": "exact_match", "exact_match": "exact_match", "em": "exact_match"}


def head(facts: CardFacts, licence: str | None, library: str | None) -> str:
    """The YAML between two lines of dashes, with a line's end; `library` loads the files that the card lies beside."""
    architecture = facts.model["architecture"] or "gpt"
    told: dict[str, Any] = {
        **_licence(licence),
        "language": facts.languages,
        "library_name": library,
        "pipeline_tag": PIPELINES.get(architecture, "text-generation"),
        "tags": ["bessemer", architecture],
        "datasets": list(facts.sources),
        "metrics": _metrics(facts),
        "model-index": [{"name": facts.record["recipe_name"], "results": _results(facts, architecture)}],
    }
    told = {name: value for name, value in told.items() if value}
    text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{text}---\n"


def _licence(licence: str | None) -> dict[str, str]:
    if licence is None:
        return {"license": "unknown"}
    known = HUB_LICENCE.fullmatch(licence.lower())
    return {"license": licence.lower()} if known else {"license": "other", "license_name": licence}


def _main_rows(facts: CardFacts) -> list[dict[str, Any]]:
    """The rows of each benchmark's main metric that have a value."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in facts.findings["scores"]:
        by_task.setdefault(row["task"], []).append(row)
    rows = [row for of_task in by_task.values() for row in of_task if row["metric"] == main_metric(of_task)]
    return [row for row in rows if row["value"] is not None]


def _metrics(facts: CardFacts) -> list[str]:
    metrics: list[str] = [row["metric"] for row in _main_rows(facts)]
    names = [METRICS.get(metric, metric) for metric in metrics]
    bits = ["bits_per_byte"] if any(line.get("model") is not None for line in facts.findings["bits_per_byte"]) else []
    return list(dict.fromkeys([*bits, *names]))


def _results(facts: CardFacts, architecture: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in facts.findings["bits_per_byte"]:
        if line.get("model") is not None:
            name = "held-out text, mean of the sources" if line["source"] == "all" else f"held-out {line['source']}"
            metric = {"type": "bits_per_byte", "value": round(line["model"], 4), "name": "bits per byte"}
            found.append(
                {
                    "task": {"type": PIPELINES.get(architecture, "text-generation")},
                    "dataset": {"name": name, "type": "held-out"},
                    "metrics": [metric],
                }
            )
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in _main_rows(facts):
        by_task.setdefault(row["task"], []).append(row)
    for name, rows in by_task.items():
        metrics = [
            {
                "type": METRICS.get(row["metric"], row["metric"]),
                "value": round(row["value"], 4),
                "name": f"{shots_word(row['shots'])}, {row['subset']} items ({row['n']})",
            }
            for row in rows
        ]
        found.append(
            {
                "task": {"type": PIPELINES.get(architecture, "text-generation")},
                "dataset": {"name": name, "type": name},
                "metrics": metrics,
            }
        )
    return found
