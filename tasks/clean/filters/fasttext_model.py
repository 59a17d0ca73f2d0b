"""Read supervised models of fastText (`.bin`, format 12; Joulin et al. 2017) and compute the probability of a label.

The matrices stay in the file and are mapped into memory, since they may have gigabytes and a text reads a few rows of
them. Words, their subwords (Bojanowski et al. 2017) and pairs or longer runs of words are found as fastText finds them:
words end at ASCII whitespace, line breaks count as spaces, and the end of the text is the token `</s>`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.errors import InputError
from model.kernels import kernel
from tasks.common.utf8 import has_bytes

MAGIC, FORMAT = 793_712_314, 12
SUPERVISED = 3
HIERARCHICAL, NEGATIVES, SOFTMAX, ONE_AGAINST_ALL = 1, 2, 3, 4
_ARGUMENTS = (
    "dim", "ws", "epoch", "min_count", "neg", "word_ngrams", "loss", "model", "bucket", "minn", "maxn",
    "lr_update_rate",
)  # fmt: skip
_HEADER = np.dtype(
    [(name, "<i4") for name in ("magic", "format", *_ARGUMENTS)]
    + [("t", "<f8"), ("size", "<i4"), ("words", "<i4"), ("labels", "<i4"), ("tokens", "<i8"), ("pruned", "<i8")]
)
_HASH_BASIS, _HASH_PRIME = 2166136261, 16777619
_NGRAM_MULTIPLIER = np.uint64(116049371)
_END_OF_TEXT = np.frombuffer(b"</s>", np.uint8).copy()
_LABEL = np.frombuffer(b"__label__", np.uint8).copy()


@dataclass(frozen=True)
class FastTextModel:
    """Labels, the dictionary as a hash table over the file's bytes, and the two matrices (float32)."""

    labels: tuple[bytes, ...]
    data: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    slots: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    words: int
    word_ngrams: int
    bucket: int
    subwords: tuple[int, int]
    loss: int
    paths: tuple[tuple[tuple[int, bool], ...], ...]
    """Of each label the nodes from the root of the tree, and whether the way goes right; empty without a tree."""

    def rows(self, raw: np.ndarray) -> np.ndarray:
        """Return the rows of the input matrix for a text (UTF-8 bytes, uint8)."""
        longest = self.subwords[1]
        found = np.empty((len(raw) + 8) * (2 + max(0, longest) + self.word_ngrams), np.int32)
        hashes = np.empty(len(raw) // 2 + 2, np.int32)
        count = _find_rows(
            raw, self.data, self.begins, self.ends, self.slots, self.words, *self.subwords, self.word_ngrams,
            self.bucket, hashes, found,
        )  # fmt: skip
        return found[:count]

    def probability(self, raw: np.ndarray, label: int) -> float | None:
        """Return the probability of a label (0 to 1); None where no word of the text is known."""
        rows = self.rows(raw)
        if not len(rows):
            return None
        hidden = np.zeros(self.inputs.shape[1], np.float64)
        for begin in range(0, len(rows), 4096):
            hidden += self.inputs[rows[begin : begin + 4096]].sum(axis=0, dtype=np.float64)
        hidden /= len(rows)
        if self.loss == HIERARCHICAL:
            probability = 1.0
            for node, right in self.paths[label]:
                chance = _sigmoid(float(self.outputs[node] @ hidden))
                probability *= chance if right else 1 - chance
            return probability
        scores = self.outputs @ hidden
        if self.loss == SOFTMAX:
            powers = np.exp(scores - scores.max())
            return float(powers[label] / powers.sum())
        return _sigmoid(float(scores[label]))


def read_fasttext(name: str, path: str) -> FastTextModel:
    """Map a model's file; raises InputError where it is no supervised, unquantised model of fastText."""

    def problem(found: str) -> InputError:
        return InputError(
            f"clean.classifiers `{name}`: {path} {found}. Name a supervised model as `fasttext supervised` writes it"
            " (.bin, not quantised), or a .safetensors file."
        )

    size = Path(path).stat().st_size
    if size < _HEADER.itemsize:
        raise problem("is too short for a model of fastText")
    data = np.memmap(path, np.uint8, "r")
    header = data[: _HEADER.itemsize].view(_HEADER)[0]
    if header["magic"] != MAGIC or header["format"] != FORMAT:
        raise problem("is no model of fastText of format 12")
    if header["model"] != SUPERVISED:
        raise problem("is a model of word vectors, without labels")
    words, labels, entries = (int(header[name]) for name in ("words", "labels", "size"))
    # Each entry takes bytes of the file, so a damaged number of them asks for no memory.
    if header["pruned"] >= 0 or words < 0 or labels < 1 or not words + labels == entries <= size:
        raise problem("is quantised or damaged")
    begins, ends, counts = (np.zeros(entries, np.int64) for _ in range(3))
    place = _read_dictionary(data, _HEADER.itemsize, begins, ends, counts)
    if place < 0:
        raise problem("ends inside its dictionary")
    matrices = []
    for _ in range(2):
        shape = data[place + 1 : place + 17].view("<i8") if place + 17 <= size else None
        rows, columns = (0, 0) if shape is None else map(int, shape)
        if min(rows, columns) < 1 or data[place] or place + 17 + 4 * rows * columns > size:
            raise problem("is quantised or ends inside a matrix")
        matrices.append(np.memmap(path, "<f4", "r", offset=place + 17, shape=(rows, columns)))
        place += 17 + 4 * rows * columns
    if matrices[0].shape != (words + int(header["bucket"]), header["dim"]) or len(matrices[1]) != labels:
        raise problem("has matrices of another size than its header says")
    dictionary = np.array(data[: int(ends[-1]) + 1])
    slots = np.full(1 << int(2 * words + 2).bit_length(), -1, np.int32)
    _fill_slots(dictionary, begins[:words], ends[:words], slots)
    names = tuple(dictionary[begins[word] : ends[word]].tobytes() for word in range(words, words + labels))
    loss = int(header["loss"])
    return FastTextModel(
        names, dictionary, begins, ends, slots, matrices[0], matrices[1], words, int(header["word_ngrams"]),
        int(header["bucket"]), (int(header["minn"]), int(header["maxn"])), loss,
        tree_paths(counts[words:].tolist()) if loss == HIERARCHICAL else (),
    )  # fmt: skip


def tree_paths(counts: list[int]) -> tuple[tuple[tuple[int, bool], ...], ...]:
    """Return the way to each leaf of the Huffman tree over labels by falling count: (node, whether it goes right)."""
    leaves = len(counts)
    weights = [*counts, *([10**15] * (leaves - 1))]
    parent, goes_right = [-1] * len(weights), [False] * len(weights)
    leaf, node = leaves - 1, leaves
    for inner in range(leaves, len(weights)):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        weights[inner] = weights[pair[0]] + weights[pair[1]]
        parent[pair[0]] = parent[pair[1]] = inner
        goes_right[pair[1]] = True
    paths = []
    for place in range(leaves):
        steps = []
        while parent[place] >= 0:
            steps.append((parent[place] - leaves, goes_right[place]))
            place = parent[place]
        paths.append(tuple(reversed(steps)))
    return tuple(paths)


def _sigmoid(value: float) -> float:
    return float(1 / (1 + np.exp(-value))) if value > -700 else 0.0


@kernel
def _read_dictionary(data, place, begins, ends, counts):
    """Read the entries (a word, a zero, its count in 8 bytes, its kind); returns where they end, -1 if outside."""
    for entry in range(len(begins)):
        begins[entry] = place
        while place < len(data) and data[place] != 0:
            place += 1
        ends[entry] = place
        if place + 10 > len(data):
            return -1
        count = np.int64(0)
        for byte in range(8):
            count |= np.int64(data[place + 1 + byte]) << (8 * byte)
        counts[entry] = count
        place += 10
    return place


@kernel
def _mix(state, byte):
    """Continue FNV-1a (32 bits, in an int64) with a byte that counts as signed, as fastText has it."""
    signed = np.int64(byte) | 0xFFFFFF00 if byte > 127 else np.int64(byte)
    return ((state ^ signed) * _HASH_PRIME) & 0xFFFFFFFF


@kernel
def _hash(data, begin, end):
    state = np.int64(_HASH_BASIS)
    for place in range(begin, end):
        state = _mix(state, data[place])
    return state


@kernel
def _fill_slots(data, begins, ends, slots):
    mask = len(slots) - 1
    for word in range(len(begins)):
        slot = _hash(data, begins[word], ends[word]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = word


@kernel
def _look_up(raw, begin, end, state, data, begins, ends, slots):
    mask = len(slots) - 1
    slot = state & mask
    while slots[slot] >= 0:
        word = slots[slot]
        is_as_long = ends[word] - begins[word] == end - begin
        if is_as_long and has_bytes(raw, begin, end, data, begins[word], end - begin):
            return word
        slot = (slot + 1) & mask
    return -1


@kernel
def _find_rows(raw, data, begins, ends, slots, words, shortest, longest, word_ngrams, bucket, hashes, found):
    count = tokens = 0
    place = 0
    size = len(raw)
    while place < size:
        while place < size and _is_space(raw[place]):
            place += 1
        begin = place
        while place < size and not _is_space(raw[place]):
            place += 1
        if place == begin or has_bytes(raw, begin, place, _LABEL, 0, len(_LABEL)):
            continue
        state = _hash(raw, begin, place)
        word = _look_up(raw, begin, place, state, data, begins, ends, slots)
        if word >= 0:
            found[count] = word
            count += 1
        if longest > 0:
            count = _find_subwords(raw, begin, place, words, shortest, longest, bucket, found, count)
        hashes[tokens] = np.int32(state)
        tokens += 1
    state = _hash(_END_OF_TEXT, 0, 4)
    word = _look_up(_END_OF_TEXT, 0, 4, state, data, begins, ends, slots)
    if word >= 0:
        found[count] = word
        count += 1
    hashes[tokens] = np.int32(state)
    tokens += 1
    if bucket > 0:
        for first in range(tokens):
            mixed = np.uint64(np.int64(hashes[first]))
            for following in range(first + 1, min(tokens, first + word_ngrams)):
                mixed = mixed * _NGRAM_MULTIPLIER + np.uint64(np.int64(hashes[following]))
                found[count] = words + np.int64(mixed % np.uint64(bucket))
                count += 1
    return count


@kernel
def _find_subwords(raw, begin, end, words, shortest, longest, bucket, found, count):
    """Append the rows of the runs of characters of `<word>`; the brackets alone are none."""
    size = end - begin + 2
    for first in range(size):
        if _bracketed(raw, begin, size, first) & 0xC0 == 0x80:
            continue
        state = np.int64(_HASH_BASIS)
        place = first
        length = 1
        while place < size and length <= longest:
            state = _mix(state, _bracketed(raw, begin, size, place))
            place += 1
            while place < size and _bracketed(raw, begin, size, place) & 0xC0 == 0x80:
                state = _mix(state, _bracketed(raw, begin, size, place))
                place += 1
            if length >= shortest and not (length == 1 and (first == 0 or place == size)) and bucket > 0:
                found[count] = words + state % bucket
                count += 1
            length += 1
    return count


@kernel
def _bracketed(raw, begin, size, place):
    if place == 0:
        return np.uint8(ord("<"))
    return np.uint8(ord(">")) if place == size - 1 else raw[begin + place - 1]


@kernel
def _is_space(byte):
    return byte == ord(" ") or ord("\t") <= byte <= ord("\r") or byte == 0
