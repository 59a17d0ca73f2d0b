"""Kernels of the quality classifier: hashed features of a text, and logistic regression over them."""

import numpy as np

from model.kernels import kernel
from tasks.clean.kernels.characters import LETTER, MARK, UNSEGMENTED, UNSEGMENTED_BREAK, WHITESPACE, flags_of
from tasks.clean.kernels.counting import mix_hash
from tasks.common.utf8 import FNV_BASIS, GOLDEN, decode

DIMENSIONS = 1 << 18

SAMPLE_BYTES = 2048
"""Bytes that are read, in the middle of the text: beginnings and ends hold titles, menus and signatures."""

MAX_FEATURES = 8 * SAMPLE_BYTES
_WORD, _PAIR, _SHAPE, _SHAPES2, _SHAPES3, _SYMBOL, _LINE = (np.uint64(kind) for kind in range(1, 8))
_MASK = np.uint64(DIMENSIONS // 2 - 1)
_UPPER_HALF = np.uint64(DIMENSIONS // 2)

WORD_WEIGHT = np.float32(0.1)
"""Weight of a word relative to a shape: words carry topics and languages, and unseen sources have others. Over six
halvings of the sources the mean AUC is .926 with 0.1, .918 with 0.3, .894 with words at full weight."""

_LONG_LINE = 16
_RATE = 0.2
_EPSILON = 1e-8
_DECAY = 1e-6


@kernel
def _feature(kind, state):
    """Hash words and pairs into the lower half of the dimensions, shapes into the upper one."""
    place = mix_hash((state ^ kind) * GOLDEN) & _MASK
    return np.int32(place) if kind < _SHAPE else np.int32(place | _UPPER_HALF)


@kernel
def count_features(raw, table, features, values):
    """Write the sorted features of a text and their values (roots of counts, of length 1 together).

    Returns how many features there are. Words are split as in `counting.count_texts`; a shape has one symbol for each
    run of letters, capitals, digits, and each other character.
    """
    size = len(raw)
    begin = max(0, (size - SAMPLE_BYTES) // 2)
    end = min(size, begin + SAMPLE_BYTES)
    while begin < end and raw[begin] & 0xC0 == 0x80:
        begin += 1
    while end < size and end > begin and raw[end] & 0xC0 == 0x80:
        end -= 1
    count = 0
    word = shape = FNV_BASIS
    before = shape_before = shape_before_that = FNV_BASIS
    last_symbol = np.uint64(0)
    in_word = False
    words_in_line = 0
    position = begin
    while position <= end:
        if position < end:
            codepoint, following = decode(raw, position)
            flags = flags_of(codepoint, table)
        else:
            codepoint, following, flags = np.int64(32), position + 1, np.int64(WHITESPACE)
        is_unsegmented = flags & UNSEGMENTED != 0 or (codepoint >= 0x80 and flags & UNSEGMENTED_BREAK != 0)
        if in_word and (flags & WHITESPACE or is_unsegmented):
            features[count] = _feature(_WORD, word)
            features[count + 1] = _feature(_PAIR, word ^ (before * GOLDEN))
            features[count + 2] = _feature(_SHAPE, shape)
            features[count + 3] = _feature(_SHAPES2, shape ^ (shape_before * GOLDEN))
            features[count + 4] = _feature(_SHAPES3, shape ^ ((shape_before ^ (shape_before_that * GOLDEN)) * GOLDEN))
            count += 5
            before, shape_before_that, shape_before = word, shape_before, shape
            word = shape = FNV_BASIS
            last_symbol = np.uint64(0)
            in_word = False
            words_in_line += 1
        if flags & WHITESPACE:
            if codepoint == ord("\n"):
                shape_before_that, shape_before = shape_before, np.uint64(10)
                features[count] = _feature(_LINE, np.uint64(min(words_in_line, _LONG_LINE)))
                count += 1
                words_in_line = 0
        elif count + 10 < len(features):
            in_word = True
            word = (word ^ np.uint64(codepoint)) * GOLDEN
            if flags & UNSEGMENTED:
                symbol = np.uint64(2)
            elif ord("A") <= codepoint <= ord("Z") or 0x410 <= codepoint <= 0x42F:
                symbol = np.uint64(3)
            elif flags & (LETTER | MARK):
                symbol = np.uint64(4)
            elif ord("0") <= codepoint <= ord("9"):
                symbol = np.uint64(5)
            else:
                symbol = np.uint64(codepoint)
                features[count] = _feature(_SYMBOL, symbol)
                count += 1
            if symbol != last_symbol or symbol > np.uint64(5):
                shape = (shape ^ symbol) * GOLDEN
            last_symbol = symbol
        position = following
    features[:count].sort()
    kept = 0
    index = 0
    total = 0.0
    while index < count:
        run = index
        while run < count and features[run] == features[index]:
            run += 1
        features[kept] = features[index]
        value = np.sqrt(np.float32(run - index))
        values[kept] = value if features[index] >= DIMENSIONS // 2 else value * WORD_WEIGHT
        total += values[kept] * values[kept]
        kept += 1
        index = run
    for feature in range(kept):
        values[feature] /= np.float32(np.sqrt(total))
    return kept


@kernel
def train_weights(bounds, features, values, good, costs, order, dimensions):
    """Train a logistic regression with one AdaGrad step for each row in `order`; returns (weights, bias)."""
    weights = np.zeros(dimensions)
    squares = np.zeros(dimensions)
    bias = bias_squares = 0.0
    for row in order:
        margin = bias
        for place in range(bounds[row], bounds[row + 1]):
            margin += weights[features[place]] * values[place]
        slope = costs[row] * (1.0 / (1.0 + np.exp(-margin)) - good[row])
        for place in range(bounds[row], bounds[row + 1]):
            feature = features[place]
            gradient = slope * values[place] + _DECAY * weights[feature]
            squares[feature] += gradient * gradient
            weights[feature] -= _RATE * gradient / (np.sqrt(squares[feature]) + _EPSILON)
        bias_squares += slope * slope
        bias -= _RATE * slope / (np.sqrt(bias_squares) + _EPSILON)
    return weights, bias


@kernel
def score_rows(bounds, features, values, weights, bias, rows):
    """Return the probability of being good for each of `rows`."""
    found = np.zeros(len(rows))
    for index in range(len(rows)):
        margin = bias
        for place in range(bounds[rows[index]], bounds[rows[index] + 1]):
            margin += np.float64(weights[features[place]]) * np.float64(values[place])
        found[index] = 1.0 / (1.0 + np.exp(-margin))
    return found
