"""How right answers are, each kind by the measure of its field, and what a guess without reading would reach."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from model.finetune.config import Task
from model.finetune.data import Answer, Example
from model.inference.text_match import best_of, is_chinese, is_same

MAIN = {"classification": "accuracy", "regression": "pearson", "tagging": "accuracy", "span": "f1", "text": "exact"}
"""The measure by which the best epoch of each kind is chosen; all lie between -1 and 1, and more is better."""
OF_SPANS = "span_f1"
"""That of labels of spans: most words are of none, so that saying so of all has a high accuracy."""


def score(task: Task, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, float]:
    """The measures of a task's answers, each beside the example that it belongs to."""
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
    return {"exact": _mean([float(is_same(said, gold, chinese=is_chinese(gold))) for said, gold in pairs])}


def main_measure(kind: str, found: Mapping[str, float]) -> str:
    """The name of the measure that matters most among those found."""
    return OF_SPANS if OF_SPANS in found else MAIN[kind]


def guesses(task: Task, learnt: Sequence[Example], examples: Sequence[Example]) -> list[Answer]:
    """What one who has seen the answers of `learnt`, and reads no text, would say of each example.

    The most frequent label or text, the mean number, of a word its most frequent label, of a span that there is none.
    """
    if task.kind == "regression":
        return [float(np.mean([float(e.answer) for e in learnt]))] * len(examples)  # pyright: ignore[reportArgumentType]
    if task.kind == "span":
        return [""] * len(examples)
    if task.kind == "tagging":
        return _by_word(learnt, examples)
    return [Counter(str(example.answer) for example in learnt).most_common(1)[0][0]] * len(examples)


def classification(answers: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """Accuracy, the mean of the labels' F1, and Matthews' correlation (Gorodkin 2004 for more than two labels)."""
    labels = sorted({*answers, *right})
    number = {label: place for place, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    np.add.at(table, ([number[one] for one in right], [number[one] for one in answers]), 1)
    hits, said, there = np.diag(table), table.sum(0), table.sum(1)
    f1 = 2 * hits / np.maximum(said + there, 1)
    total = table.sum()
    spread = np.sqrt((total**2 - (said**2).sum()) * (total**2 - (there**2).sum()))
    return {
        "accuracy": float(hits.sum() / total),
        "macro_f1": float(f1[there > 0].mean()),
        "matthews": float((hits.sum() * total - (said * there).sum()) / spread) if spread else 0.0,
    }


def regression(answers: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlations (0 where either side is constant), and the root of the mean squared
    error."""
    return {
        "pearson": _correlation(answers, right),
        "spearman": _correlation(_ranks(answers), _ranks(right)),
        "rmse": float(np.sqrt(np.mean((answers - right) ** 2))),
    }


def tagging(answers: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]]) -> dict[str, float]:
    """Share of words with the right label; where labels are those of spans (B-X, I-X, O), the F1 of whole spans too, as
    in CoNLL-2003."""
    words = [pair for said, there in zip(answers, right, strict=True) for pair in zip(said, there, strict=True)]
    found = {"accuracy": _mean([float(said == there) for said, there in words])}
    if any(there.startswith("B-") for _, there in words):
        said, there = (
            Counter(span for number, tags in enumerate(side) for span in _spans(number, tags))
            for side in (answers, right)
        )
        hits = sum((said & there).values())
        found[OF_SPANS] = 2 * hits / max(1, sum(said.values()) + sum(there.values()))
    return found


def _spans(number: int, tags: Sequence[str]) -> list[tuple[int, int, int, str]]:
    """(row, begin, end, label) of each span; an I- that continues nothing begins one, as CoNLL's program reads it."""
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
    a, b = a - a.mean(), b - b.mean()
    length = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / length) if length > 1e-12 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[place]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
