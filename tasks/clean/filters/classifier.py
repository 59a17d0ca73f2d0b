"""Classifiers that a recipe names or trains, such as for toxicity or quality: a document on the wrong side is dropped.

A model comes as a file of fastText (Joulin et al. 2017; `fasttext_model.py`), as a linear model in safetensors (tensors
`weight` over the hashed features of `quality_features.py`, and `bias`), or is trained in the stage: on texts with
labels, or on good and bad sources of the recipe. The linear model is the logistic regression of `quality.py`, with
words at full weight, since one word may decide. No model comes with the program: whose speech a toxicity classifier
removes depends on its labels (Dodge et al. 2021), so which one, and how strict, is the user's decision.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from model.digests import digest_bytes, digest_file, read_bytes
from model.errors import InputError, json_problem
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.workspace import Workspace
from tasks.clean.chain import Labelled, Scorer, UserResources
from tasks.clean.config import ClassifierConfig, CleanConfig, QualityConfig
from tasks.clean.filters.fasttext_model import read_fasttext
from tasks.clean.filters.quality import MIN_DOCUMENTS, Examples, auc, middle, training_texts
from tasks.clean.filters.quality_features import DIMENSIONS

_LABEL = "__label__"
Result = TypeVar("Result")


@dataclass(frozen=True)
class LinearModel:
    """Weights (float32) of hashed features, and the bias."""

    weights: np.ndarray
    bias: float

    def score(self, raw: np.ndarray) -> float | None:
        """Return the probability of the label, by the middle of the text."""
        examples = Examples.of([middle(raw)]).with_full_words()
        return float(examples.scores(self.weights, self.bias, np.zeros(1, np.int64))[0])


@dataclass(frozen=True)
class ModelFile:
    """A model's file by its digest; each process loads it once, and refuses a file that differs."""

    name: str
    path: str
    digest: str
    label: str

    def score(self, raw: np.ndarray) -> float | None:
        return _load(self)(raw)


def read_model_file(config: ClassifierConfig) -> ModelFile:
    """Return a classifier's file; raises InputError where it is missing, damaged, or has no such label."""
    assert config.path is not None
    assert config.label is not None
    file = ModelFile(config.name, config.path, _read(config.name, config.path, digest_file), config.label)
    _load(file)
    return file


def read_labelled_texts(config: ClassifierConfig) -> Labelled:
    """Return the examples of a classifier, JSON lines of `text` and `label`.

    Raises InputError where a line is malformed, or fewer than 50 have the label or another one.
    """
    assert config.labels is not None
    raw = _read(config.name, config.labels, read_bytes)
    texts: list[bytes] = []
    has_label: list[bool] = []
    for number, line in enumerate(raw.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text, label = record["text"], record["label"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            of_fields = isinstance(error, KeyError | TypeError)
            problem = f"{type(error).__name__}: {error}" if of_fields else json_problem(error)
            raise InputError(
                f"clean.classifiers `{config.name}`: line {number} of {config.labels} is no example ({problem}); write"
                ' lines such as {"text": "...", "label": "toxic"}.'
            ) from error
        texts.append(str(text).encode(errors="replace"))
        has_label.append(str(label) == config.label)
    count = sum(has_label)
    if min(count, len(texts) - count) < MIN_DOCUMENTS:
        raise InputError(
            f"clean.classifiers `{config.name}`: {config.labels} has {count} texts with the label `{config.label}` and"
            f" {len(texts) - count} with others, and {MIN_DOCUMENTS} of each are needed."
        )
    return Labelled(tuple(texts), tuple(has_label), digest_bytes(raw))


def train_classifiers(
    documents: Artifact, config: CleanConfig, resources: UserResources, workspace: Workspace
) -> tuple[dict[str, Scorer], dict[str, Any]]:
    """Train the classifiers without a file; returns (models, facts: `examples` with the label, `others`, `auc`).

    The area under the ROC curve is measured on every fifth example, by a model of the others. A killed build trains
    again, with the same result.
    """
    models: dict[str, Scorer] = {}
    facts: dict[str, Any] = {}
    for chosen in config.classifiers:
        if chosen.path is not None:
            continue
        if chosen.labels is not None:
            known = resources.labelled[chosen.name]
            texts = [middle(np.frombuffer(text, np.uint8)) for text in known.texts]
            good = np.array(known.has_label)
        else:
            texts, good = _texts_of_sources(documents, config, chosen, resources, workspace)
        examples = Examples.of(texts).with_full_words()
        held_out = _every_fifth(good)
        weights, bias = examples.train(good, np.flatnonzero(~held_out), chosen.seed)
        scores = examples.scores(weights, bias, np.flatnonzero(held_out))
        facts[chosen.name] = {
            "examples": int(good.sum()),
            "others": int((~good).sum()),
            "auc": round(auc(scores, good[held_out]), 4),
        }
        models[chosen.name] = LinearModel(*examples.train(good, np.arange(len(good)), chosen.seed))
    return models, facts


def _texts_of_sources(
    documents: Artifact, config: CleanConfig, chosen: ClassifierConfig, resources: UserResources, workspace: Workspace
) -> tuple[list[np.ndarray], np.ndarray]:
    sampled = QualityConfig(good=chosen.good, documents=chosen.documents, seed=chosen.seed)
    sources, texts = training_texts(documents, config, sampled, resources, workspace, {*chosen.good, *chosen.bad})
    good = np.array([source in chosen.good for source in sources], np.bool_)
    if min(good.sum(), (~good).sum()) < MIN_DOCUMENTS:
        raise InputError(
            f"clean.classifiers `{chosen.name}`: {int(good.sum())} documents of the good sources and"
            f" {int((~good).sum())} of the bad ones pass the edits and rules, and {MIN_DOCUMENTS} of each are needed."
        )
    return texts, good


def _every_fifth(good: np.ndarray) -> np.ndarray:
    """Return which examples are held out (bool): every fifth, or every fifth of each class where one would be missing
    among them or among the others."""
    held_out = np.arange(len(good)) % 5 == 0
    if len({*zip(good.tolist(), held_out.tolist(), strict=True)}) < 4:
        for of_class in (good, ~good):
            held_out[of_class] = np.arange(of_class.sum()) % 5 == 0
    return held_out


def _read(name: str, path: str, read: Callable[[Path], Result]) -> Result:
    try:
        return read(Path(path))
    except OSError as error:
        raise InputError(f"clean.classifiers `{name}`: {path} cannot be read ({error}). Check the path.") from error


@functools.lru_cache(maxsize=8)
def _load(file: ModelFile) -> Callable[[np.ndarray], float | None]:
    name, path, label = file.name, file.path, file.label
    if _read(name, path, digest_file) != file.digest:
        raise InputError(f"clean.classifiers `{name}`: {path} changed while the stage ran. Start the run again.")
    if path.endswith(".safetensors"):
        return _load_linear(name, path).score
    model = read_fasttext(name, path)
    wanted = (label if label.startswith(_LABEL) else _LABEL + label).encode()
    if wanted not in model.labels:
        shown = ", ".join(sorted(found.decode(errors="replace") for found in model.labels)[:20])
        raise InputError(f"clean.classifiers `{name}`: {path} has no label `{label}`; its labels: {shown}.")
    return functools.partial(model.probability, label=model.labels.index(wanted))


def _load_linear(name: str, path: str) -> LinearModel:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(_read(name, path, read_bytes))
    except (SafetensorError, ValueError) as error:
        raise InputError(f"clean.classifiers `{name}`: {path} is no safetensors file ({error}).") from error
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is None or bias is None or weight.size != DIMENSIONS or bias.size != 1:
        raise InputError(
            f"clean.classifiers `{name}`: {path} has the tensors {sorted(tensors)}; it needs `weight` of"
            f" {DIMENSIONS} values and `bias` of one."
        )
    return LinearModel(weight.reshape(-1).astype(np.float32), float(bias.reshape(-1)[0]))
