"""What a model card is written from: a run's record, its findings, its recipe.

The head of a model card: what Hugging Face's hub reads, as YAML.

Whether a licence that is declared for a model goes with the licences of the text that it was trained on.

No court has settled whether a model is a work derived from its text. The rules here take the careful side, which costs
nobody a right: what a source asks of works made from it is asked of the model too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.metrics.formatting import format_shots
from flows.metrics.run_metrics import collect_metrics, read_saved_metrics
from flows.reports.charts.scores import main_metric
from flows.runs.lineage import model_of
from flows.runs.record import list_runs, read_recipe
from model.errors import RecipeError

LEAST_SHARE = 0.01
"""Of the documents, from which a language counts as one of the model's."""


@dataclass(frozen=True)
class CardFacts:
    """A run as its card tells it."""

    record: dict[str, Any]
    findings: dict[str, Any]
    recipe: dict[str, Any]
    """The recipe as it was resolved; empty where it is gone."""
    model: dict[str, Any]
    """`architecture` and `parameters`."""

    @property
    def sources(self) -> dict[str, str | None]:
        """Source -> its licence as the recipe states it, for the sources that training read."""
        told = {source["name"]: source.get("licence") for source in self.recipe.get("sample", {}).get("sources", [])}
        read = [line["source"] for line in self.findings["mixture"] if line["reads"]]
        return {name: told.get(name) for name in read or told}

    @property
    def languages(self) -> list[str]:
        """ISO 639 codes, the sources' own and those of a hundredth of the cleaned documents, in their order."""
        stated = {source.get("language") or "" for source in self.recipe.get("sample", {}).get("sources", [])}
        counted: dict[str, int] = self.findings["languages"]
        whole = sum(counted.values())
        found = {language for language, count in counted.items() if count >= LEAST_SHARE * whole}
        return sorted(language for language in stated | found if language.isalpha())


def card_facts(record: dict[str, Any], root: Path) -> CardFacts:
    """The facts of a run under `root`; stages that it did not reach leave theirs empty."""
    recipe = read_recipe(root / "runs" / record["run_id"])
    findings = collect_metrics(record, read_saved_metrics(record))
    return CardFacts(record, findings, recipe, model_of(record, root))


def run_of_model(root: Path, model: Path) -> dict[str, Any] | None:
    """The latest run that trained, or reused, the model of this artifact; None where none is known."""
    for record in reversed(list_runs(root)):
        if any(entry["stage"] == "train" and entry.get("path") == str(model) for entry in record["stages"]):
            return record
    return None


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
                "name": f"{format_shots(row['shots'])}, {row['subset']} items ({row['n']})",
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


PERMISSIVE = re.compile(
    r"(MIT|ISC|Zlib|BSD-|0BSD|Apache-|CC0-|CC-BY-\d|CC-PDDC|PDDL-|ODC-By-|Unlicense|AFL-|PSF-|Python-|BSL-|W3C|"
    r"public[ -]domain)",
    re.IGNORECASE,
)

SHARE_ALIKE = re.compile(r"(CC-BY(?:-NC)?-SA|A?GPL|LGPL|GFDL|MPL|EUPL|ODbL|OSL|CDDL|EPL)(?:-|$)", re.IGNORECASE)

NON_COMMERCIAL = re.compile(r"-NC(-|$)|non-?commercial|research-only", re.IGNORECASE)

NO_DERIVATIVES = re.compile(r"-ND(-|$)", re.IGNORECASE)

_TOKEN = re.compile(r"[()]|[^\s()]+")

_VERSION = re.compile(r"-?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Conflict:
    """A source whose licence does not let the model have the declared one."""

    source: str
    licence: str | None
    why: str


def check_licence(declared: str, sources: Mapping[str, str | None]) -> None:
    """Raises RecipeError where the licence declared for a model conflicts with those of its sources, by name."""
    found = conflicts(declared, sources)
    if not found:
        return
    told = "\n".join(f"  {one.source} ({one.licence or 'no licence stated'}): {one.why}" for one in found)
    raise RecipeError(
        f"licence {declared}: the model cannot be given this licence beside those of its sources:\n{told}\n"
        f"Declare a licence that they allow, leave these sources out and train again, state what is known"
        f" (`licence` of the source in the recipe), or export without --licence, which grants nothing."
    )


def conflicts(declared: str, sources: Mapping[str, str | None]) -> list[Conflict]:
    """The sources, in their order, whose licence stands against the declared one.

    A licence is an SPDX expression; of several joined by OR any one may be chosen, joined by AND all hold.
    """
    found: list[Conflict] = []
    for source, licence in sources.items():
        if licence is None:
            found.append(Conflict(source, None, "without a licence nothing is allowed"))
            continue
        why = _of_choices(_TOKEN.findall(licence), declared)
        if why:
            found.append(Conflict(source, licence, why))
    return found


def _of_choices(tokens: list[str], declared: str) -> str:
    """Why an expression stands against the declared licence; empty where one of its choices does not. Takes what it
    reads off `tokens`."""
    reasons = [_of_all(tokens, declared)]
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        reasons.append(_of_all(tokens, declared))
    return reasons[0] if all(reasons) else ""


def _of_all(tokens: list[str], declared: str) -> str:
    """The same of licences that hold together: the first reason."""
    reasons = [_of_one(tokens, declared)]
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        reasons.append(_of_one(tokens, declared))
    return next(filter(None, reasons), "")


def _of_one(tokens: list[str], declared: str) -> str:
    """The same of an expression in brackets, or of one licence with what is said behind WITH."""
    if tokens and tokens[0] == "(":
        tokens.pop(0)
        why = _of_choices(tokens, declared)
        if tokens:
            tokens.pop(0)
        return why
    words: list[str] = []
    while tokens and tokens[0] not in ("AND", "OR", "(", ")"):
        words.append(tokens.pop(0))
    return _against(" ".join(words), declared)


def _against(licence: str, declared: str) -> str:
    if NO_DERIVATIVES.search(licence):
        return "it allows no works made from it"
    if NON_COMMERCIAL.search(licence) and not NON_COMMERCIAL.search(declared):
        return f"it forbids commercial use, which {declared} allows"
    if SHARE_ALIKE.match(licence):
        return "" if _passes_on(licence, declared) else "works made from it are to have the same licence"
    if PERMISSIVE.match(licence) or NON_COMMERCIAL.search(licence):
        return ""
    return "nothing is known of this licence; write the SPDX identifier, such as CC-BY-4.0"


def _passes_on(licence: str, declared: str) -> bool:
    """Whether the declared licence is the source's own, or a later version of it."""
    mine, others = (_family(one) for one in (licence, declared))
    return mine[0] == others[0] and mine[1] <= others[1]


def _family(licence: str) -> tuple[str, float]:
    version = _VERSION.search(licence)
    name = _VERSION.sub("", licence, count=1).upper()
    for ending in ("-OR-LATER", "-ONLY", "+"):
        name = name.removesuffix(ending)
    return name, float(version[1]) if version else 0.0
