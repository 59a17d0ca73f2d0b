"""Metrics of answers, for each kind of task those of its field, and the answers of a baseline that reads no input."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from model.finetune.config import Task
from model.finetune.data import Answer, Example
from model.inference.text_match import best_of, is_chinese, is_exact_match

MAIN = {
    "classification": "accuracy",
    "regression": "pearson",
    "tagging": "accuracy",
    "span": "f1",
    "text": "exact",
    "chat": "likelihood",
}
"""The metric that chooses the best epoch of each kind; all are between -1 and 1, and more is better."""
SPAN_F1 = "span_f1"
"""The metric of labels of spans: most words are outside all spans, so that a constant answer has a high accuracy."""


def score(task: Task, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, float]:
    """Return the metrics of a task's answers, given in the order of the examples."""
    right = [example.answer for example in examples]
    if task.kind == "classification":
        return classification([str(one) for one in answers], [str(one) for one in right])
    if task.kind == "regression":
        return regression(np.array(answers, dtype=np.float64), np.array(right, dtype=np.float64))
    if task.kind == "tagging":
        return tagging([tuple(one) for one in answers], [tuple(one) for one in right])  # pyright: ignore[reportArgumentType]
    if task.kind == "span":
        found = [
            best_of(str(answer), golds, chinese=is_chinese(example.texts[-1]))
            for answer, golds, example in zip(answers, right, examples, strict=True)
            if isinstance(golds, tuple)
        ]
        exact, f1 = zip(*found, strict=True)
        return {"exact": _mean(exact), "f1": _mean(f1)}
    pairs = [(str(answer), str(gold)) for answer, gold in zip(answers, right, strict=True)]
    matches = [float(is_exact_match(predicted, gold, chinese=is_chinese(gold))) for predicted, gold in pairs]
    return {"exact": _mean(matches)}


def main_metric(kind: str, found: Mapping[str, float]) -> str:
    """Return the name of the main metric among those found."""
    return SPAN_F1 if SPAN_F1 in found else MAIN[kind]


def baseline_answers(task: Task, learnt: Sequence[Example], examples: Sequence[Example]) -> list[Answer]:
    """Return the answers of a baseline that knows the training answers and reads no input.

    The most frequent label or text, the mean number, the most frequent label of each word, and no answer for a span.
    """
    if task.kind == "regression":
        return [float(np.mean([float(e.answer) for e in learnt]))] * len(examples)  # pyright: ignore[reportArgumentType]
    if task.kind == "span":
        return [""] * len(examples)
    if task.kind == "tagging":
        return _by_word(learnt, examples)
    return [Counter(str(example.answer) for example in learnt).most_common(1)[0][0]] * len(examples)


def classification(answers: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """Return accuracy, macro F1, and Matthews' correlation (for more than two labels, Gorodkin 2004)."""
    labels = sorted({*answers, *right})
    number = {label: place for place, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    np.add.at(table, ([number[one] for one in right], [number[one] for one in answers]), 1)
    hits, predicted, actual = np.diag(table), table.sum(0), table.sum(1)
    f1 = 2 * hits / np.maximum(predicted + actual, 1)
    total = table.sum()
    spread = np.sqrt((total**2 - (predicted**2).sum()) * (total**2 - (actual**2).sum()))
    return {
        "accuracy": float(hits.sum() / total),
        "macro_f1": float(f1[actual > 0].mean()),
        "matthews": float((hits.sum() * total - (predicted * actual).sum()) / spread) if spread else 0.0,
    }


def regression(answers: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Return Pearson's and Spearman's correlations (0 where either side is constant), and the root mean squared
    error."""
    return {
        "pearson": _correlation(answers, right),
        "spearman": _correlation(_ranks(answers), _ranks(right)),
        "rmse": float(np.sqrt(np.mean((answers - right) ** 2))),
    }


def tagging(answers: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]]) -> dict[str, float]:
    """Return the accuracy over words, and where labels mark spans (B-X, I-X, O) the F1 of whole spans, as in
    CoNLL-2003."""
    words = [pair for tags in zip(answers, right, strict=True) for pair in zip(*tags, strict=True)]
    found = {"accuracy": _mean([float(predicted == actual) for predicted, actual in words])}
    if any(actual.startswith("B-") for _, actual in words):
        predicted, actual = (
            Counter(span for number, tags in enumerate(side) for span in _spans(number, tags))
            for side in (answers, right)
        )
        hits = sum((predicted & actual).values())
        found[SPAN_F1] = 2 * hits / max(1, sum(predicted.values()) + sum(actual.values()))
    return found


def _spans(number: int, tags: Sequence[str]) -> list[tuple[int, int, int, str]]:
    """Return (row, begin, end, label) of each span; an I- that continues no span begins one, as in CoNLL's program."""
    spans: list[tuple[int, int, int, str]] = []
    begin, label = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        head, _, kind = tag.partition("-")
        if label and (head != "I" or kind != label):
            spans.append((number, begin, place, label))
            label = ""
        if not label and head in ("B", "I"):
            begin, label = place, kind
    return spans


def _by_word(learnt: Sequence[Example], examples: Sequence[Example]) -> list[Answer]:
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    everywhere: Counter[str] = Counter()
    for example in learnt:
        for word, tag in zip(example.texts, example.answer or (), strict=True):  # pyright: ignore[reportArgumentType]
            seen[word][tag] += 1
            everywhere[tag] += 1
    return [tuple((seen.get(word) or everywhere).most_common(1)[0][0] for word in one.texts) for one in examples]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if not np.ptp(a) or not np.ptp(b):
        return 0.0
    # Of any unit: a product of squares of small numbers would be 0.
    a, b = (side / np.abs(side).max() for side in (a - a.mean(), b - b.mean()))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[place]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
