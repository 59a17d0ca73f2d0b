"""Task models: a BERT, T5 or GPT (`model/finetune/chat.py`) with what it needs to learn tasks and to answer.

A BERT has a head for its one task (`model/finetune/heads.py`). A T5 reads and writes tasks as text (Raffel et al. 2020,
section 2.4 and appendix D): "stsb sentence1: ... sentence2: ..." is answered by "3.8".

Shapes: B rows, T encoder inputs, U decoder inputs, C labels, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.data.row_format import NO_LOSS
from model.errors import InputError, RecipeError
from model.finetune.chat import GPTTaskModel
from model.finetune.chat_template import ChatTemplate
from model.finetune.config import FinetuneConfig, Task
from model.finetune.data import Answer, Example, Truncation
from model.finetune.description import TaskDescription
from model.finetune.heads import (
    Row,
    SequenceClassification,
    SpanExtraction,
    TaskAdapter,
    TaskHead,
    TokenClassification,
    whole_hidden,
)
from model.finetune.lora import add_adapters
from model.finetune.tokenizer import Vocabulary
from model.inference.generate import padded
from model.inference.seq2seq import DecoderTokens, allow_only, write_targets
from model.nn.bert import BERT
from model.nn.factory import Network, make_network
from model.nn.gpt import GPT
from model.nn.t5 import T5

ADAPTERS: dict[str, type[TaskAdapter]] = {
    "classification": SequenceClassification,
    "regression": SequenceClassification,
    "tagging": TokenClassification,
    "span": SpanExtraction,
}

DEFAULT_DROPOUT = 0.1
"""Dropout of BERT and T5 in fine-tuning."""

ANSWERED_AT_ONCE = 64
"""Rows of one forward pass while answering."""

Labels = Mapping[str, Sequence[str]]
"""Labels by the name of the task; empty for tasks without labels."""


def build_task_model(
    trained: Network,
    config: FinetuneConfig,
    labels: Labels,
    vocabulary: Vocabulary,
    seed: int,
    template: ChatTemplate | None = None,
) -> "TaskModel":
    """Return a task model with a copy of the weights of `trained`, adapters if set, and a new head for a BERT.

    `template` is the chat template of the model's tokenizer, if any. Raises RecipeError for tasks that the architecture
    cannot do, InputError for a vocabulary without the special tokens that they need.
    """
    tasks = list(config.tasks)
    _check_tasks(trained, tasks, vocabulary)
    if vocabulary.vocab_size > trained.config.vocab_size:
        raise InputError(
            f"the vocabulary has {vocabulary.vocab_size} tokens, and the model has {trained.config.vocab_size}"
            f" embedding rows: they do not belong together. Give the vocabulary of the model's own run"
        )
    network = make_network(trained.config.model_copy(update={"dropout": dropout_of(config, trained)}))
    network.load_state_dict(trained.state_dict())
    if config.lora is not None:
        add_adapters(network, config.lora, seed)
    max_tokens = _max_tokens(config, trained.config.context, fixed=not isinstance(trained, T5))
    if isinstance(network, GPT):
        chosen = template if config.template != "own" else None
        if chosen is None and config.template == "base":
            raise InputError(
                'template is base, and the model\'s tokenizer has no chat template; set template = "own", or leave it'
                " out"
            )
        return GPTTaskModel(network, chosen or ChatTemplate.own(vocabulary), vocabulary, max_tokens)
    if isinstance(network, T5):
        _check_names([task.name for task in tasks], vocabulary)
        return T5TaskModel(
            network, [TextTask(task, labels[task.name], vocabulary) for task in tasks], vocabulary, config, max_tokens
        )
    adapter = ADAPTERS[tasks[0].kind](tasks[0], labels[tasks[0].name], vocabulary, config, max_tokens)
    head = TaskHead(network.config.width, adapter.outputs, network.config.dropout, torch.Generator().manual_seed(seed))
    return BERTTaskModel(network, head, adapter, vocabulary)


def _check_tasks(trained: Network, tasks: Sequence[Task], vocabulary: Vocabulary) -> None:
    """Raise RecipeError for tasks that the architecture cannot do, InputError for a vocabulary without the special
    tokens that they need."""
    if isinstance(trained, GPT):
        other = [task for task in tasks if task.kind != "chat"]
        if other or len(tasks) > 1:
            raise RecipeError(
                f'the model is a GPT, which learns one task of kind = "chat", and the task file has'
                f" {', '.join(f'{task.name} ({task.kind})' for task in tasks)}. Write examples as conversations, or"
                f" start from a BERT or T5"
            )
        return
    chats = [task.name for task in tasks if task.kind == "chat"]
    if chats:
        raise RecipeError(f"task {chats[0]}: only a GPT learns conversations; choose another kind, or start from a GPT")
    if isinstance(trained, BERT):
        if len(tasks) > 1:
            raise RecipeError(
                f"the model is a BERT, which learns a single task, and the task file has {len(tasks)}:"
                f" {', '.join(task.name for task in tasks)}. Give each task a file, or start from a T5"
            )
        if tasks[0].kind == "text":
            raise RecipeError(f"task {tasks[0].name}: a BERT writes no text; choose another kind, or start from a T5")
        if vocabulary.cls < 0 or vocabulary.sep < 0:
            raise InputError(
                "the model's vocabulary has no [CLS] and [SEP], so it is not one that a BERT was trained on"
            )
        return
    tagged = [task.name for task in tasks if task.kind == "tagging"]
    if tagged:
        raise RecipeError(
            f"task {tagged[0]}: only a BERT labels words; a T5, which writes labels as text, cannot ensure one for"
            f" each word. Start from a BERT"
        )
    if vocabulary.eos < 0:
        raise InputError(
            "a T5 learns to end its answers, and the vocabulary has no end-of-text token (</s>), so it is not one"
            " that a T5 was trained on. Give the vocabulary of the model's own run"
        )


def dropout_of(config: FinetuneConfig, trained: Network) -> float:
    """Return the dropout of fine-tuning: the configured one, or the default of the architecture."""
    if config.dropout is not None:
        return config.dropout
    return trained.config.dropout if isinstance(trained, GPT) else DEFAULT_DROPOUT


def _max_tokens(config: FinetuneConfig, context: int, *, fixed: bool) -> int:
    if fixed and (config.max_length or 0) > context:
        raise RecipeError(f"max_length {config.max_length} is more than the model's context of {context} tokens")
    return config.max_length or context


def _check_names(names: Sequence[str], vocabulary: Vocabulary) -> None:
    """Raise InputError where the names of two tasks have the same tokens, so that a T5 could not distinguish them."""
    of_ids: dict[tuple[int, ...], str] = {}
    for name in names:
        other = of_ids.setdefault(tuple(vocabulary.encode(name)), name)
        if other != name:
            raise InputError(
                f"the model's vocabulary writes the names of the tasks {other} and {name} with the same tokens, so that"
                f" the model cannot distinguish them; choose names of words that it knows"
            )


class BERTTaskModel:
    """A BERT with a head for its one task."""

    def __init__(self, network: BERT, head: TaskHead, adapter: TaskAdapter, vocabulary: Vocabulary) -> None:
        self.network, self.head = network, head
        self._adapter, self._pad = adapter, vocabulary.pad
        self._rows: list[Row] = []
        self.counts: list[int] = []
        """Number of training rows, by task."""
        self.state = adapter.state

    def modules(self) -> nn.ModuleDict:
        """Return network and head."""
        return nn.ModuleDict({"network": self.network, "head": self.head})

    def prepare(self, examples: Sequence[Sequence[Example]], truncations: Sequence[Truncation]) -> None:
        """Prepare the training rows of the one task."""
        self._rows = self._adapter.rows(examples[0], truncations[0], fitting=True)
        self.counts = [len(self._rows)]

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """Return the mean loss of these training rows, f32[]."""
        rows = [self._rows[number] for number in numbers]
        hidden_BTD = whole_hidden(self.network, rows, self._pad)
        return self._adapter.loss(self._adapter.outputs_of(self.network, self.head, hidden_BTD), rows)

    def answers(self, task: int, examples: Sequence[Example], truncation: Truncation) -> list[Answer]:
        """Return an answer to each example."""
        assert task == 0, "a BERT has one task"
        rows, outputs = self.outputs(examples, truncation)
        return self._adapter.answers(outputs, rows, examples)

    @torch.inference_mode()
    def outputs(self, examples: Sequence[Example], truncation: Truncation) -> tuple[list[Row], list[Tensor]]:
        """Return all rows of the examples with the head's outputs; rows of similar length share a batch."""
        rows = self._adapter.rows(examples, truncation, fitting=False)
        by_length = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
        outputs: list[Tensor] = [torch.empty(0)] * len(rows)
        for begin in range(0, len(rows), ANSWERED_AT_ONCE):
            some = by_length[begin : begin + ANSWERED_AT_ONCE]
            hidden_BTD = whole_hidden(self.network, [rows[number] for number in some], self._pad)
            for number, output in zip(some, self._adapter.outputs_of(self.network, self.head, hidden_BTD), strict=True):
                outputs[number] = output.cpu()
        return rows, outputs


class TextTask:
    """Converts between one task's examples and texts; InputError where two labels have the same tokens."""

    def __init__(self, task: Task, labels: Sequence[str], vocabulary: Vocabulary) -> None:
        self.task, self._vocabulary = task, vocabulary
        self.labels = tuple(labels) if task.kind == "classification" else ()
        """The labels of a classification, or the numbers of a regression; empty for other tasks."""
        if task.kind == "regression":
            self.labels = number_strings(task)
        self._of_ids = {tuple(vocabulary.encode(answer)): answer for answer in self.labels}
        if len(self._of_ids) < len(self.labels):
            raise InputError(
                f"task {task.name}: the model's vocabulary writes some of {', '.join(self.labels)} with the same"
                f" tokens, so that the model cannot distinguish them; rename the labels"
            )
        is_free = not self.labels or task.decoding == "free"
        self.rule = None if is_free else allow_only(list(self._of_ids), vocabulary.eos)
        """The constraint on what may be written; None where anything may be."""

    def read(self, example: Example) -> str:
        """Return the encoder's input: the task's name, then each field after its own name."""
        fields = (f"{name}: {text}" for name, text in zip(self.task.fields, example.texts, strict=True))
        return " ".join([self.task.name, *fields])

    def written(self, example: Example) -> str:
        """Return the text that the decoder should write; InputError for a number outside the task's range."""
        if self.task.kind == "regression":
            assert isinstance(example.answer, float), "a number"
            return nearest_string(example.answer, self.task)
        if isinstance(example.answer, tuple):
            return example.answer[0] if example.answer else ""
        assert isinstance(example.answer, str), "text"
        return example.answer

    def longest(self, max_answer: int) -> int:
        """Return the largest number of tokens to write, end of text included."""
        return max([max_answer if self.rule is None else 0, *map(len, self._of_ids)]) + 1

    def answer(self, ids: Sequence[int]) -> Answer:
        """Return the answer that the written ids mean."""
        text = self._of_ids.get(tuple(ids)) or self._vocabulary.decode(ids).strip()
        if self.task.kind != "regression":
            return text
        try:
            number = float(text)
        except ValueError:
            return UNREADABLE
        return number if math.isfinite(number) else UNREADABLE


class T5TaskModel:
    """A T5 that reads and writes tasks as text."""

    def __init__(
        self, network: T5, tasks: Sequence[TextTask], vocabulary: Vocabulary, config: FinetuneConfig, max_tokens: int
    ) -> None:
        self.network, self._tasks, self._vocabulary = network, tasks, vocabulary
        self._max_tokens, self._max_answer = max_tokens, config.max_answer
        self._rows: list[tuple[list[int], list[int]]] = []
        self.counts: list[int] = []
        self.state: dict[str, float] = {}

    def modules(self) -> nn.ModuleDict:
        """Return the network alone."""
        return nn.ModuleDict({"network": self.network})

    def prepare(self, examples: Sequence[Sequence[Example]], truncations: Sequence[Truncation]) -> None:
        """Prepare the training rows of all tasks."""
        self._rows, self.counts = [], []
        for task, some, truncation in zip(self._tasks, examples, truncations, strict=True):
            self.counts.append(len(some))
            for example in some:
                target = self._vocabulary.encode(task.written(example))
                longest = task.longest(self._max_answer) - 1
                if len(target) > longest:
                    truncation.leave_out(f"with an answer cut at {longest} tokens")
                ids = self._inputs(task, example, truncation)
                self._rows.append((ids, [*target[:longest], self._vocabulary.eos]))

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """Return the mean loss of the tokens that the decoder should write, f32[]."""
        rows = [self._rows[number] for number in numbers]
        device = self.network.embedding.weight.device
        pad = self._vocabulary.pad
        inputs_BT = padded([ids for ids, _ in rows], pad).to(device)
        lengths_B = torch.tensor([len(ids) for ids, _ in rows], device=device)
        is_token_BT = torch.arange(inputs_BT.shape[1], device=device) < lengths_B[:, None]
        decoder_inputs_BU = padded([[pad, *target[:-1]] for _, target in rows], pad).to(device)
        targets_BU = padded([target for _, target in rows], NO_LOSS).to(device)
        encoded_BTD = self.network.encode(inputs_BT, is_token_BT)
        hidden_BUD = self.network.decode(decoder_inputs_BU, encoded_BTD, is_token_BT)
        counted = targets_BU != NO_LOSS
        return F.cross_entropy(self.network.logits(hidden_BUD[counted]), targets_BU[counted])

    def answers(self, task: int, examples: Sequence[Example], truncation: Truncation) -> list[Answer]:
        """Return an answer to each example by greedy decoding; inputs of similar length share a batch."""
        text_task = self._tasks[task]
        inputs = [self._inputs(text_task, example, truncation) for example in examples]
        by_length = sorted(range(len(inputs)), key=lambda number: len(inputs[number]))
        rule, longest = text_task.rule, text_task.longest(self._max_answer)
        writing = DecoderTokens(self._vocabulary.pad, self._vocabulary.eos)
        found: list[Answer] = [""] * len(inputs)
        for begin in range(0, len(inputs), ANSWERED_AT_ONCE):
            some = by_length[begin : begin + ANSWERED_AT_ONCE]
            written = write_targets(
                self.network,
                [inputs[number] for number in some],
                writing,
                max_new_tokens=longest,
                allowed=[rule] * len(some) if rule is not None else None,
            )
            for number, ids in zip(some, written, strict=True):
                found[number] = text_task.answer(ids)
        return found

    @torch.inference_mode()
    def likelihoods(self, task: int, examples: Sequence[Example]) -> list[Tensor]:
        """Return for each example ln p, f32[C], of each label of a classification, including the end of text."""
        text_task, pad, end = self._tasks[task], self._vocabulary.pad, self._vocabulary.eos
        device = self.network.embedding.weight.device
        targets = [[*self._vocabulary.encode(label), end] for label in text_task.labels]
        targets_CU = padded(targets, NO_LOSS).to(device)
        decoder_inputs_CU = padded([[pad, *target[:-1]] for target in targets], pad).to(device)
        found: list[Tensor] = []
        for example in examples:
            inputs_CT = torch.tensor([self._inputs(text_task, example, Truncation())] * len(targets), device=device)
            is_token_CT = torch.ones_like(inputs_CT, dtype=torch.bool)
            encoded_CTD = self.network.encode(inputs_CT[:1], is_token_CT[:1]).expand(len(targets), -1, -1)
            logits_CUV = self.network.logits(self.network.decode(decoder_inputs_CU, encoded_CTD, is_token_CT))
            nats_CU = F.cross_entropy(logits_CUV.mT, targets_CU, ignore_index=NO_LOSS, reduction="none")
            found.append(-nats_CU.sum(1).cpu())
        return found

    def _inputs(self, task: TextTask, example: Example, truncation: Truncation) -> list[int]:
        ids = self._vocabulary.encode(task.read(example))
        kept = ids[: self._max_tokens - 1]
        truncation.count(len(ids), len(kept))
        return [*kept, self._vocabulary.eos]


TaskModel = BERTTaskModel | T5TaskModel | GPTTaskModel
"""A network that learns tasks and answers them."""


def task_description(task: Task, labels: Sequence[str]) -> TaskDescription:
    """Return the settings of a task that are needed to answer it."""
    settings = task.model_dump(mode="json", include=set(TaskDescription.__annotations__))
    return cast(TaskDescription, {**settings, "labels": list(labels)})


UNREADABLE = -1.0
"""The answer that text without a number counts as, as in T5's program."""


def number_strings(task: Task) -> tuple[str, ...]:
    """Return the numbers of a regression as text, ascending: 21 from 1.0 to 5.0 in steps of .2."""
    return tuple(_number_string(steps, task) for steps in range(task.steps + 1))


def nearest_string(number: float, task: Task) -> str:
    """Return the nearest of `number_strings`; InputError for a number outside the range."""
    if not task.smallest <= number <= task.largest:
        raise InputError(
            f"task {task.name}: the number {number:g} is not between smallest = {task.smallest:g} and largest ="
            f" {task.largest:g}; set these in the task file"
        )
    return _number_string(round((number - task.smallest) / task.step), task)


def _number_string(steps: int, task: Task) -> str:
    """Return the number so many steps above the least, with as many decimals as the two need, and at least one."""
    least, step = Decimal(str(task.smallest)), Decimal(str(task.step))
    decimals = max(1, *(-int(number.normalize().as_tuple().exponent) for number in (least, step)))
    return f"{least + steps * step:.{decimals}f}"
