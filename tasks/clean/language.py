"""Which language a text is in, and how much of it: the model of langid.py (Lui and Baldwin 2012), offline.

py3langid ships the model, an automaton over bytes with naive Bayes weights; here it runs in a compiled kernel, over a
few windows spread through the text, since naive Bayes is sure of itself on any long text. The language is the most
likely one of all windows together; its confidence is its mean probability over the windows, so that a page half in
another language has about 0.5.
"""

import functools
from dataclasses import dataclass

import numpy as np

from tasks.clean.rule import Rule
from tasks.clean.statistics import TextStatistics
from tasks.kernels import kernel

CONFIDENCE = "language_confidence"
WINDOWS = 4
WINDOW_BYTES = 512


@dataclass(frozen=True)
class LanguageModel:
    """Codes of the languages, and the automaton and weights behind them (`py3langid`)."""

    languages: tuple[str, ...]
    moves: np.ndarray
    first_feature: np.ndarray
    features: np.ndarray
    weights: np.ndarray
    prior: np.ndarray


@functools.cache
def language_model() -> LanguageModel:
    """The model that the installed py3langid ships."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    found = LanguageIdentifier.from_pickled_model(MODEL_FILE)
    moves = np.asarray(found.tk_nextmove, np.uint16)
    by_state = [found.tk_output.get(state, ()) for state in range(len(moves) // 256)]
    first = np.concatenate(([0], np.cumsum([len(features) for features in by_state]))).astype(np.int32)
    features = np.array([feature for of_state in by_state for feature in of_state], np.int32)
    weights = np.ascontiguousarray(found.nb_ptc, np.float32)
    return LanguageModel(tuple(found.nb_classes), moves, first, features, weights, np.asarray(found.nb_pc, np.float32))


def identify_language(raw: np.ndarray) -> tuple[str, float]:
    """(ISO 639-1 code, confidence 0 to 1) of UTF-8 bytes (uint8)."""
    model = language_model()
    total = model.prior.copy()
    log_probabilities = np.zeros((WINDOWS, len(total)), np.float32)
    counts = _counters(len(model.weights))
    count = _score_windows(
        raw,
        model.moves,
        model.first_feature,
        model.features,
        model.weights,
        model.prior,
        counts,
        log_probabilities,
        total,
    )
    best = int(np.argmax(total))
    return model.languages[best], _mean_probability(log_probabilities, count, best)


@functools.cache
def _counters(features: int) -> np.ndarray:
    return np.zeros(features, np.int32)


@kernel
def _score_windows(raw, moves, first_feature, features, weights, prior, counts, log_probabilities, total):
    """Scores of each window and of all together; returns how many windows there are."""
    size = len(raw)
    whole = size <= WINDOWS * WINDOW_BYTES
    windows = max(1, (size + WINDOW_BYTES - 1) // WINDOW_BYTES) if whole else WINDOWS
    languages = len(prior)
    for window in range(windows):
        begin = window * WINDOW_BYTES if whole else window * (size - WINDOW_BYTES) // (WINDOWS - 1)
        end = min(size, begin + WINDOW_BYTES)
        while begin < end and raw[begin] & 0xC0 == 0x80:
            begin += 1
        state = np.int64(0)
        for position in range(begin, end):
            state = np.int64(moves[(state << 8) + raw[position]])
            for index in range(first_feature[state], first_feature[state + 1]):
                counts[features[index]] += 1
        scores = log_probabilities[window]
        scores[:] = prior
        # Features are met again in order of the text, so that no list of all of them needs a look.
        state = np.int64(0)
        for position in range(begin, end):
            state = np.int64(moves[(state << 8) + raw[position]])
            for index in range(first_feature[state], first_feature[state + 1]):
                feature = features[index]
                if counts[feature]:
                    count = np.float32(counts[feature])
                    counts[feature] = 0
                    for language in range(languages):
                        scores[language] += count * weights[feature, language]
        for language in range(languages):
            total[language] += scores[language] - prior[language]
    return windows


@kernel
def _mean_probability(log_probabilities, windows, best):
    total = 0.0
    for window in range(windows):
        scores = log_probabilities[window]
        highest = scores.max()
        whole = 0.0
        for language in range(len(scores)):
            whole += np.exp(np.float64(scores[language] - highest))
        total += np.exp(np.float64(scores[best] - highest)) / whole
    return total / windows


def confidence(statistics: TextStatistics, limit: float) -> float | None:
    """Confidence (0 to 1) that the document is in the language that was identified."""
    del limit
    return statistics.measured.get(CONFIDENCE)


RULES = (Rule(CONFIDENCE, confidence, at_least=True),)
