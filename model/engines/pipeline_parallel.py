"""Pipeline parallelism: which layers a stage holds, what it computes, and in which order micro-batches pass.

Blocks are distributed evenly, the remainder to the first stages, since the last one has the head. A weight that several
stages use (a head that is the embedding, a table of relative positions) is held by each of them, and its gradients are
summed.

Micro-batches follow the schedule 1F1B, one forward, one backward (PipeDream-Flush: Narayanan et al. 2021,
https://arxiv.org/abs/2104.04473, section 2.2): a stage never holds more micro-batches than there are stages from it to
the last, where GPipe holds all. With both, stages are idle for (stages - 1) of (micro-batches + stages - 1) turns.

Shapes: B rows, T tokens, D width; T5's encoder reads T tokens and its decoder U.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import torch
import torch.distributed
from torch import Tensor, nn

from model.config.network import NetworkConfig
from model.distributed.process_group import Ranks
from model.nn.activation_stats import activation_range, empty_range
from model.nn.bert import BERT
from model.nn.block import AttentionContext, block_range_names, run_blocks
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.t5 import T5

ActivationRanges = dict[str, Tensor]
"""Activation ranges f32[2] by name."""


class Stage(Protocol):
    """Consecutive blocks of a network, with the embedding before the first and the norm after the last."""

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """Return the shapes of the f32 tensors from the previous stage for these inputs; none for the first stage."""
        ...

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """Return the tensors for the next stage; of the last stage what the head reads, [B, T, D].

        `inputs` are the objective's for the whole network. Activation ranges are added to `ranges`.
        """
        ...


def block_count(config: NetworkConfig) -> int:
    """Return the number of blocks; T5's encoder comes first."""
    return 2 * config.layers if config.architecture == "t5" else config.layers


def stage_blocks(stage: int, stages: int, blocks: int) -> range:
    """Return the blocks of one stage."""
    base, remainder = divmod(blocks, stages)
    begin = stage * base + min(stage, remainder)
    return range(begin, begin + base + (stage < remainder))


def stages_holding(name: str, config: NetworkConfig, stages: int) -> list[int]:
    """Return the stages that hold a weight, ascending; the first of them is its writer."""
    count = block_count(config)
    stage_of = [stage for stage in range(stages) for _ in stage_blocks(stage, stages, count)]
    top, _, rest = name.partition(".")
    if top in ("blocks", "encoder_blocks", "decoder_blocks"):
        number = int(rest.partition(".")[0])
        return [stage_of[number + (config.layers if top == "decoder_blocks" else 0)]]
    if name == "embedding.weight":
        readers = {0, stage_of[config.layers]} if config.architecture == "t5" else {0}
        return sorted(readers | ({stages - 1} if _is_head_tied(config) else set()))
    if top == "embedding_encoder_distances":
        return sorted(set(stage_of[: config.layers]))
    if top == "embedding_decoder_distances":
        return sorted(set(stage_of[config.layers :]))
    if top == "embedding_distances":
        return list(range(stages))
    if top == "encoder_norm":
        return [stage_of[config.layers - 1]]
    return [0] if top.startswith(("embedding", "from_embedding")) else [stages - 1]


def _is_head_tied(config: NetworkConfig) -> bool:
    """Return whether the head is the embedding."""
    return config.architecture == "bert" or config.tied_head


def keep_stage_weights(network: nn.Module, config: NetworkConfig, stage: int, stages: int) -> None:
    """Remove the weights of other stages from a network."""
    for name, _ in list(network.named_parameters()):
        if stage not in stages_holding(name, config, stages):
            module, _, kind = name.rpartition(".")
            setattr(network.get_submodule(module), kind, None)


def make_stage(network: Network, stage: int, stages: int) -> Stage:
    """Return a stage of the network, which uses the network's modules."""
    own = stage_blocks(stage, stages, block_count(network.config))
    if isinstance(network, T5):
        return _T5Stage(network, own)
    return _GPTStage(network, own) if isinstance(network, GPT) else _BERTStage(network, own)


def _run_stage_blocks(
    blocks: nn.ModuleList, own: range, x: Tensor, ranges: ActivationRanges, names: list[str], *inputs: Any
) -> Tensor:
    """Run some of the blocks on `x`, and add their ranges under these names."""
    found: list[Tensor] = []
    x = run_blocks(blocks[own.start : own.stop], x, *inputs, ranges=found)
    ranges.update(zip(names, found, strict=True))
    return x


class _GPTStage:
    def __init__(self, network: GPT, own: range) -> None:
        self._network, self._own = network, own

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """Return the shape of the residual stream."""
        return [(*inputs["tokens_BT"].shape, self._network.config.width)] if self._own.start else []

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """Return the residual stream."""
        network, tokens_BT = self._network, inputs["tokens_BT"]
        x_BTD = received[0] if received else network.enter(tokens_BT)
        if not received:
            ranges["embedding"] = activation_range(x_BTD)
        context = network.attention_context(0, tokens_BT.shape[1], inputs["visible_B1TT"], tokens_BT.device)
        x_BTD = _run_stage_blocks(network.blocks, self._own, x_BTD, ranges, block_range_names(self._own), context)
        return [network.leave(x_BTD) if self._own.stop == len(network.blocks) else x_BTD]


class _BERTStage:
    def __init__(self, network: BERT, own: range) -> None:
        self._network, self._own = network, own

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """Return the shape of the residual stream."""
        return [(*inputs["tokens_BT"].shape, self._network.config.width)] if self._own.start else []

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """Return the residual stream."""
        network = self._network
        x_BTD = received[0] if received else network.enter(inputs["tokens_BT"], inputs["token_types_BT"])
        if not received:
            ranges["embedding"] = activation_range(x_BTD)
        context = AttentionContext(inputs["is_token_BT"][:, None, None, :])
        x_BTD = _run_stage_blocks(network.blocks, self._own, x_BTD, ranges, block_range_names(self._own), context)
        return [network.final_norm(x_BTD) if self._own.stop == len(network.blocks) else x_BTD]


class _T5Stage:
    """Encoder stages pass on the encoder's stream; decoder stages theirs and the encoder's output."""

    def __init__(self, network: T5, own: range) -> None:
        layers = network.config.layers
        self._network, self._own = network, own
        self._encoder = range(min(own.start, layers), min(own.stop, layers))
        self._decoder = range(max(own.start - layers, 0), max(own.stop - layers, 0))

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """Return the shape of the encoder's stream or output, after that of the decoder's stream where it has begun."""
        width, layers = self._network.config.width, self._network.config.layers
        encoder = (*inputs["inputs_BT"].shape, width)
        decoder = (*inputs["decoder_inputs_BU"].shape, width)
        if self._own.start > layers:
            return [decoder, encoder]
        return [encoder] if self._own.start else []

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """Compute the encoder's and the decoder's blocks of this stage."""
        network, layers = self._network, self._network.config.layers
        encoded = received[-1] if received else network.enter(inputs["inputs_BT"])
        if not received:
            ranges["encoder embedding"] = activation_range(encoded)
        if self._encoder:
            context = network.encoder_context(inputs["is_token_BT"])
            names = block_range_names(self._encoder, "encoder ")
            encoded = _run_stage_blocks(network.encoder_blocks, self._encoder, encoded, ranges, names, context)
            if self._encoder.stop == layers:
                encoded = network.leave_encoder(encoded)
        if not self._decoder:
            return [encoded]
        return self._decode(received, encoded, inputs, ranges)

    def _decode(
        self, received: list[Tensor], encoded_BTD: Tensor, inputs: dict[str, Any], ranges: ActivationRanges
    ) -> list[Tensor]:
        network, layers, tokens_BU = self._network, self._network.config.layers, inputs["decoder_inputs_BU"]
        if self._decoder.start:
            x_BUD = received[0]
        else:
            x_BUD = network.enter(tokens_BU)
            ranges["decoder embedding"] = activation_range(x_BUD)
        context = network.decoder_context(0, tokens_BU.shape[1], tokens_BU.device)
        block_inputs = (context, None, encoded_BTD, inputs["is_token_BT"][:, None, None, :])
        names = block_range_names(self._decoder, "decoder ", cross_attention=True)
        x_BUD = _run_stage_blocks(network.decoder_blocks, self._decoder, x_BUD, ranges, names, *block_inputs)
        if self._decoder.stop == layers:
            return [network.leave_decoder(x_BUD)]
        return [x_BUD, encoded_BTD]


def all_ranges(ranges: ActivationRanges, names: list[str]) -> list[Tensor]:
    """Return the ranges in the order of these names; those of other stages are empty."""
    empty = empty_range(next(iter(ranges.values())))
    return [ranges.get(name, empty) for name in names]


Forward = Callable[[], AbstractContextManager[object]]

Loss = Callable[[int, Tensor, ActivationRanges], Tensor]
"""Returns the loss f32[] of a micro-batch, given its number, what the head reads, and activation ranges."""


class PipelineRunner:
    """Passes micro-batches through one stage. Sends do not block, so that no order of turns can deadlock; receives
    do."""

    def __init__(self, stage: Stage, ranks: Ranks, rank_of_stage: Callable[[int], int], forward: Forward) -> None:
        """Each of `ranks` has one stage; `rank_of_stage` returns its world rank. Forward passes run in the context
        `forward()`."""
        self._stage = stage
        self._forward_context = forward
        self._ranks = ranks
        self._is_last = ranks.rank == ranks.size - 1
        self._previous = rank_of_stage(max(ranks.rank - 1, 0))
        self._next = rank_of_stage(min(ranks.rank + 1, ranks.size - 1))
        self._sent: list[tuple[Any, Tensor]] = []

    def run(self, inputs: list[dict[str, Any]], loss: Loss, without_loss: Callable[[ActivationRanges], None]) -> None:
        """Run forward and backward passes of all micro-batches; gradients add up in the weights' `grad`.

        The last stage calls `loss` for each micro-batch, the others `without_loss`.
        """
        pending: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for turn, number in one_forward_one_backward(len(inputs), self._ranks.rank, self._ranks.size):
            if turn == "backward":
                self._backward(number, *pending.pop(number))
                continue
            ranges: ActivationRanges = {}
            received = self._receive_all(self._empty(inputs[number]), self._previous, number)
            with self._forward_context():
                outputs = self._stage(received, inputs[number], ranges)
                outputs = [loss(number, outputs[0], ranges)] if self._is_last else outputs
            if not self._is_last:
                without_loss(ranges)
                self._send_all(outputs, self._next, number)
            pending[number] = received, outputs
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _empty(self, inputs: dict[str, Any]) -> list[Tensor]:
        return [torch.empty(shape, requires_grad=True) for shape in self._stage.shapes(inputs)]

    def _backward(self, number: int, received: list[Tensor], outputs: list[Tensor]) -> None:
        if self._is_last:
            torch.autograd.backward(outputs)
        else:
            gradients = self._receive_all([torch.empty_like(tensor) for tensor in outputs], self._next, number)
            torch.autograd.backward(outputs, gradients)
        self._send_all([_gradient(tensor) for tensor in received], self._previous, number)

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
    assert received.grad is not None, "a stage uses every tensor that it receives"
    return received.grad


def _tag(number: int, index: int) -> int:
    """Return the message tag of tensor `index`, 0 or 1, of a micro-batch."""
    return 2 * number + index


Turn = tuple[Literal["forward", "backward"], int]


def one_forward_one_backward(micro_batches: int, stage: int, stages: int) -> Iterator[Turn]:
    """Yield the turns of one stage: forward or backward, and the number of the micro-batch."""
    warmup = min(stages - 1 - stage, micro_batches)
    for number in range(warmup):
        yield "forward", number
    for number in range(micro_batches - warmup):
        yield "forward", warmup + number
        yield "backward", number
    for number in range(micro_batches - warmup, micro_batches):
        yield "backward", number
