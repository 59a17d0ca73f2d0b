"""What a BERT needs for a task: rows of ids with their targets, a head, its loss, and answers from what it says.

Shapes: B rows, T tokens, D width, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.bert import BERT
from model.finetune.config import FinetuneConfig, Task
from model.finetune.examples import Answer, Example
from model.finetune.truncation import Truncation, fit_together
from model.finetune.vocabulary import Vocabulary
from model.targets import NO_LOSS

OUTSIDE = "O"
"""Label of words that belong to no name (Ramshaw and Marcus 1995)."""


@dataclass(frozen=True)
class Row:
    """What the network reads at once, and what it should say."""

    example: int
    """Number of the example that it is of, or a part of."""
    ids: list[int]
    second: int
    """Place from which tokens are of the second text; the length where there is none."""
    target: tuple[float, ...]
    """A label, a number, a label or NO_LOSS for each token, or first and last token of the answer."""
    borders: np.ndarray | None = None
    """Of a span: i64[T, 2], the bytes of the passage that each token covers; -1 for tokens that are not of it."""


def word_places(row: Row) -> list[int]:
    """Of a tagging's row, the place of each word's first token, where its label is read."""
    return [place for place, target in enumerate(row.target) if target != NO_LOSS]


class TaskHead(nn.Module):
    """A linear reading of the stream, with dropout before it; starts from N(0, .02) as BERT's."""

    def __init__(self, width: int, outputs: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.dropout = dropout
        self.answer = nn.Linear(width, outputs)
        with torch.no_grad():
            self.answer.weight.normal_(0.0, 0.02, generator=generator)
            self.answer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """f32[..., outputs] of f32[..., width]."""
        return self.answer(F.dropout(x, self.dropout, self.training))


class Reading(Protocol):
    """One kind of task as a BERT does it."""

    outputs: int
    state: dict[str, float]
    """What was learnt beside weights, and is needed to answer."""

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, learning: bool) -> list[Row]:
        """What is read of the examples; `truncation` hears what is not."""
        ...

    def outputs_of(self, network: BERT, head: TaskHead, hidden_BTD: Tensor) -> Tensor:
        """What the head says: f32[B, outputs], or f32[B, T, outputs] of every token."""
        ...

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Mean over the rows, f32[]."""
        ...

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """An answer for each example, from the outputs of all rows."""
        ...


def whole_hidden(network: BERT, rows: Sequence[Row], pad: int) -> Tensor:
    """The stream f32[B, T, D] of rows, each filled up to the longest."""
    device = network.embedding.weight.device
    longest = max(len(row.ids) for row in rows)
    ids_BT = torch.tensor([row.ids + [pad] * (longest - len(row.ids)) for row in rows], device=device)
    place_T = torch.arange(longest, device=device)
    length_B = torch.tensor([len(row.ids) for row in rows], device=device)
    is_token_BT = place_T < length_B[:, None]
    second_B = torch.tensor([row.second for row in rows], device=device)
    types_BT = ((place_T >= second_B[:, None]) & is_token_BT).long()
    return network.hidden(ids_BT, types_BT, is_token_BT)


class SentenceReading:
    """A label or a number for a text or a pair, read from [CLS] through BERT's pooler (section 4.1 there)."""

    def __init__(self, task: Task, labels: Sequence[str], vocabulary: Vocabulary, config: FinetuneConfig, room: int):
        self._labels = list(labels)
        self._vocabulary, self._room = vocabulary, room
        self._number = task.kind == "regression"
        self.outputs = 1 if self._number else len(labels)
        self.state: dict[str, float] = {}

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, learning: bool) -> list[Row]:
        """[CLS] text [SEP], or [CLS] text [SEP] text [SEP]; the longest of a pair is cut first."""
        if learning and self._number:
            numbers = np.array([example.answer for example in examples], dtype=np.float64)
            self.state = {"mean": float(numbers.mean()), "deviation": float(numbers.std()) or 1.0}
        rows = []
        for number, example in enumerate(examples):
            texts = [self._vocabulary.encode(text) for text in example.texts]
            kept = fit_together([len(text) for text in texts], self._room - 1 - len(texts))
            truncation.count(sum(map(len, texts)), sum(kept))
            ids, second = [self._vocabulary.cls], 0
            for text, length in zip(texts, kept, strict=True):
                ids += [*text[:length], self._vocabulary.sep]
                second = second or len(ids)
            rows.append(Row(number, ids, second, (self._target(example),)))
        return rows

    def _target(self, example: Example) -> float:
        if example.answer is None:
            return NO_LOSS
        if self._number:
            assert isinstance(example.answer, float), "a number"
            return (example.answer - self.state["mean"]) / self.state["deviation"]
        return self._labels.index(str(example.answer))

    def outputs_of(self, network: BERT, head: TaskHead, hidden_BTD: Tensor) -> Tensor:
        """f32[B, C] or f32[B, 1]."""
        return head(torch.tanh(network.next_head_in(hidden_BTD[:, 0])))

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Cross entropy, or the squared error of numbers in their standard deviations."""
        if self._number:
            return F.mse_loss(outputs[:, 0], torch.tensor([row.target[0] for row in rows], device=outputs.device))
        return F.cross_entropy(outputs, torch.tensor([int(row.target[0]) for row in rows], device=outputs.device))

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """The likeliest label, or the number."""
        if self._number:
            return [self.state["mean"] + self.state["deviation"] * float(output[0]) for output in outputs]
        return [self._labels[int(output.argmax())] for output in outputs]


class TaggingReading:
    """A label for each word, read from its first token (BERT, section 5.3)."""

    def __init__(self, task: Task, labels: Sequence[str], vocabulary: Vocabulary, config: FinetuneConfig, room: int):
        self._labels = list(labels)
        self._vocabulary, self._room = vocabulary, room
        self.outputs = len(labels)
        self.state: dict[str, float] = {}

    def rows(self, examples: Sequence[Example], truncation: Truncation, *, learning: bool) -> list[Row]:
        """[CLS] words [SEP]; words that do not fit are cut, and answered with the label that comes first."""
        rows = []
        for number, example in enumerate(examples):
            ids, target = [self._vocabulary.cls], [NO_LOSS]
            tags = example.answer if isinstance(example.answer, tuple) else None
            tokens = kept = 0
            for place, word in enumerate(example.texts):
                # A word stands behind a blank in the text that the network was trained on.
                pieces = self._vocabulary.encode(f" {word}" if place else word) or [self._vocabulary.sep]
                tokens += len(pieces)
                if kept == tokens - len(pieces) and len(ids) + len(pieces) < self._room:
                    kept += len(pieces)
                    ids += pieces
                    target += [self._labels.index(tags[place]) if tags else 0] + [NO_LOSS] * (len(pieces) - 1)
            truncation.count(tokens, kept)
            rows.append(Row(number, [*ids, self._vocabulary.sep], len(ids) + 1, (*target, NO_LOSS)))
        return rows

    def outputs_of(self, network: BERT, head: TaskHead, hidden_BTD: Tensor) -> Tensor:
        """f32[B, T, C]."""
        return head(hidden_BTD)

    def loss(self, outputs: Tensor, rows: Sequence[Row]) -> Tensor:
        """Cross entropy, mean over words."""
        targets = torch.full(outputs.shape[:2], NO_LOSS, device=outputs.device)
        for place, row in enumerate(rows):
            targets[place, : len(row.target)] = torch.tensor(row.target, dtype=torch.int64)
        nats = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=NO_LOSS, reduction="sum")
        return nats / max(1, int((targets != NO_LOSS).sum()))

    def answers(self, outputs: Sequence[Tensor], rows: Sequence[Row], examples: Sequence[Example]) -> list[Answer]:
        """The likeliest label of each word."""
        found: list[Answer] = []
        for output, row, example in zip(outputs, rows, examples, strict=True):
            said = [self._labels[int(output[place].argmax())] for place in word_places(row)]
            # Of words that were cut off nothing is known; a label that begins a name would invent one.
            unsaid = OUTSIDE if OUTSIDE in self._labels else self._labels[0]
            found.append((*said, *[unsaid] * (len(example.texts) - len(said))))
        return found
