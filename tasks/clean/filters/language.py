"""Language identification by the model of langid.py (Lui and Baldwin 2012), offline.

py3langid ships the model, an automaton over bytes with naive Bayes weights. A compiled kernel runs it over a few
windows spread through the text, since naive Bayes is overconfident on any long text. The language is the most likely
one over all windows together; its confidence is its mean probability over the windows, so that a page half in another
language has about 0.5.
"""

import functools
from dataclasses import dataclass

import numpy as np

from model.kernels import kernel

WINDOWS = 4
WINDOW_BYTES = 512


@dataclass(frozen=True)
class LanguageModel:
    """Codes of the languages, and the automaton and weights behind them (`py3langid`).

    The automaton is the next state by state and byte, the first feature of each state, the features, their weights
    (features, languages), and the prior of each language.
    """

    languages: tuple[str, ...]
    automaton: tuple[np.ndarray, ...]


@functools.cache
def language_model() -> LanguageModel:
    """Load the model that the installed py3langid ships."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    found = LanguageIdentifier.from_pickled_model(MODEL_FILE)
    moves = np.asarray(found.tk_nextmove, np.uint16)
    by_state = [found.tk_output.get(state, ()) for state in range(len(moves) // 256)]
    first = np.concatenate(([0], np.cumsum([len(features) for features in by_state]))).astype(np.int32)
    features = np.array([feature for of_state in by_state for feature in of_state], np.int32)
    weights, prior = np.ascontiguousarray(found.nb_ptc, np.float32), np.asarray(found.nb_pc, np.float32)
    return LanguageModel(tuple(found.nb_classes), (moves, first, features, weights, prior))


def identify_languages(data: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Identify the language of each text data[begins[i]:ends[i]] (UTF-8, uint8).

    Returns (index in `language_model().languages` (int64), confidence 0 to 1 (float64)).
    """
    languages = np.zeros(len(begins), np.int64)
    confidences = np.zeros(len(begins))
    _identify(data, begins, ends, *language_model().automaton, languages, confidences)
    return languages, confidences


@kernel
def _identify(data, begins, ends, moves, first_feature, features, weights, prior, languages, confidences):
    counts = np.zeros(len(weights), np.int32)
    seen = np.zeros(len(weights), np.int32)
    log_probabilities = np.zeros((WINDOWS, len(prior)), np.float32)
    total = np.zeros(len(prior), np.float32)
    for text in range(len(begins)):
        begin, end = begins[text], ends[text]
        size = end - begin
        is_whole = size <= WINDOWS * WINDOW_BYTES
        windows = max(1, (size + WINDOW_BYTES - 1) // WINDOW_BYTES) if is_whole else WINDOWS
        total[:] = prior
        for window in range(windows):
            start = begin + (window * WINDOW_BYTES if is_whole else window * (size - WINDOW_BYTES) // (WINDOWS - 1))
            scores = log_probabilities[window]
            _score_window(data, start, min(end, start + WINDOW_BYTES), moves, first_feature, features, weights, prior,
                          counts, seen, scores)  # fmt: skip
            for language in range(len(prior)):
                total[language] += scores[language] - prior[language]
        best = np.argmax(total)
        languages[text] = best
        confidences[text] = _mean_probability(log_probabilities, windows, best)


@kernel
def _score_window(data, begin, end, moves, first_feature, features, weights, prior, counts, seen, scores):
    while begin < end and data[begin] & 0xC0 == 0x80:
        begin += 1
    state = np.int64(0)
    different = 0
    position = begin
    while position < end:
        size = _emoji_size(data, position)
        if size:
            position += size
            continue
        state = np.int64(moves[(state << 8) + data[position]])
        position += 1
        for index in range(first_feature[state], first_feature[state + 1]):
            feature = features[index]
            if counts[feature] == 0:
                seen[different] = feature
                different += 1
            counts[feature] += 1
    scores[:] = prior
    for index in range(different):
        feature = seen[index]
        count = np.float32(counts[feature])
        counts[feature] = 0
        for language in range(len(scores)):
            scores[language] += count * weights[feature, language]


@kernel
def _emoji_size(data, position):
    """Return the bytes of an emoji, or of a character that joins or selects them, at a position; 0 for none."""
    first = data[position]
    if first < 0xE2:
        return 0
    second = data[position + 1]
    if first == 0xF0 and second == 0x9F:  # U+1F000 to U+1FFFF
        return 4
    # U+2600 to U+27BF, U+2B00 to U+2B7F, the zero-width joiner, and the selector U+FE0F
    is_sign = first == 0xE2 and (0x98 <= second <= 0x9E or 0xAC <= second <= 0xAD)
    is_joiner = first == 0xE2 and second == 0x80 and data[position + 2] == 0x8D
    is_selector = first == 0xEF and second == 0xB8 and data[position + 2] == 0x8F
    return 3 if is_sign or is_joiner or is_selector else 0


@kernel
def _mean_probability(log_probabilities, windows, best):
    total = 0.0
    for window in range(windows):
        scores = log_probabilities[window]
        highest = scores.max()
        normaliser = 0.0
        for language in range(len(scores)):
            normaliser += np.exp(np.float64(scores[language] - highest))
        total += np.exp(np.float64(scores[best] - highest)) / normaliser
    return total / windows
