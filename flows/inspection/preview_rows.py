"""Select documents and rows of a run for previews, and show single edits of clean and model inputs of sequences.

Model inputs are those of the first epoch: masked tokens, corrupted spans or prefixes, drawn as the trainer draws them.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypedDict, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.metrics.text_diff import ADDED, REMOVED, SAME, SHARED, Segments
from flows.runs.run_documents import parts_of, recognised, settings_of
from model.config.train import TrainConfig
from model.data.row_format import NO_LOSS, RowFormat
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.tables.rows import DocumentRow, LedgerRow, SequenceRow, rows_of
from tasks.clean.chain import Chain, preset_of
from tasks.clean.edits.registry import HTML_TO_TEXT
from tasks.common.numeric import seed64, unit_interval
from tasks.tokenizer.base import Tokenizer

Row = TypeVar("Row", DocumentRow, LedgerRow, SequenceRow)


class Passage(TypedDict):
    """A text that the network reads or writes."""

    title: str
    segments: Segments


@dataclass(frozen=True)
class Selection:
    """Selects the documents to show: `count` of those that match, the same ones for the same seed."""

    count: int
    seed: int
    source: str | None = None
    rule: str | None = None

    def choose(self, rows: Iterable[Row], key: Callable[[Row], bytes]) -> list[Row]:
        """Return the rows with the smallest numbers; a row's number is a function of its key and the seed."""
        seed = seed64(self.seed, "peek", "choose", "")
        return heapq.nsmallest(self.count, rows, key=lambda row: unit_interval(key(row), seed))


def documents(artifact: Artifact, columns: list[str]) -> Iterator[DocumentRow]:
    """Yield an artifact's documents, with one part in memory at a time."""
    for part in parts_of(artifact, "documents", columns):
        yield from rows_of(part, DocumentRow)


def ledger_rows(artifact: Artifact, actions: tuple[str, ...], rule: str | None) -> Iterator[LedgerRow]:
    """Yield ledger rows with one of the actions, and of the edit or rule `rule` where it is given."""
    for table in parts_of(artifact, "ledger", None):
        rows = rows_of(table.filter(pc.is_in(table.column("action"), value_set=pa.array(actions))), LedgerRow)
        yield from (row for row in rows if rule is None or rule in rules_of(row))


def rules_of(row: LedgerRow) -> list[str]:
    """Return the rule of a ledger row, or its edits, which are merged into one row."""
    return row["rule"].split("+")


def isolate_edit(clean: Artifact, document: DocumentRow, cleaned: str, edit: str) -> tuple[str, str] | None:
    """Return the text (before, after) one edit of a document, by running the filter chain again.

    `document` is a row of DOCUMENTS as clean read it. None where the chain cannot run from the artifact alone, because
    the recipe has lists or functions of its own, or where the chain's text is not `cleaned`, because code changed.
    """
    config = settings_of(clean)
    if config is None:
        return None
    batch = recognised(config, document)
    about = batch.contexts.at(0)
    chain = Chain.of(config, preset_of(batch, 0, config))
    order = [HTML_TO_TEXT, *(step.name for step in chain.edits)]
    if edit not in order:
        return None

    def after(edits: Collection[str]) -> str:
        steps = tuple(step for step in chain.edits if step.name in edits)
        reads_html = chain.reads_html and HTML_TO_TEXT in edits
        some = replace(chain, edits=steps, rules=(), languages=frozenset(), reads_html=reads_html)
        return some.clean(document["text"], about)[0]

    if after(order) != cleaned:
        return None
    place = order.index(edit)
    return after(order[:place]), after(order[: place + 1])


@dataclass(frozen=True)
class InputSettings:
    """Settings of the trainer that determine the model inputs of a row."""

    seed: int
    masked_share: float = TrainConfig.model_fields["masked_share"].default
    has_prefix: bool = False

    @staticmethod
    def of(artifacts: dict[str, Artifact]) -> "InputSettings":
        """Return the settings of a run's training; without one, the run's seed and the trainer's defaults."""
        if "train" not in artifacts:
            return InputSettings(manifest_of(artifacts["chunk"])["identity_parts"]["params"]["seed"])
        params = manifest_of(artifacts["train"])["identity_parts"]["params"]
        return InputSettings(params["seed"], params["masked_share"], params["model"].get("attention") == "prefix")


def model_inputs(
    tokens_RL: np.ndarray, row_R: np.ndarray, rows: RowFormat, tokenizer: Tokenizer, settings: InputSettings
) -> list[list[Passage]]:
    """Return, for each row, the texts that the network reads and writes, each with a title and segments.

    Empty where the network reads rows unchanged. Shapes: `tokens_RL` is (rows, length), `row_R` is (rows,).
    """
    words = _TokenText(tokenizer)
    epoch_R = np.zeros(len(row_R), dtype=np.int64)
    if rows.objective == "masked_lm":
        return _masked(tokens_RL, row_R, epoch_R, rows, words, settings)
    if rows.objective == "span_corruption":
        return _denoised(tokens_RL, row_R, epoch_R, rows, words, settings)
    if settings.has_prefix:
        return _behind_prefixes(tokens_RL, row_R, epoch_R, rows, words, settings)
    return [[] for _ in row_R]


class _TokenText:
    """Decodes token ids to text, special tokens to their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = {number: name for name, number in tokenizer.special_names.items()}
        self._names = {number: names.get(number, f"<{number}>") for number in tokenizer.special}

    def __call__(self, ids: np.ndarray) -> str:
        """Return the text of ids from a row."""
        return "".join(text for _, text in self.marked(ids))

    def marked(self, ids: np.ndarray) -> Segments:
        """Return the text as segments, with special tokens marked as added."""
        found: Segments = []
        for special, some in groupby(ids, key=lambda token: int(token) in self._names):
            if special:
                found.append((ADDED, " ".join(self._names[int(token)] for token in some)))
            else:
                found.append((SAME, self._tokenizer.decode_following(np.array(list(some)))))
        return found


def _masked(
    tokens: np.ndarray, row: np.ndarray, epoch: np.ndarray, rows: RowFormat, words: _TokenText, settings: InputSettings
) -> list[list[Passage]]:
    from model.data.dataset import text_lengths
    from model.data.masking import Masking

    most = math.ceil(settings.masked_share * tokens.shape[1])
    masked = Masking(rows, settings.seed, most, settings.masked_share)(tokens, row, epoch)
    found: list[list[Passage]] = []
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
    tokens: np.ndarray, row: np.ndarray, epoch: np.ndarray, rows: RowFormat, words: _TokenText, settings: InputSettings
) -> list[list[Passage]]:
    from model.data.span_corruption import Denoiser

    made = Denoiser(rows, settings.seed, tokens.shape[1])(tokens, row, epoch)
    found: list[list[Passage]] = []
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
    tokens: np.ndarray, row: np.ndarray, epoch: np.ndarray, rows: RowFormat, words: _TokenText, settings: InputSettings
) -> list[list[Passage]]:
    from model.data.dataset import text_lengths
    from model.data.philox import philox_key
    from model.data.span_corruption import prefix_lengths

    ends = text_lengths(tokens, rows.pad)
    names = (philox_key(settings.seed, "prefix"), row.astype(np.uint64), epoch.astype(np.uint64))
    return [
        [
            _text(
                f"the first {prefix} tokens are read both ways, {end - prefix} are written",
                [(SHARED, words(one[:prefix])), (SAME, words(one[prefix:end]))],
            )
        ]
        for one, prefix, end in zip(tokens, prefix_lengths(ends, *names), ends, strict=True)
    ]


def _text(title: str, segments: Segments) -> Passage:
    return {"title": title, "segments": [segment for segment in segments if segment[1]]}
