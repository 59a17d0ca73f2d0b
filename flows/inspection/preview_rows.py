"""Rows as a network reads them when they come for the first time: what is hidden, taken out, or read both ways.

Draws are those of the trainer, whose seed is the run's; a run that trained says its own.

Documents and ledger rows of a run's artifacts, and an even, seeded choice among them.

One edit of clean by itself: the text just before it in the chain, and just after it.
"""

import heapq
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from flows.metrics.text_diff import ADDED, REMOVED, SAME, SHARED
from model.config.train import TrainConfig
from model.data.row_format import NO_LOSS, RowFormat
from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.schema import DOCUMENTS
from tasks.artifacts.tables import read_table
from tasks.clean.batch import iter_batches
from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig
from tasks.clean.edits.registry import HTML_TO_TEXT
from tasks.common.numeric import seed64, unit_interval
from tasks.tokenizer.base import Tokenizer

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
    from model.data.dataset import text_lengths
    from model.data.masking import Masking

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
    from model.data.span_corruption import Denoiser

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
    from model.data.dataset import text_lengths
    from model.data.rng import philox_key
    from model.data.span_corruption import prefix_lengths

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


Row = dict[str, Any]


@dataclass(frozen=True)
class Chooser:
    """Which documents are shown: `count` of those that fit, the same ones for the same seed."""

    count: int
    seed: int
    source: str | None = None
    rule: str | None = None

    def choose(self, rows: Iterable[Row], key: Callable[[Row], bytes] = lambda row: row["doc_id"]) -> list[Row]:
        """The rows with the smallest numbers, where a row's number is a function of its document's id and the seed."""
        seed = seed64(self.seed, "peek", "choose", "")
        numbered = ((unit_interval(key(row), seed), index, row) for index, row in enumerate(rows))
        return [row for _, _, row in heapq.nsmallest(self.count, numbered, key=lambda entry: entry[:2])]


def need(artifacts: dict[str, Artifact], stage: str) -> Artifact:
    """The run's artifact of a stage; InputError where the run ended before it."""
    if stage not in artifacts:
        raise InputError(
            f"peek: this run has no artifact of the stage `{stage}`; it ended before it (`bessemer runs list`)"
        )
    return artifacts[stage]


def documents(artifact: Artifact, columns: list[str], table: str = "documents") -> Iterator[Row]:
    """Rows of a table of documents, one part in memory at a time."""
    for path in artifact.files(table):
        yield from read_table(path).select(columns).to_pylist()


def ledger_rows(artifact: Artifact, actions: tuple[str, ...], rule: str | None) -> Iterator[Row]:
    """Ledger rows with one of the actions; those of a `rule` where it is one of the edits or rules named."""
    for path in artifact.files("ledger"):
        table = read_table(path)
        for row in table.filter(pc.is_in(table.column("action"), value_set=pa.array(actions))).to_pylist():
            if rule is None or rule in rules_of(row):
                row["evidence"] = _evidence(row["evidence"])
                yield row


def rules_of(row: Row) -> list[str]:
    """The rule of a ledger row, or the edits of one, which stand merged in it."""
    return row["rule"].split("+")


def sources_of(artifact: Artifact) -> dict[bytes, str]:
    """Document -> source, for a choice by source."""
    return {row["doc_id"]: row["source"] for row in documents(artifact, ["doc_id", "source"])}


def texts_of(artifact: Artifact, wanted: Iterable[bytes]) -> dict[bytes, Row]:
    """Document -> its row with source, origin and text; the pieces of a cut document in `pieces`."""
    ids = pa.array(sorted(set(wanted)), pa.binary(16))
    found: dict[bytes, Row] = {}
    for path in artifact.files("documents"):
        table = read_table(path)
        for row in table.filter(pc.is_in(table.column("doc_id"), value_set=ids)).to_pylist():
            found.setdefault(row["doc_id"], {**row, "pieces": []})["pieces"].append(row["text"])
    return found


def _evidence(text: str | None) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def around_edit(clean: Artifact, document: dict[str, Any], cleaned: str, edit: str) -> tuple[str, str] | None:
    """(before, after) one edit of a document (a row of DOCUMENTS, as clean read it), from running its chain again.

    None where the chain cannot be run from the artifact alone, since the recipe brought lists or functions, or gives
    another text than `cleaned`, since the code changed since.
    """
    try:
        config = CleanConfig.model_validate(clean.manifest["identity_parts"]["params"])
    except ValidationError:
        return None  # Paths of what the recipe brought are no part of the identity.
    row = {name: document[name] for name in DOCUMENTS.names}
    (batch,) = iter_batches(pa.Table.from_pylist([row], schema=DOCUMENTS), config.emoji)
    context = batch.contexts.at(0)
    chain = Chain.of(config, config.preset_of(context.source, context.kind))
    order = [HTML_TO_TEXT, *(step.name for step in chain.edits)]
    if edit not in order:
        return None

    def after(edits: Collection[str]) -> str:
        steps = tuple(step for step in chain.edits if step.name in edits)
        reads_html = chain.reads_html and HTML_TO_TEXT in edits
        some = replace(chain, edits=steps, rules=(), languages=frozenset(), reads_html=reads_html)
        return some.clean(document["text"], context).text

    if after(order) != cleaned:
        return None
    place = order.index(edit)
    return after(order[:place]), after(order[: place + 1])
