"""A classifier that learns from the recipe's good sources what good text looks like, and keeps of the rest what is like
it (Brown et al. 2020, appendix A).

Features are hashed: words, their pairs, runs of one to three word shapes (`Xx.`, `x`, `9`), signs, lengths of lines.
All but the first two carry over to sources and languages that the classifier has not seen. Logistic regression by
AdaGrad over the documents in a seeded order, both kinds weighing the same. How well it tells sources apart that it has
not seen is measured by leaving one source of each kind out in turn. A document of the rest stays when a Pareto draw, a
function of its id, is above 1 - score, so that some unlike text stays too.

Which documents the quality classifier learns from: of each source the same number, chosen by their ids, cleaned.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables import read_table, write_table
from tasks.artifacts.workspace import Workspace
from tasks.clean.batch import handfuls_of
from tasks.clean.chain import Chain, clean_handful
from tasks.clean.config import CleanConfig, QualityConfig
from tasks.clean.document import Dropped, Verdicts
from tasks.clean.filters.blocklist import Supplied
from tasks.clean.filters.quality_features import (
    DIMENSIONS,
    LOOK_BYTES,
    MOST_FEATURES,
    count_features,
    scores_of,
    train_weights,
)
from tasks.clean.kernels.characters import character_flags
from tasks.clean.presets import PRESETS, QUALITY
from tasks.common.numeric import seed64, unit_interval

BIAS = -1

EPOCHS = 4

MOST_FOLDS = 8

LEAST_DOCUMENTS = 50
"""Of each kind, below which nothing can be learned."""


@dataclass(frozen=True)
class QualityModel:
    """Weights by feature (float32), the bias, and what the recipe says about their use."""

    weights: np.ndarray
    bias: float
    good: frozenset[str]
    alpha: float
    draws: int
    facts: dict[str, Any] = field(default_factory=dict)

    def score(self, raw: np.ndarray) -> float:
        """How much like the good sources a text (UTF-8 bytes) is, 0 to 1."""
        return float(_score_many([raw], self.weights, self.bias)[0])

    def verdict(self, doc_id: bytes, source: str, raw: np.ndarray) -> Dropped | None:
        """Why a document goes, or None: the score against 1 - draw, as limit."""
        if source in self.good:
            return None
        score = self.score(raw)
        limit = 1 - pareto_draw(unit_interval(doc_id, self.draws), self.alpha)
        return None if score > limit else Dropped(QUALITY, score, limit)


def pareto_draw(uniform: float, alpha: float) -> float:
    """A draw from the Pareto distribution that begins at 0 (Lomax), as `numpy.random.pareto` gives it."""
    return (1 - uniform) ** (-1 / alpha) - 1


def train_quality(documents: Artifact, config: CleanConfig, supplied: Supplied, workspace: Workspace) -> QualityModel:
    """Train, or take up what a killed build had trained; writes the table QUALITY (feature, weight; -1 is the bias).

    Raises InputError where one of the kinds has fewer than 50 documents that pass the edits and rules.
    """
    chosen = config.quality
    assert chosen is not None
    finished = workspace.finished(QUALITY)
    if finished is None:
        finished = _train(documents, config, chosen, supplied, workspace)
    table = read_table(workspace.file(f"{QUALITY}.arrow"))
    weights = np.zeros(DIMENSIONS, np.float32)
    features, values = table.column("feature").to_numpy(), table.column("weight").to_numpy()
    weights[features[1:]] = values[1:]
    return QualityModel(
        weights,
        float(values[0]),
        frozenset(chosen.good),
        chosen.alpha,
        seed64(chosen.seed, "clean", "quality draw"),
        finished.facts[QUALITY],
    )


def _train(
    documents: Artifact, config: CleanConfig, chosen: QualityConfig, supplied: Supplied, workspace: Workspace
) -> StageReport:
    sources, texts = training_texts(documents, config, chosen, supplied, workspace)
    good = np.array([source in chosen.good for source in sources])
    for kind, count in (("good sources", int(good.sum())), ("the other sources", int((~good).sum()))):
        if count < LEAST_DOCUMENTS:
            raise InputError(
                f"clean: the quality classifier found {count} documents of {kind} that pass the edits and rules, and"
                f" needs {LEAST_DOCUMENTS}. Name other sources in [clean.quality] good, or leave the table out."
            )
    examples = Examples.of(texts)
    weights, bias = examples.train(good, np.arange(len(good)), chosen.seed)
    folds = _unseen_sources(examples, sources, good, chosen.seed)
    used = np.flatnonzero(weights)
    table = pa.table(
        {
            "feature": pa.array(np.concatenate(([BIAS], used)), pa.int32()),
            "weight": pa.array(np.concatenate(([bias], weights[used])), pa.float32()),
        }
    )
    with workspace.unit(QUALITY) as unit:
        write_table(unit, QUALITY, table)
        unit.report = StageReport()
        unit.report.facts[QUALITY] = {
            "good_documents": int(good.sum()),
            "other_documents": int((~good).sum()),
            "auc": round(auc(examples.scores(weights, bias, np.arange(len(good))), good), 4),
            "unseen": folds,
            "unseen_auc": round(sum(fold["auc"] for fold in folds) / len(folds), 4) if folds else None,
        }
    return unit.report


@dataclass(frozen=True)
class Examples:
    """Hashed features of documents, in rows one after the other: `bounds[i]` to `bounds[i + 1]`."""

    bounds: np.ndarray
    features: np.ndarray
    values: np.ndarray

    @staticmethod
    def of(texts: Sequence[np.ndarray]) -> "Examples":
        """The features of texts (UTF-8 bytes)."""
        rows = [_features(raw) for raw in texts]
        bounds = np.concatenate(([0], np.cumsum([len(features) for features, _ in rows]))).astype(np.int64)
        return Examples(bounds, np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows]))

    def train(self, good: np.ndarray, rows: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
        """(weights, bias) from `rows`, in a seeded order."""
        generator = np.random.Generator(np.random.Philox(seed64(seed, "clean", "quality order")))
        order = np.concatenate([generator.permutation(rows) for _ in range(EPOCHS)])
        share = good[rows].mean()
        costs = np.where(good, 0.5 / share, 0.5 / (1 - share))
        weights, bias = train_weights(
            self.bounds, self.features, self.values, good.astype(np.float64), costs, order, DIMENSIONS
        )
        return weights.astype(np.float32), float(np.float32(bias))

    def scores(self, weights: np.ndarray, bias: float, rows: np.ndarray) -> np.ndarray:
        """The score of each of `rows`, 0 to 1."""
        return scores_of(self.bounds, self.features, self.values, weights, bias, rows)


def _features(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    features, values = np.zeros(MOST_FEATURES, np.int32), np.zeros(MOST_FEATURES, np.float32)
    count = count_features(raw, character_flags(), features, values)
    return features[:count].copy(), values[:count].copy()


def _score_many(texts: Sequence[np.ndarray], weights: np.ndarray, bias: float) -> np.ndarray:
    return Examples.of(texts).scores(weights, bias, np.arange(len(texts)))


def _unseen_sources(examples: Examples, sources: Sequence[str], good: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """AUC on a good source and another one, both left out of the training, each source at least once.

    Where a kind has one source only, half of its documents are left out instead, by place; `whole` says so.
    """
    names = np.array(sources)
    of_kind = [sorted(set(names[good])), sorted(set(names[~good]))]
    folds: list[dict[str, Any]] = []
    for fold in range(min(MOST_FOLDS, max(map(len, of_kind)))):
        left_out = np.zeros(len(names), np.bool_)
        pair = [kind[fold % len(kind)] for kind in of_kind]
        for kind, name in zip(of_kind, pair, strict=True):
            rows = np.flatnonzero(names == name)
            left_out[rows if len(kind) > 1 else rows[fold % 2 :: 2]] = True
        weights, bias = examples.train(good, np.flatnonzero(~left_out), seed)
        rows = np.flatnonzero(left_out)
        folds.append(
            {
                "good": pair[0],
                "other": pair[1],
                "whole": all(len(kind) > 1 for kind in of_kind),
                "auc": round(auc(examples.scores(weights, bias, rows), good[rows]), 4),
            }
        )
    return folds


def auc(scores: np.ndarray, good: np.ndarray) -> float:
    """Area under the ROC curve: how often a good document scores above another one, ties counting half."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    first = np.searchsorted(ordered, ordered, "left")
    last = np.searchsorted(ordered, ordered, "right")
    ranks = np.zeros(len(scores))
    ranks[order] = (first + last + 1) / 2
    positives, negatives = int(good.sum()), int((~good).sum())
    if not positives or not negatives:
        return math.nan
    return float((ranks[good].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def training_texts(
    documents: Artifact, config: CleanConfig, chosen: QualityConfig, supplied: Supplied, workspace: Workspace
) -> tuple[list[str], list[np.ndarray]]:
    """(source, text after edits) of documents that pass the rules, in order; at most `chosen.documents` of each kind,
    the same number of each source as far as it has them. Of a long text the middle is kept."""
    limits = _limits(documents, chosen)
    seed = seed64(chosen.seed, "clean", "quality sample")
    chains = {name: Chain.of(config, name, supplied) for name in PRESETS}
    sources: list[str] = []
    texts: list[np.ndarray] = []
    files = documents.files("documents")
    for number, path in enumerate(files):
        for handful in handfuls_of(read_table(path), config.emoji):
            rows = [
                row
                for row, doc_id in enumerate(handful.column("doc_id"))
                if unit_interval(doc_id, seed) <= limits[handful.sources[row]]
            ]
            verdicts = Verdicts(len(handful))
            clean_handful(handful, np.array(rows, np.int64), config, chains, verdicts)
            for row in rows:
                if verdicts.stays[row]:
                    sources.append(handful.sources[row])
                    texts.append(middle(handful.texts.raw(row)))
        workspace.advance(number + 1, len(files), "parts read for the quality classifier")
    return sources, texts


def _limits(documents: Artifact, chosen: QualityConfig) -> dict[str, float]:
    """Source -> the largest number in [0, 1) whose documents are taken."""
    seed = seed64(chosen.seed, "clean", "quality sample")
    lowest: dict[str, list[float]] = {}
    known = documents.report.sources
    good = [source for source in known if source in chosen.good]
    rooms = {
        source: -(-chosen.documents // max(1, len(good) if source in good else len(known) - len(good)))
        for source in known
    }
    for path in documents.files("documents"):
        table = read_table(path).select(["doc_id", "source"])
        for doc_id, source in zip(table.column("doc_id").to_pylist(), table.column("source").to_pylist(), strict=True):
            room = rooms.get(source, chosen.documents)
            heap = lowest.setdefault(source, [])
            # A heap of negated numbers has the largest of the lowest ones on top.
            number = -unit_interval(doc_id, seed)
            if len(heap) < room:
                heapq.heappush(heap, number)
            elif number > heap[0]:
                heapq.heapreplace(heap, number)
    return {source: -heap[0] for source, heap in lowest.items()}


def middle(raw: np.ndarray) -> np.ndarray:
    """A copy of the middle of a text that gives the same features as the whole."""
    if len(raw) <= 2 * LOOK_BYTES:
        return raw.copy()
    begin = (len(raw) - LOOK_BYTES) // 2
    even = (len(raw) - LOOK_BYTES) % 2
    return raw[begin - 8 : begin + LOOK_BYTES + 8 + even].copy()
