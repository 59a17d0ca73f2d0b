"""Micro-batches on their way through the stages of a pipeline: activations forward, their gradients back."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from model.parallel.schedule import one_forward_one_backward
from model.parallel.stages import Heat, Stage
from model.ranks import Ranks

Forward = Callable[[], AbstractContextManager[object]]
Loss = Callable[[int, Tensor, Heat], Tensor]
"""What is minimised, f32[], given the number of a micro-batch, what the head reads of it, and thermometers."""


class Flow:
    """One stage's part. Sending does not wait, so that no order of turns can lock two stages; receiving does."""

    def __init__(self, stage: Stage, ranks: Ranks, rank_of_stage: Callable[[int], int], forward: Forward) -> None:
        """`ranks` have one stage each; `rank_of_stage` gives their numbers among all processes. Forward passes are made
        within `forward()`."""
        self._stage = stage
        self._within = forward
        self._ranks = ranks
        self._is_last = ranks.rank == ranks.size - 1
        self._before = rank_of_stage(max(ranks.rank - 1, 0))
        self._behind = rank_of_stage(min(ranks.rank + 1, ranks.size - 1))
        self._sent: list[tuple[Any, Tensor]] = []

    def run(self, inputs: list[dict[str, Any]], loss: Loss, without_loss: Callable[[Heat], None]) -> None:
        """Forward and backward passes of all micro-batches; gradients add up in the weights' `grad`.

        The last stage calls `loss` once for each, the others `without_loss`.
        """
        held: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for turn, number in one_forward_one_backward(len(inputs), self._ranks.rank, self._ranks.size):
            if turn == "backward":
                self._backward(number, *held.pop(number))
                continue
            heat: Heat = {}
            received = self._receive_all(self._empty(inputs[number]), self._before, number)
            with self._within():
                made = self._stage(received, inputs[number], heat)
                made = [loss(number, made[0], heat)] if self._is_last else made
            if not self._is_last:
                without_loss(heat)
                self._send_all(made, self._behind, number)
            held[number] = received, made
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _empty(self, inputs: dict[str, Any]) -> list[Tensor]:
        return [torch.empty(shape, requires_grad=True) for shape in self._stage.shapes(inputs)]

    def _backward(self, number: int, received: list[Tensor], made: list[Tensor]) -> None:
        if self._is_last:
            torch.autograd.backward(made)
        else:
            gradients = self._receive_all([torch.empty_like(tensor) for tensor in made], self._behind, number)
            torch.autograd.backward(made, gradients)
        self._send_all([_gradient(tensor) for tensor in received], self._before, number)

    def _send_all(self, tensors: list[Tensor], to: int, number: int) -> None:
        for index, tensor in enumerate(tensors):
            assert tensor.dtype == torch.float32, "the residual stream and its gradients are float32"
            whole = tensor.detach().contiguous()
            self._sent.append((torch.distributed.isend(whole, to, tag=_tag(number, index)), whole))

    def _receive_all(self, tensors: list[Tensor], source: int, number: int) -> list[Tensor]:
        for index, tensor in enumerate(tensors):
            torch.distributed.recv(tensor.detach(), source, tag=_tag(number, index))
        return tensors


def _gradient(received: Tensor) -> Tensor:
    assert received.grad is not None, "what a stage is handed is read by it"
    return received.grad


def _tag(number: int, index: int) -> int:
    """Which message between two ranks this is: the tensors of a micro-batch by their number, two at most."""
    return 2 * number + index
