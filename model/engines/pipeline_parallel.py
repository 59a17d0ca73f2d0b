"""Pipeline parallelism: which layers and weights a stage holds, and what it computes of a micro-batch.

Blocks are dealt out evenly, those left over to the first stages, since the last one has the head. A weight that
several stages read (a head that is the embedding, a table of distances) is held by each of them, and its gradients are
added up.

Shapes: B rows, T tokens, D width; a T5's encoder reads T tokens and its decoder U.

Micro-batches on their way through the stages of a pipeline: activations forward, their gradients back.

In which order a stage of a pipeline passes micro-batches forward and backward.

One forward, one backward (PipeDream-Flush: Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2): a
stage never holds more micro-batches than there are stages behind it and itself, where GPipe holds all. Both stand idle
for (stages - 1) of (micro-batches + stages - 1) turns.
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
from model.nn.block import AttentionContext, block_names, run_blocks
from model.nn.factory import Network
from model.nn.gpt import GPT
from model.nn.t5 import T5

ActivationRanges = dict[str, Tensor]
"""What thermometers read, f32[2] each, by their names."""


class Stage(Protocol):
    """A stretch of a network's blocks, with what comes before the first and behind the last."""

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """Shapes of what the stage before hands over, f32, for these inputs; none before the first stage."""
        ...

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """What the next stage is handed; from the last stage what the head reads, [B, T, D].

        `inputs` are the objective's for the whole network. `ranges` collects thermometers.
        """
        ...


def block_count(config: NetworkConfig) -> int:
    """Blocks that can be dealt out; a T5's encoder comes first."""
    return 2 * config.layers if config.architecture == "t5" else config.layers


def stage_blocks(stage: int, stages: int, blocks: int) -> range:
    """The blocks of one stage."""
    base, left_over = divmod(blocks, stages)
    begin = stage * base + min(stage, left_over)
    return range(begin, begin + base + (stage < left_over))


def stages_holding(name: str, config: NetworkConfig, stages: int) -> list[int]:
    """Stages that hold the weight of this name, ascending; the first of them writes it down."""
    count = block_count(config)
    home = [stage for stage in range(stages) for _ in stage_blocks(stage, stages, count)]
    top, _, rest = name.partition(".")
    if top in ("blocks", "encoder_blocks", "decoder_blocks"):
        number = int(rest.partition(".")[0])
        return [home[number + (config.layers if top == "decoder_blocks" else 0)]]
    if name == "embedding.weight":
        readers = {0, home[config.layers]} if config.architecture == "t5" else {0}
        return sorted(readers | ({stages - 1} if _reads_table(config) else set()))
    if top == "embedding_encoder_distances":
        return sorted(set(home[: config.layers]))
    if top == "embedding_decoder_distances":
        return sorted(set(home[config.layers :]))
    if top == "embedding_distances":
        return list(range(stages))
    if top == "encoder_norm":
        return [home[config.layers - 1]]
    return [0] if top.startswith(("embedding", "from_embedding")) else [stages - 1]


def _reads_table(config: NetworkConfig) -> bool:
    """Whether the head is the embedding."""
    return config.architecture == "bert" or config.tied_head


def keep_stage_weights(network: nn.Module, config: NetworkConfig, stage: int, stages: int) -> None:
    """Leave a network the weights of one stage."""
    for name, _ in list(network.named_parameters()):
        if stage not in stages_holding(name, config, stages):
            module, _, kind = name.rpartition(".")
            setattr(network.get_submodule(module), kind, None)


def make_stage(network: Network, stage: int, stages: int) -> Stage:
    """What the stage computes, with the network's own modules."""
    own = stage_blocks(stage, stages, block_count(network.config))
    if isinstance(network, T5):
        return _T5Stage(network, own)
    return _GPTStage(network, own) if isinstance(network, GPT) else _BERTStage(network, own)


def _through(
    blocks: nn.ModuleList, own: range, x: Tensor, ranges: ActivationRanges, names: list[str], *seen: Any
) -> Tensor:
    """`x` behind some of the blocks, whose thermometers have these names."""
    read: list[Tensor] = []
    x = run_blocks(blocks[own.start : own.stop], x, *seen, ranges=read)
    ranges.update(zip(names, read, strict=True))
    return x


class _GPTStage:
    def __init__(self, network: GPT, own: range) -> None:
        self._network, self._own = network, own

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """The residual stream."""
        return [(*inputs["tokens_BT"].shape, self._network.config.width)] if self._own.start else []

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """The residual stream."""
        network, tokens_BT = self._network, inputs["tokens_BT"]
        x_BTD = received[0] if received else network.enter(tokens_BT)
        if not received:
            ranges["embedding"] = activation_range(x_BTD)
        context = network.attention_context(0, tokens_BT.shape[1], inputs["visible_B1TT"], tokens_BT.device)
        x_BTD = _through(network.blocks, self._own, x_BTD, ranges, block_names(self._own), context)
        return [network.leave(x_BTD) if self._own.stop == len(network.blocks) else x_BTD]


class _BERTStage:
    def __init__(self, network: BERT, own: range) -> None:
        self._network, self._own = network, own

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """The residual stream."""
        return [(*inputs["tokens_BT"].shape, self._network.config.width)] if self._own.start else []

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """The residual stream."""
        network = self._network
        x_BTD = received[0] if received else network.enter(inputs["tokens_BT"], inputs["token_types_BT"])
        if not received:
            ranges["embedding"] = activation_range(x_BTD)
        context = AttentionContext(inputs["is_token_BT"][:, None, None, :])
        x_BTD = _through(network.blocks, self._own, x_BTD, ranges, block_names(self._own), context)
        return [network.final_norm(x_BTD) if self._own.stop == len(network.blocks) else x_BTD]


class _T5Stage:
    """Encoder stages hand over the encoder's stream; decoder stages hand over theirs and what the encoder made."""

    def __init__(self, network: T5, own: range) -> None:
        layers = network.config.layers
        self._network, self._own = network, own
        self._encoder = range(min(own.start, layers), min(own.stop, layers))
        self._decoder = range(max(own.start - layers, 0), max(own.stop - layers, 0))

    def shapes(self, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
        """The encoder's stream or what it made, and the decoder's stream before it where that has begun."""
        width, layers = self._network.config.width, self._network.config.layers
        encoder = (*inputs["inputs_BT"].shape, width)
        decoder = (*inputs["decoder_inputs_BU"].shape, width)
        if self._own.start > layers:
            return [decoder, encoder]
        return [encoder] if self._own.start else []

    def __call__(self, received: list[Tensor], inputs: dict[str, Any], ranges: ActivationRanges) -> list[Tensor]:
        """As `shapes` says."""
        network, layers = self._network, self._network.config.layers
        encoded = received[-1] if received else network.enter(inputs["inputs_BT"])
        if not received:
            ranges["encoder embedding"] = activation_range(encoded)
        if self._encoder:
            context = network.encoder_context(inputs["is_token_BT"])
            names = block_names(self._encoder, "encoder ")
            encoded = _through(network.encoder_blocks, self._encoder, encoded, ranges, names, context)
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
        seen = (context, None, encoded_BTD, inputs["is_token_BT"][:, None, None, :])
        names = block_names(self._decoder, "decoder ", cross_attention=True)
        x_BUD = _through(network.decoder_blocks, self._decoder, x_BUD, ranges, names, *seen)
        if self._decoder.stop == layers:
            return [network.leave_decoder(x_BUD)]
        return [x_BUD, encoded_BTD]


def all_ranges(ranges: ActivationRanges, names: list[str]) -> list[Tensor]:
    """The thermometers of these names; those of other stages have read nothing."""
    some = next(iter(ranges.values()))
    return [ranges.get(name, empty_range(some)) for name in names]


Forward = Callable[[], AbstractContextManager[object]]

Loss = Callable[[int, Tensor, ActivationRanges], Tensor]
"""What is minimised, f32[], given the number of a micro-batch, what the head reads of it, and thermometers."""


class PipelineRunner:
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

    def run(self, inputs: list[dict[str, Any]], loss: Loss, without_loss: Callable[[ActivationRanges], None]) -> None:
        """Forward and backward passes of all micro-batches; gradients add up in the weights' `grad`.

        The last stage calls `loss` once for each, the others `without_loss`.
        """
        held: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for turn, number in one_forward_one_backward(len(inputs), self._ranks.rank, self._ranks.size):
            if turn == "backward":
                self._backward(number, *held.pop(number))
                continue
            ranges: ActivationRanges = {}
            received = self._receive_all(self._empty(inputs[number]), self._before, number)
            with self._within():
                made = self._stage(received, inputs[number], ranges)
                made = [loss(number, made[0], ranges)] if self._is_last else made
            if not self._is_last:
                without_loss(ranges)
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


Turn = tuple[Literal["forward", "backward"], int]


def one_forward_one_backward(micro_batches: int, stage: int, stages: int) -> Iterator[Turn]:
    """The turns of one stage: forward or backward, and the number of the micro-batch."""
    ahead = min(stages - 1 - stage, micro_batches)
    for number in range(ahead):
        yield "forward", number
    for number in range(micro_batches - ahead):
        yield "forward", ahead + number
        yield "backward", number
    for number in range(micro_batches - ahead, micro_batches):
        yield "backward", number
