"""Collect the facts of a model card, write its YAML head, and check its licence against those of the sources.

Whether a model is a work derived from its training text is not settled in law. The licence check is conservative: it
applies the conditions that a source sets for derived works to the model.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from flows.metrics.formatting import format_shots
from flows.metrics.heldout import mean_words
from flows.metrics.lines import Metrics
from flows.metrics.run_metrics import metrics_of, samples
from flows.metrics.stage_lines import open_artifacts
from flows.reports.charts.scores import main_rows
from flows.runs.lineage import NetworkLine, model_of
from flows.runs.record import RunData, list_runs, read_recipe, stage_paths
from model.checkpoint.run_folder import DESCRIPTION
from model.errors import RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.results import ChunkResult
from tasks.artifacts.tables.rows import SampleRow, ScoreRow

MIN_LANGUAGE_SHARE = 0.01
"""Share of the documents from which on a language is listed on the card."""

MAX_SAMPLES = 4

PIPELINES = {"gpt": "text-generation", "bert": "fill-mask", "t5": "text2text-generation"}

HUB_LICENCE = re.compile(
    r"apache-2\.0|mit|isc|zlib|afl-3\.0|bsd-[23]-clause|bsl-1\.0|unlicense|gfdl|pddl|odbl|odc-by|eupl-1\.[12]|mpl-2\.0|"
    r"cc0-1\.0|cc-by(-nc)?-[234]\.0|cc-by-sa-[34]\.0|cc-by-nc-sa-[234]\.0|a?gpl-3\.0|gpl-2\.0|lgpl-(2\.1|3\.0)"
)
"""Licence identifiers that the hub knows; any other is written as `other` with a name."""

HUB_DATASET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)")
"""A path of a data set on the hub, as `huggingface_hub` reads it."""

HUB_METRICS = {"acc": "accuracy", "exact": "exact_match"}
"""Main metrics that the hub names otherwise."""

PERMISSIVE = re.compile(
    r"(MIT(-0)?|ISC|Zlib|0BSD|BSD-[1-4]-Clause|Apache-\d\.\d|CC0-1\.0|CC-BY-\d\.\d(-[A-Z]+)?|CC-PDDC|PDDL-1\.0|ODC-By-1\.0|"
    r"Unlicense|AFL-\d\.\d|PSF-2\.0|Python-[\d.]+|BSL-1\.0|W3C(-\d+)?|LicenseRef-(?i:public-domain))\+?"
)

SHARE_ALIKE = re.compile(r"(CC-BY(?:-NC)?-SA|A?GPL|LGPL|GFDL|MPL|EUPL|ODbL|OSL|CDDL|EPL)-")

NON_COMMERCIAL = re.compile(r"-NC(-|$)|non-?commercial|research-only", re.IGNORECASE)

NO_DERIVATIVES = re.compile(r"-ND(-|$)")

_GNU = re.compile(r"(A?GPL|LGPL|GFDL)-")
"""Licences whose later versions hold only where the identifier says so; a bare `GPL-2.0` is `GPL-2.0-only`."""

_WITHOUT_IDENTIFIER = re.compile(r"(?<![\w-])(public[ -]domain|non-?commercial|research-only)(?![\w-])", re.IGNORECASE)
"""What a licence may be called that is none of SPDX's list."""

_IDENTIFIERS = {"gfdl": "GFDL-1.1-or-later", "odbl": "ODbL-1.0", "odc-by": "ODC-By-1.0", "pddl": "PDDL-1.0"}
"""SPDX identifiers of licences that the hub names otherwise; without a version GFDL holds in any."""

_TOKEN = re.compile(r"[()]|[^\s()]+")

_VERSION = re.compile(r"-?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class CardFacts:
    """What a model card states about a run."""

    record: RunData
    findings: Metrics
    recipe: dict[str, Any]
    """The resolved recipe; empty where its file is missing."""
    model: NetworkLine
    network: dict[str, Any]
    """Settings of the network; those of the recipe where no weights are there."""
    samples: list[SampleRow]
    learnt_before: dict[str, str | None] = field(default_factory=dict)
    """Licence of each source of earlier runs under the root whose models training went on from: `SOURCE (run ID)`."""

    @property
    def licences(self) -> dict[str, str | None]:
        """Licence of each source that the model has learnt from, in this run or before it."""
        return {**self.sources, **self.learnt_before}

    @property
    def sources(self) -> dict[str, str | None]:
        """Licence that the recipe states for each source that training read."""
        stated = {source["name"]: source.get("licence") for source in self.recipe.get("sample", {}).get("sources", [])}
        read = [line["source"] for line in self.findings["mixture"] if line["reads"]]
        return {name: stated.get(name) for name in read or stated}

    @property
    def datasets(self) -> list[str]:
        """Ids of the hub's data sets that training read, `owner/name`; files on disk have none."""
        stated = [one for one in self.recipe.get("sample", {}).get("sources", []) if one["name"] in self.sources]
        named = (HUB_DATASET.match(path) for source in stated for path in source.get("paths", ()))
        return list(dict.fromkeys(match[1] for match in named if match))

    @property
    def languages(self) -> list[str]:
        """ISO 639 codes, sorted: those of at least 1% of the cleaned documents; before these are counted, those that
        the sources state."""
        counted = self.findings["languages"]
        whole = sum(counted.values())
        found = {language for language, count in counted.items() if count >= MIN_LANGUAGE_SHARE * whole}
        if not counted:
            found = {source.get("language") or "" for source in self.recipe.get("sample", {}).get("sources", [])}
        return sorted(language for language in found if language.isalpha())


def card_facts(record: RunData, root: Path) -> CardFacts:
    """Return the facts of a run under `root`; facts of stages that did not run are empty."""
    recipe = read_recipe(root / "runs" / record["run_id"])
    findings = metrics_of(record)
    artifacts, model = open_artifacts(record), model_of(record, root)
    network = _network(artifacts.get("train")) or recipe.get("train", {}).get("model", {})
    facts = CardFacts(record, findings, recipe, model, network, samples(artifacts)[:MAX_SAMPLES])
    return replace(facts, learnt_before=_learnt_before(recipe, facts.sources, root))


def _network(train: Artifact | None) -> dict[str, Any]:
    """Return the settings of a trained network: its vocabulary is that of the run, and from a base model it has all."""
    if train is None or not any(file.name == DESCRIPTION for file in train.records):
        return {}
    return json.loads(train.file(DESCRIPTION).read_text(encoding="utf-8")).get("config", {})


def _learnt_before(recipe: dict[str, Any], known: Mapping[str, str | None], root: Path) -> dict[str, str | None]:
    """Return the licences of what the models had learnt that training went on from, one after the other, as nightly
    runs do; without sources that are `known` with the same licence. A model that no run under the root trained, such as
    a published one, ends the chain."""
    trained = {path: run for run in list_runs(root) if (path := stage_paths(run).get("train")) is not None}
    named = set(known.items())
    found: dict[str, str | None] = {}
    while (base := recipe.get("train", {}).get("base_model")) and (run := trained.pop(Path(base), None)) is not None:
        recipe = read_recipe(root / "runs" / run["run_id"])
        read = _sources_read(run)
        for source in recipe.get("sample", {}).get("sources", []):
            licence = source["name"], source.get("licence")
            if licence not in named and (read is None or source["name"] in read):
                named.add(licence)
                found[f"{source['name']} (run {run['run_id']})"] = source.get("licence")
    return found


def _sources_read(run: RunData) -> set[str] | None:
    """Return the sources that the training of a run read; None where its artifact of chunk is gone."""
    chunk = open_artifacts(run).get("chunk")
    return (
        None
        if chunk is None
        else {name for name, line in ChunkResult.of(chunk.report).mixture.items() if line["reads"]}
    )


def run_that_trained(root: Path, model: Path) -> RunData | None:
    """Return the latest run that trained or reused the model artifact at this path, or None."""
    runs = reversed(list_runs(root))
    return next((record for record in runs if stage_paths(record).get("train") == model), None)


def head(facts: CardFacts, licence: str | None, library: str | None) -> str:
    """Return the YAML head between two lines of dashes; `library` is the one that loads the exported files."""
    architecture = facts.model["architecture"] or "gpt"
    fields: dict[str, Any] = {
        **_licence(licence),
        "language": facts.languages,
        "library_name": library,
        "pipeline_tag": PIPELINES.get(architecture, "text-generation"),
        "tags": ["bessemer", architecture],
        "datasets": facts.datasets,
        "metrics": _metrics(facts),
        "model-index": [{"name": facts.record["recipe_name"], "results": _results(facts, architecture)}],
    }
    fields = {name: value for name, value in fields.items() if value}
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{text}---\n"


def _licence(licence: str | None) -> dict[str, str]:
    if licence is None:
        return {"license": "unknown"}
    known = HUB_LICENCE.fullmatch(licence.lower())
    return {"license": licence.lower()} if known else {"license": "other", "license_name": licence}


def _metrics(facts: CardFacts) -> list[str]:
    metrics: list[str] = [row["metric"] for row in main_rows(facts.findings["scores"])]
    names = [HUB_METRICS.get(metric, metric) for metric in metrics]
    bits = ["bits_per_byte"] if any(line.get("model") is not None for line in facts.findings["bits_per_byte"]) else []
    return list(dict.fromkeys([*bits, *names]))


def _results(facts: CardFacts, architecture: str) -> list[dict[str, Any]]:
    def result(name: str, kind: str, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        task = {"type": PIPELINES.get(architecture, "text-generation")}
        return {"task": task, "dataset": {"name": name, "type": kind}, "metrics": metrics}

    found: list[dict[str, Any]] = []
    for line in facts.findings["bits_per_byte"]:
        if (bits := line.get("model")) is not None:
            mean = mean_words(facts.findings["bits_per_byte"])
            name = f"held-out text{mean}" if line["source"] == "all" else f"held-out {line['source']}"
            metric = {"type": "bits_per_byte", "value": round(bits, 4), "name": "bits per byte"}
            found.append(result(name, "held-out", [metric]))
    by_task: dict[str, list[ScoreRow]] = {}
    for row in main_rows(facts.findings["scores"]):
        by_task.setdefault(row["task"], []).append(row)
    for name, rows in by_task.items():
        metrics = [
            {
                "type": HUB_METRICS.get(row["metric"], row["metric"]),
                "value": round(row["value"] or 0.0, 4),
                "name": f"{format_shots(row['shots'])}, {row['subset']} items ({row['n']})",
            }
            for row in rows
        ]
        found.append(result(name, name, metrics))
    return found


def check_licence(declared: str, sources: Mapping[str, str | None]) -> None:
    """Raise RecipeError, with the sources, where the licence declared for a model conflicts with theirs."""
    found = conflicts(declared, sources)
    if not found:
        return
    listed = "".join(f"  {line}\n" for line in found)
    raise RecipeError(
        f"licence {declared}: the model cannot have this licence, because it conflicts with those of its sources:\n"
        f"{listed}Declare a licence that they permit, train again without these sources, state their licences"
        f" (`licence` of the source in the recipe), or export without --licence, which grants nothing."
    )


def conflicts(declared: str, sources: Mapping[str, str | None]) -> list[str]:
    """Return a line for each source, in their order, whose licence does not permit the declared one.

    A licence is an SPDX expression: of licences joined by OR any one may be chosen, of those joined by AND all hold. Of
    the declared expression, a source must permit each licence. Raises RecipeError where that is none.
    """
    granted = _parse_licence(declared)
    if not granted:
        raise RecipeError(
            f"licence {declared}: no SPDX expression. Write identifiers of spdx.org/licenses, such as CC-BY-4.0, joined"
            f" by AND or OR, or LicenseRef-NAME for a licence of your own."
        )
    found: list[str] = []
    for source, licence in sources.items():
        if licence is None:
            found.append(f"{source} (no licence stated): without a licence nothing is permitted")
        elif reasons := [why for one in _licences_of(granted) if (why := _check_any(_parse_licence(licence), one))]:
            found.append(f"{source} ({licence}): {reasons[0]}")
    return found


def _parse_licence(expression: str) -> list[str]:
    """Return the tokens of an SPDX expression, spelt as in SPDX's list; an empty list where it is none."""
    named = _WITHOUT_IDENTIFIER.sub(lambda name: f"LicenseRef-{name[1].lower().replace(' ', '-')}", expression)
    words: list[str] = _TOKEN.findall(named)
    try:
        return _TOKEN.findall(canonicalize_license_expression(" ".join(_IDENTIFIERS.get(w.lower(), w) for w in words)))
    except InvalidLicenseExpression:
        return []


def _licences_of(tokens: list[str]) -> list[str]:
    """Return the licences of an expression, each with its WITH exception."""
    groups = groupby(tokens, lambda token: token in ("AND", "OR", "(", ")"))
    return [" ".join(words) for is_operator, words in groups if not is_operator]


def _check_any(tokens: list[str], declared: str) -> str:
    """Return why an OR expression conflicts with the declared licence; empty where one alternative does not.

    Consumes the expression from `tokens`.
    """
    reasons = [_check_all(tokens, declared)]
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        reasons.append(_check_all(tokens, declared))
    return reasons[0] if all(reasons) else ""


def _check_all(tokens: list[str], declared: str) -> str:
    """Return the first conflict of an AND expression, or an empty string."""
    reasons = [_check_term(tokens, declared)]
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        reasons.append(_check_term(tokens, declared))
    return next(filter(None, reasons), "")


def _check_term(tokens: list[str], declared: str) -> str:
    """Return the conflict of an expression in brackets, or of one licence with its WITH exception."""
    if tokens and tokens[0] == "(":
        tokens.pop(0)
        why = _check_any(tokens, declared)
        if tokens:
            tokens.pop(0)
        return why
    words: list[str] = []
    while tokens and tokens[0] not in ("AND", "OR", "(", ")"):
        words.append(tokens.pop(0))
    return _check_licence_pair(" ".join(words), declared)


def _check_licence_pair(licence: str, declared: str) -> str:
    if NO_DERIVATIVES.search(licence):
        return "it permits no derived works"
    if NON_COMMERCIAL.search(licence) and not NON_COMMERCIAL.search(declared):
        return f"it forbids commercial use, which {declared} permits"
    if SHARE_ALIKE.match(licence):
        return "" if _is_same_or_later(licence, declared) else "derived works must have the same licence"
    if PERMISSIVE.fullmatch(licence.partition(" WITH ")[0]) or NON_COMMERCIAL.search(licence):
        return ""
    return "unknown licence; write its SPDX identifier, such as CC-BY-4.0"


def _is_same_or_later(licence: str, declared: str) -> bool:
    """Return whether the declared licence is the source's own, or a later version that the source's own permits.

    It may leave out the exception of a source's licence, which permits more, and has no other one.
    """
    mine, others = (one.partition(" WITH ") for one in (licence, declared))
    if others[2] not in ("", mine[2]):
        return False
    (name, version, is_fixed), (other_name, other_version, is_other_fixed) = _family(mine[0]), _family(others[0])
    is_version = (version, True) == (other_version, is_other_fixed) if is_fixed else version <= other_version
    return name == other_name and is_version


def _family(licence: str) -> tuple[str, float, bool]:
    """Return a licence's name without its version, the version, and whether later ones are excluded."""
    version = _VERSION.search(licence)
    name = _VERSION.sub("", licence, count=1)
    is_fixed = _GNU.match(licence) is not None and not licence.endswith(("-or-later", "+"))
    for ending in ("-or-later", "-only", "+"):
        name = name.removesuffix(ending)
    return name, float(version[1]) if version else 0.0, is_fixed
