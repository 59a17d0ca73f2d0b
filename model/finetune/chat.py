"""A GPT that learns the assistant's answers of conversations, and answers.

The loss is that of the answers' tokens alone, the token that ends each included. The score of held-out conversations is
the likelihood of an answer's tokens, for written answers are rarely equal to the given ones.

Shapes: B conversations, T tokens, N tokens of answers.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from model.data.row_format import NO_LOSS
from model.errors import InputError
from model.finetune.chat_template import ChatTemplate, Conversation
from model.finetune.data import Answer, Example, Truncation
from model.finetune.description import ChatDescription
from model.finetune.tokenizer import Vocabulary
from model.inference.generate import Prompt, Sampling, generate_batch, padded
from model.nn.gpt import GPT, prefix_mask
from model.objectives.causal import with_balance
from model.objectives.cross_entropy import chunked_nats

SCORED_AT_ONCE = 16
"""Conversations of one forward pass while scoring."""


class GPTTaskModel:
    """A GPT with a chat template."""

    def __init__(self, network: GPT, template: ChatTemplate, vocabulary: Vocabulary, max_tokens: int) -> None:
        self.network, self.template = network, template
        self._vocabulary, self._max_tokens = vocabulary, max_tokens
        self._end = template.end(vocabulary)
        self._rows: list[tuple[list[int], list[int]]] = []
        self.counts: list[int] = []
        self.state: dict[str, float] = {}

    def description(self) -> ChatDescription:
        """Return what a chat with the model needs: the template, and the id that ends answers."""
        return {**self.template.description(), "end": self._end}

    def modules(self) -> nn.ModuleDict:
        """Return the network alone."""
        return nn.ModuleDict({"network": self.network})

    def prepare(self, examples: Sequence[Sequence[Example]], truncations: Sequence[Truncation]) -> None:
        """Prepare the training rows of the one task."""
        self._rows = self.rows(examples[0], truncations[0])
        self.counts = [len(self._rows)]

    def rows(self, examples: Sequence[Example], truncation: Truncation) -> list[tuple[list[int], list[int]]]:
        """Return inputs and targets of conversations: the next token where it is an answer's, else NO_LOSS.

        A conversation that exceeds the limit loses its end; one that then has no answer is left out and counted.
        """
        found: list[tuple[list[int], list[int]]] = []
        for example in examples:
            whole = self.template.conversation(example.messages, self._vocabulary)
            kept = min(len(whole.ids), self._max_tokens + 1)
            truncation.count(len(whole.ids), kept)
            inputs, targets = answer_targets(whole, kept)
            if all(target == NO_LOSS for target in targets):
                truncation.leave_out(f"without an answer in {self._max_tokens} tokens")
                continue
            found.append((inputs, targets))
        return found

    def scored_rows(self, examples: Sequence[Example], truncation: Truncation) -> list[tuple[list[int], list[int]]]:
        """Return `rows` of held-out or test conversations; InputError where there are none."""
        if found := self.rows(examples, truncation):
            return found
        raise InputError(
            f"no held-out conversation has an answer in its first {self._max_tokens} tokens: {truncation.describe()}"
        )

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """Return the mean loss of the answers' tokens of these training rows, f32[].

        The balance of experts is in its gradient and not in its value, as in training; padding counts as tokens there.
        """
        rows = [self._rows[number] for number in numbers]
        balances: list[Tensor] | None = [] if self.network.config.experts is not None else None
        hidden_BTD, targets_BT = self._hidden(rows, balances)
        nats = chunked_nats(self.network, hidden_BTD.flatten(0, 1), targets_BT.flatten())[0]
        # The mean is that of tokens, so that a long answer counts as much as several short ones.
        return with_balance(nats, self.network, balances, targets_BT) / int((targets_BT != NO_LOSS).sum())

    @torch.inference_mode()
    def scores(self, examples: Sequence[Example], truncation: Truncation) -> dict[str, float]:
        """Return the likelihood of answers, the geometric mean over their tokens, and the share of their tokens that
        are likeliest."""
        rows = sorted(self.scored_rows(examples, truncation), key=lambda row: len(row[0]))
        nats, right, count = 0.0, 0, 0
        # Padding would change rotations that depend on the length.
        at_once = 1 if self.network.config.rotates_by_length else SCORED_AT_ONCE
        for begin in range(0, len(rows), at_once):
            hidden_BTD, targets_BT = self._hidden(rows[begin : begin + at_once])
            counted = targets_BT != NO_LOSS
            logits_NV, targets_N = self.network.logits(hidden_BTD[counted]), targets_BT[counted]
            nats += float(torch.nn.functional.cross_entropy(logits_NV.double(), targets_N, reduction="sum"))
            right += int((logits_NV.argmax(-1) == targets_N).sum())
            count += len(targets_N)
        return {"likelihood": math.exp(-nats / count), "token_accuracy": right / count}

    def answers(self, task: int, examples: Sequence[Example], truncation: Truncation) -> list[Answer]:
        """Return the likeliest answer to each conversation that ends with the user's message, of at most half the
        context."""
        assert task == 0, "a GPT has one task"
        prompts: list[Prompt] = []
        for example in examples:
            ids = self.template.prompt(example.messages, self._vocabulary)
            truncation.count(len(ids), min(len(ids), self.network.config.context))
            prompts.append(Prompt(ids, Sampling(temperature=0.0)))
        written = generate_batch(self.network, prompts, max_new_tokens=self.network.config.context // 2, stop=self._end)
        return [self._vocabulary.decode_following(ids).strip() for ids in written]

    def _hidden(
        self, rows: Sequence[tuple[list[int], list[int]]], balances: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return f32[B, T, D] after the last block, and targets i64[B, T]; rows are padded at their ends."""
        device = self.network.embedding.weight.device
        inputs_BT = padded([inputs for inputs, _ in rows]).to(device)
        targets_BT = padded([targets for _, targets in rows], NO_LOSS).to(device)
        visible = None
        if self.network.config.attention == "prefix":
            given = [next(i for i, target in enumerate(targets) if target != NO_LOSS) + 1 for _, targets in rows]
            visible = prefix_mask(torch.tensor(given, device=device), inputs_BT.shape[1])
        return self.network.hidden(inputs_BT, visible_B1TT=visible, balances=balances), targets_BT


def answer_targets(whole: Conversation, kept: int) -> tuple[list[int], list[int]]:
    """Return the first `kept` tokens but the last, and the token after each of them where it is an answer's."""
    targets = [
        token if is_answer else NO_LOSS
        for token, is_answer in zip(whole.ids[1:kept], whole.is_answer[1:kept], strict=True)
    ]
    return whole.ids[: kept - 1], targets
