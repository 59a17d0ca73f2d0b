"""Rows as a network reads them when they come for the first time: what is hidden, taken out, or read both ways.

Draws are those of the trainer, whose seed is the run's; a run that trained says its own.
"""

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from flows.peek.difference import ADDED, REMOVED, SAME, SHARED
from model.config import TrainConfig
from model.row_format import RowFormat
from model.targets import NO_LOSS
from tasks.artifact import Artifact
from tasks.tokenizer import Tokenizer

Segments = list[tuple[str, str]]


@dataclass(frozen=True)
class Reading:
    """What of the trainer's settings decides how a row is read."""

    seed: int
    masked_share: float = TrainConfig.model_fields["masked_share"].default
    has_prefix: bool = False

    @staticmethod
    def of(artifacts: dict[str, Artifact]) -> "Reading":
        """That of a run: of its training where it came so far, else of its seed and the trainer's defaults."""
        if "train" not in artifacts:
            return Reading(artifacts["chunk"].manifest["identity_parts"]["params"]["seed"])
        params = artifacts["train"].manifest["identity_parts"]["params"]
        return Reading(params["seed"], params["masked_share"], params["model"].get("attention") == "prefix")


def rows_as_read(
    tokens_RL: np.ndarray, row_R: np.ndarray, rows: RowFormat, tokenizer: Tokenizer, reading: Reading
) -> list[list[dict[str, Any]]]:
    """For each row the texts that the network reads and writes, each a title and segments; nothing where it reads the
    row as it stands."""
    words = _Words(tokenizer)
    epoch_R = np.zeros(len(row_R), dtype=np.int64)
    if rows.objective == "masked_lm":
        return _masked(tokens_RL, row_R, epoch_R, rows, words, reading)
    if rows.objective == "span_corruption":
        return _denoised(tokens_RL, row_R, epoch_R, rows, words, reading)
    if reading.has_prefix:
        return _behind_prefixes(tokens_RL, row_R, epoch_R, rows, words, reading)
    return [[] for _ in row_R]


class _Words:
    """Ids as text, special ones by their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = {number: name for name, number in tokenizer.special_names.items()}
        self._names = {number: names.get(number, f"<{number}>") for number in tokenizer.special}

    def __call__(self, ids: np.ndarray) -> str:
        """The text of some ids of a row."""
        return "".join(
            " ".join(self._names[int(token)] for token in some)
            if special
            else self._tokenizer.decode_following(np.array(some))
            for special, some in self._stretches(ids)
        )

    def marked(self, ids: np.ndarray) -> Segments:
        """The same with special tokens marked as what was put there."""
        return [(ADDED if special else SAME, self(np.array(some))) for special, some in self._stretches(ids)]

    def _stretches(self, ids: np.ndarray) -> list[tuple[bool, list[int]]]:
        return [(special, list(some)) for special, some in groupby(ids, key=lambda token: int(token) in self._names)]


def _masked(
    tokens: np.ndarray, row: np.ndarray, epoch: np.ndarray, rows: RowFormat, words: _Words, reading: Reading
) -> list[list[dict[str, Any]]]:
    from model.masking import Masking
    from model.padding import text_lengths

    most = math.ceil(reading.masked_share * tokens.shape[1])
    masked = Masking(rows, reading.seed, most, reading.masked_share)(tokens, row, epoch)
    found: list[list[dict[str, Any]]] = []
    for at, end in enumerate(text_lengths(tokens, rows.pad)):
        hidden = np.zeros(end, dtype=np.bool_)
        hidden[masked.positions_BM[at][masked.targets_BM[at] != NO_LOSS]] = True
        segments: Segments = []
        for is_hidden, places in groupby(range(end), key=lambda place, hidden=hidden: bool(hidden[place])):
            some = list(places)
            before, after = words(tokens[at, some]), words(masked.inputs_BT[at, some])
            segments += [(REMOVED, before), (ADDED, after)] if is_hidden else [(SAME, before)]
        found.append([_text(f"read, {hidden.sum()} tokens hidden", segments)])
    return found


def _denoised(
    tokens: np.ndarray, row: np.ndarray, epoch: np.ndarray, rows: RowFormat, words: _Words, reading: Reading
) -> list[list[dict[str, Any]]]:
    from model.denoising import Denoiser

    made = Denoiser(rows, reading.seed, tokens.shape[1])(tokens, row, epoch)
    found: list[list[dict[str, Any]]] = []
    for inputs, length, targets in zip(made.inputs_BT, made.input_lengths_B, made.targets_BU, strict=True):
        written = targets[targets != NO_LOSS]
        found.append(
            [
                _text(f"the encoder reads {length} tokens", words.marked(inputs[:length])),
                _text(f"the decoder writes {len(written)} tokens", words.marked(written)),
            ]
        )
    return found


def _behind_prefixes(
    tokens: np.ndarray, row: np.ndarray, epoch: np.ndarray, rows: RowFormat, words: _Words, reading: Reading
) -> list[list[dict[str, Any]]]:
    from model.noise import prefix_lengths
    from model.padding import text_lengths
    from model.philox import philox_key

    ends = text_lengths(tokens, rows.pad)
    names = (philox_key(reading.seed, "prefix"), row.astype(np.uint64), epoch.astype(np.uint64))
    return [
        [
            _text(
                f"the first {prefix} tokens are read both ways, {end - prefix} are written",
                [(SHARED, words(one[:prefix])), (SAME, words(one[prefix:end]))],
            )
        ]
        for one, prefix, end in zip(tokens, prefix_lengths(ends, *names), ends, strict=True)
    ]


def _text(title: str, segments: Segments) -> dict[str, Any]:
    return {"title": title, "segments": [segment for segment in segments if segment[1]]}
