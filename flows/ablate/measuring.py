"""What is measured of each run: loss, held-out figures, benchmarks, speed, size."""

import re
import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from flows.findings import open_artifacts
from flows.heldout_text import HeldOut, held_out
from flows.wording import shots_word
from model.kept_rows import kept_rows
from model.recent_loss import RECENT_SHARE
from tasks.artifact import Artifact

HELDOUT = "heldout/all"
BESIDE_MODEL = ("5gram_", "unigram_", "xz_", "frequent_", "majority_")
"""Beginnings of metrics of held-out text that are a baseline's."""
PER_TOKEN = re.compile("perplexity|accuracy|per_token")
"""Metrics of held-out text that count tokens of a vocabulary, and not bytes."""
LOSS, SPEED = "training loss", "tokens a second"
ITEM_SCORES = "item_scores"


@dataclass
class Measured:
    """One run in numbers. Of `values`, those in `higher` are better the higher they are."""

    values: dict[str, float] = field(default_factory=dict)
    higher: set[str] = field(default_factory=set)
    items: dict[str, dict[str, float]] = field(default_factory=dict)
    """Benchmark (as `values` names it) -> item -> its primary score."""
    built: tuple[str, ...] = ()
    run_id: str = ""
    cause: str = ""
    """Why there are no numbers."""
    heldout: HeldOut = field(default_factory=HeldOut)
    of_heldout: dict[str, str] = field(default_factory=dict)
    """Figure of held-out text, as `values` names it -> its metric of SCORES."""
    of_tokens: dict[str, str] = field(default_factory=dict)
    """Figure that says something only of these tokens -> what they are: the identity of the rows, or the
    content of the vocabulary."""

    def followed_by(self, second: "Measured") -> "Measured":
        """The second run's numbers, but for the speed, which is this one's: second runs are alike."""
        speed = {SPEED: self.values[SPEED]} if SPEED in self.values else {}
        built = tuple(dict.fromkeys([*self.built, *second.built]))
        return replace(second, values=second.values | speed, built=built)


def measured(record: dict[str, Any]) -> Measured:
    """The numbers of a run that came to its end."""
    artifacts = open_artifacts(record)
    found = Measured(run_id=record["run_id"])
    found.built = tuple(entry["stage"] for entry in record["stages"] if entry["outcome"] == "built")
    if "train" in artifacts:
        _of_training(artifacts["train"], found)
    if "chunk" in artifacts and LOSS in found.values:
        found.of_tokens[LOSS] = artifacts["chunk"].identity
    if "evaluate" in artifacts:
        _of_scores(artifacts["evaluate"], found)
        found.heldout = held_out(artifacts)
        for name, metric in found.of_heldout.items():
            if PER_TOKEN.search(metric) and "vocab" in artifacts:
                found.of_tokens[name] = artifacts["vocab"].content
    return found


def _of_training(model: Artifact, found: Measured) -> None:
    losses = kept_rows(model.table("metrics"), model.table("steps")).column("loss").to_pylist()
    if losses:
        found.values[LOSS] = statistics.fmean(losses[-max(1, round(RECENT_SHARE * len(losses))) :])
    speed = model.report.facts["training"]["tokens_s"]
    if speed is not None:
        found.values[SPEED] = speed
        found.higher.add(SPEED)


def _of_scores(scores: Artifact, found: Measured) -> None:
    for row in scores.table("scores").to_pylist():
        if row["value"] is None:
            continue
        if row["task"] == HELDOUT and not row["metric"].startswith(BESIDE_MODEL):
            name = row["metric"].replace("_", " ")
            found.values[name] = row["value"]
            found.of_heldout[name] = row["metric"]
            if row["metric"].endswith("accuracy"):
                found.higher.add(name)
    for row in scores.table(ITEM_SCORES).to_pylist():
        name = f"{row['task']} {row['metric']}, {shots_word(row['shots'])}"
        found.items.setdefault(name, {})[row["item_id"]] = row["value"]
    for name, items in found.items.items():
        found.values[name] = sum(items.values()) / len(items)
        found.higher.add(name)
