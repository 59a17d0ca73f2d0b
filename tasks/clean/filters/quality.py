"""A quality classifier, trained on the recipe's good sources; of the rest it keeps what is like them.

The method is that of GPT-3 (Brown et al. 2020, appendix A). The classifier learns from the same number of cleaned
documents of each source, chosen by their ids. Features are hashed: words, word pairs, runs of one to three word shapes
(`Xx.`, `x`, `9`), symbols, lengths of lines. All but the first two carry over to sources and languages that the
classifier has not seen. The model is logistic regression by AdaGrad over the documents in a seeded order, with both
classes weighted equally. It is evaluated on unseen sources by leaving out one source of each class in turn. A document
of the rest is kept when a Pareto draw, a function of its id, is above 1 - score, so that some unlike text is kept too.
"""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import read_table, write_table
from tasks.artifacts.workspace import Workspace
from tasks.clean.batch import iter_batches
from tasks.clean.chain import UserResources, clean_batch, make_chains
from tasks.clean.config import CleanConfig, QualityConfig
from tasks.clean.document import Verdicts
from tasks.clean.filters.quality_features import (
    DIMENSIONS,
    MAX_FEATURES,
    SAMPLE_BYTES,
    WORD_WEIGHT,
    count_features,
    score_rows,
    train_weights,
)
from tasks.clean.kernels.characters import character_flags
from tasks.clean.presets import QUALITY
from tasks.common.numeric import seed64, unit_interval

BIAS = -1
"""Feature under which the table QUALITY has the bias."""

EPOCHS = 4

MAX_FOLDS = 8
"""Most pairs of sources on which the classifier is evaluated."""

MIN_DOCUMENTS = 50
"""Documents of each class below which nothing can be learned."""


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
        """Return how much like the good sources a text (UTF-8 bytes) is, 0 to 1."""
        return float(Examples.of([raw]).scores(self.weights, self.bias, np.zeros(1, np.int64))[0])

    def verdict(self, doc_id: bytes, source: str, raw: np.ndarray) -> tuple[float, float] | None:
        """Return the score of a document that is dropped, and 1 - draw as its limit; None where it is kept."""
        if source in self.good:
            return None
        score = self.score(raw)
        limit = 1 - pareto_draw(unit_interval(doc_id, self.draws), self.alpha)
        return None if score > limit else (score, limit)


def pareto_draw(uniform: float, alpha: float) -> float:
    """Return a draw from the Pareto distribution that begins at 0 (Lomax), as `numpy.random.pareto` gives it."""
    return (1 - uniform) ** (-1 / alpha) - 1


def train_quality(
    documents: Artifact,
    config: CleanConfig,
    resources: UserResources,
    workspace: Workspace,
    kept: Artifact | None = None,
) -> QualityModel:
    """Train the classifier, or load that of the artifact `kept`, or what a killed build had trained.

    Writes the table QUALITY (feature, weight; feature -1 is the bias). Raises InputError where one of the classes has
    fewer than 50 documents that pass the edits and rules.
    """
    chosen = config.quality
    assert chosen is not None
    finished = workspace.finished(QUALITY)
    if finished is None and kept is not None:
        finished = _write_model(workspace, kept.table(QUALITY), kept.report.facts[QUALITY])
    elif finished is None:
        finished = _train(documents, config, chosen, resources, workspace)
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
    documents: Artifact, config: CleanConfig, chosen: QualityConfig, resources: UserResources, workspace: Workspace
) -> StageReport:
    sources, texts = training_texts(documents, config, chosen, resources, workspace)
    good = np.array([source in chosen.good for source in sources])
    for kind, count in (("good sources", int(good.sum())), ("the other sources", int((~good).sum()))):
        if count < MIN_DOCUMENTS:
            raise InputError(
                f"clean: the quality classifier found {count} documents of {kind} that pass the edits and rules, and"
                f" needs {MIN_DOCUMENTS}. Name other sources in [clean.quality] good, or leave the table out."
            )
    examples = Examples.of(texts)
    weights, bias = examples.train(good, np.arange(len(good)), chosen.seed)
    folds = _evaluate_on_unseen_sources(examples, sources, good, chosen.seed)
    used = np.flatnonzero(weights)
    table = pa.table(
        {
            "feature": pa.array(np.concatenate(([BIAS], used)), pa.int32()),
            "weight": pa.array(np.concatenate(([bias], weights[used])), pa.float32()),
        }
    )
    facts = {
        "good_documents": int(good.sum()),
        "other_documents": int((~good).sum()),
        "auc": round(auc(examples.scores(weights, bias, np.arange(len(good))), good), 4),
        "unseen": folds,
        "unseen_auc": round(sum(fold["auc"] for fold in folds) / len(folds), 4) if folds else None,
    }
    return _write_model(workspace, table, facts)


def _write_model(workspace: Workspace, table: pa.Table, facts: dict[str, Any]) -> StageReport:
    with workspace.unit(QUALITY) as unit:
        write_table(unit, QUALITY, table)
        unit.report = StageReport()
        unit.report.facts[QUALITY] = facts
    return unit.report


def training_texts(
    documents: Artifact,
    config: CleanConfig,
    chosen: QualityConfig,
    resources: UserResources,
    workspace: Workspace,
    only: Collection[str] | None = None,
) -> tuple[list[str], list[np.ndarray]]:
    """Return (sources, texts after edits) of documents that pass the rules, in order; of `only` these sources.

    Of each class they are drawn from `chosen.documents` documents, the same number of each source: rounded up, or all
    that it has. Of a long text only the middle is returned.
    """
    seed = seed64(chosen.seed, "clean", "quality sample")
    limits = _draw_limits(documents, chosen, seed, only)
    chains = make_chains(config, resources)
    sources: list[str] = []
    texts: list[np.ndarray] = []
    files = documents.files("documents")
    for number, path in enumerate(files):
        for batch in iter_batches(read_table(path), config.emoji):
            rows = [
                row
                for row, doc_id in enumerate(batch.column("doc_id"))
                if unit_interval(doc_id, seed) <= limits.get(batch.contexts.sources[row], -1)
            ]
            verdicts = Verdicts(len(batch))
            clean_batch(batch, np.array(rows, np.int64), config, chains, verdicts)
            for row in rows:
                if verdicts.is_kept[row]:
                    sources.append(batch.contexts.sources[row])
                    texts.append(middle(batch.texts.raw(row)))
        workspace.advance(number + 1, len(files), "parts read for the quality classifier")
    return sources, texts


def _draw_limits(
    documents: Artifact, chosen: QualityConfig, seed: int, only: Collection[str] | None
) -> dict[str, float]:
    """Return for each source the largest draw in [0, 1) whose document is taken."""
    lowest: dict[str, list[float]] = {}
    sources_in = [source for source in documents.report.sources if only is None or source in only]
    good = [source for source in sources_in if source in chosen.good]
    quotas = {
        source: -(-chosen.documents // max(1, len(good) if source in good else len(sources_in) - len(good)))
        for source in sources_in
    }
    for path in documents.files("documents"):
        table = read_table(path, ["doc_id", "source"])
        for doc_id, source in zip(table.column("doc_id").to_pylist(), table.column("source").to_pylist(), strict=True):
            if only is not None and source not in only:
                continue
            quota = quotas.get(source, chosen.documents)
            heap = lowest.setdefault(source, [])
            # A heap of negated numbers has the largest of the lowest ones on top.
            number = -unit_interval(doc_id, seed)
            if len(heap) < quota:
                heapq.heappush(heap, number)
            elif number > heap[0]:
                heapq.heapreplace(heap, number)
    return {source: -heap[0] for source, heap in lowest.items()}


def middle(raw: np.ndarray) -> np.ndarray:
    """Return a copy of the middle of a text that gives the same features as the whole."""
    if len(raw) <= 2 * SAMPLE_BYTES:
        return raw.copy()
    begin = (len(raw) - SAMPLE_BYTES) // 2
    even = (len(raw) - SAMPLE_BYTES) % 2
    return raw[begin - 8 : begin + SAMPLE_BYTES + 8 + even].copy()


@dataclass(frozen=True)
class Examples:
    """Hashed features of documents, one row after another: row i is `bounds[i]` to `bounds[i + 1]`."""

    bounds: np.ndarray
    features: np.ndarray
    values: np.ndarray

    @staticmethod
    def of(texts: Sequence[np.ndarray]) -> "Examples":
        """Return the features of texts (UTF-8 bytes)."""
        rows = [_hash_features(raw) for raw in texts]
        bounds = np.concatenate(([0], np.cumsum([len(features) for features, _ in rows]))).astype(np.int64)
        return Examples(bounds, np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows]))

    def with_full_words(self) -> "Examples":
        """Return the examples with words and pairs at the weight of shapes, each row of length 1 again."""
        values = np.where(self.features < DIMENSIONS // 2, self.values / WORD_WEIGHT, self.values)
        sums = np.concatenate(([0.0], np.cumsum(values.astype(np.float64) ** 2)))
        lengths = np.sqrt(np.maximum(sums[self.bounds[1:]] - sums[self.bounds[:-1]], 1e-12))
        values = values / np.repeat(lengths, np.diff(self.bounds))
        return Examples(self.bounds, self.features, values.astype(np.float32))

    def train(self, good: np.ndarray, rows: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
        """Train on `rows`, in a seeded order, and return (weights, bias)."""
        generator = np.random.Generator(np.random.Philox(seed64(seed, "clean", "quality order")))
        order = np.concatenate([generator.permutation(rows) for _ in range(EPOCHS)])
        share = good[rows].mean()
        costs = np.where(good, 0.5 / share, 0.5 / (1 - share))
        weights, bias = train_weights(
            self.bounds, self.features, self.values, good.astype(np.float64), costs, order, DIMENSIONS
        )
        return weights.astype(np.float32), float(np.float32(bias))

    def scores(self, weights: np.ndarray, bias: float, rows: np.ndarray) -> np.ndarray:
        """Return the score of each of `rows`, 0 to 1."""
        return score_rows(self.bounds, self.features, self.values, weights, bias, rows)


def _hash_features(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    features, values = np.zeros(MAX_FEATURES, np.int32), np.zeros(MAX_FEATURES, np.float32)
    count = count_features(raw, character_flags(), features, values)
    return features[:count].copy(), values[:count].copy()


def _evaluate_on_unseen_sources(
    examples: Examples, sources: Sequence[str], good: np.ndarray, seed: int
) -> list[dict[str, Any]]:
    """Return the AUC on a good source and another one, both left out of the training, each source at least once.

    Where a class has a single source, every second of its documents is left out instead; `whole` says so.
    """
    names = np.array(sources)
    of_kind = [sorted(set(names[good])), sorted(set(names[~good]))]
    folds: list[dict[str, Any]] = []
    for fold in range(min(MAX_FOLDS, max(map(len, of_kind)))):
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
    """Return the area under the ROC curve: how often a good document scores above another one, ties counting half."""
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
