"""What one rank of a training holds in memory, read off the objects that the trainer itself makes.

Weights and gradients have the sizes and types of the network's parameters (made on PyTorch's meta device, without
memory); the optimizer keeps what the trainer's own keeps after a step over parameters of one element; activations are
those of the trainer's forward and backward pass over tensors without data, in which every allocation is counted. How
engines divide that among ranks is in `memory_of_rank`, which `tests/model/engines/test_memory.py` compares with
engines that run. Layouts whose passes cannot be followed so have no figure for them, and `unknown` says why. Libraries
and what the allocator loses come on top."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model.config.network import NetworkConfig, times_as_wide
from model.config.train import TrainConfig
from model.engines.base import batch_loss
from model.engines.pipeline_parallel import stages_holding
from model.engines.runtime import autocast, wrap_blocks
from model.engines.tensor_parallel import sharding_of
from model.nn.factory import Network, make_network
from model.nn.vocab_layers import WholeVocabulary
from model.objectives.synthetic import random_batch
from model.optim.optimizers import make_optimizer, optimizer_tensors

BUCKET_ELEMENTS = 5_000_000
"""Gradients and weights of DeepSpeed travel in pieces of at most this many elements. Its own 500M mean 2 GB a
process."""

GATHERED_ELEMENTS = 1_000_000_000
"""Weights that ZeRO-3 leaves together on a rank where they are soon needed again; DeepSpeed's own figure."""

TRACED_LAYERS = 2
"""Layers of the smaller of two networks whose passes are followed: each further layer adds the same."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank, the fullest where ranks differ."""

    start: float
    """The whole network, which every rank makes before it is cut or spread."""
    weights: float
    gradients: float
    """At their fullest: of ZeRO-1 whole until a step's last micro-batch."""
    optimizer: float
    """What it remembers; of ZeRO also a second float32 copy of the rank's part of the weights."""
    buffers: float
    """While micro-batches pass: what DeepSpeed exchanges from, and the weights that ZeRO-3 has brought together."""
    step: float
    """Gradients and copies of them while the ranks add them up and the optimizer steps."""
    activations: float | None
    """What a micro-batch adds at its fullest, copies of weights in other types included; None where that is unknown."""
    accumulates: bool
    """Whether gradients of one micro-batch are there while another passes."""
    unknown: str = ""
    """Why activations are."""

    @property
    def state(self) -> float:
        """What is there between steps."""
        return self.weights + self.optimizer

    @property
    def at_least(self) -> float:
        """The most that is there at once, as far as it is known."""
        passing = self.activations or 0.0
        # A single micro-batch frees activations while it makes gradients.
        passing = self.gradients + passing if self.accumulates else max(self.gradients, passing)
        return max(self.start, self.state + max(passing + self.buffers, self.step))

    @property
    def total(self) -> float | None:
        """The most that is there at once; None where activations are unknown."""
        return None if self.activations is None else self.at_least


@dataclass(frozen=True)
class Sizes:
    """Elements of a network, or of a rank's part of it, and bytes of its weights and of what an optimizer remembers."""

    elements: float
    weights: float
    moments: float

    def of(self, elements: float) -> "Sizes":
        """The same of a network with so many elements, as if all were treated alike."""
        factor = elements / self.elements
        return Sizes(elements, factor * self.weights, factor * self.moments)


def rank_memory(model: NetworkConfig, train: TrainConfig) -> RankMemory:
    """What the fullest rank of a training holds."""
    # Frozen models have a hash, which their types do not say.
    return _rank_memory(model, train)  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=64)
def _rank_memory(model: NetworkConfig, train: TrainConfig) -> RankMemory:
    whole = rank_sizes(model, train.model_copy(update={"tensor_parallel": 1, "pipeline_parallel": 1}))
    parts = [
        rank_sizes(model, train, stage, tensor)
        for stage in range(train.pipeline_parallel)
        for tensor in range(train.tensor_parallel)
    ]
    own = max(parts, key=lambda part: part.weights + part.moments)
    memory = memory_of_rank(whole, own, train)
    if train.trainable != "all":
        # How many rows are new is in the base model; nothing else has a gradient.
        unknown = f"train.trainable is {train.trainable}"
        return replace(memory, gradients=0, optimizer=0, step=0, unknown=unknown)
    if train.tensor_parallel * train.pipeline_parallel > 1:
        sizes = f"tensor_parallel {train.tensor_parallel} x pipeline_parallel {train.pipeline_parallel}"
        return replace(memory, unknown=f"{sizes} is not modelled")
    if train.compile:
        return replace(memory, unknown="with train.compile the compiler decides what is kept")
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    try:
        return replace(memory, activations=activation_bytes(model, train), unknown="")
    except DynamicOutputShapeException as error:
        return replace(memory, unknown=f"a pass depends on what is in the rows ({error})")


def memory_of_rank(whole: Sizes, own: Sizes, train: TrainConfig) -> RankMemory:
    """How the engine of `train` keeps a network of which a rank's part of a copy has the sizes `own`; activations are
    left unknown."""
    ranks = train.data_parallel
    shared = {
        "start": whole.weights,
        "activations": None,
        "accumulates": train.batch_rows > ranks * train.rows_at_once,
        "unknown": "the network is not known",
    }
    if train.engine == "native":
        # NativeEngine sends all gradients as one vector beside them.
        step = own.weights * (2 if ranks > 1 else 1)
        return RankMemory(
            weights=own.weights, gradients=own.weights, optimizer=own.moments, buffers=0, step=step, **shared
        )
    element = own.weights / own.elements
    stage, part = train.zero_stage, own.weights / ranks
    bucket = BUCKET_ELEMENTS * element
    return RankMemory(
        weights=part if stage == 3 else own.weights,
        gradients=own.weights if stage == 1 else part,
        # DeepSpeed steps a float32 copy of the rank's part, also where the weights are float32 themselves.
        optimizer=own.moments / ranks + part,
        buffers=bucket + (element * min(own.elements, GATHERED_ELEMENTS) if stage == 3 else 0),
        # Its part of the gradients, and the same as one vector.
        step=2 * part,
        **shared,
    )


def rank_sizes(model: NetworkConfig, train: TrainConfig, stage: int = 0, tensor: int = 0) -> Sizes:
    """Of what a rank holds of the network: one of that stage of the pipeline, in that place among those that cut
    matrices."""
    with torch.device("meta"):
        network = make_network(model)
        own = dict(_parts(network, model, train, stage, tensor))
    kept = moments_per_element(network, model, train)
    return Sizes(
        elements=sum(part.numel() for part in own.values()),
        weights=sum(part.numel() * part.element_size() for part in own.values()),
        moments=sum(part.numel() * kept[name] for name, part in own.items()),
    )


def _parts(
    network: Network, model: NetworkConfig, train: TrainConfig, stage: int, tensor: int
) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in network.named_parameters():
        if stage in stages_holding(name, model, train.pipeline_parallel):
            part = sharding_of(name, model).part(parameter, tensor, train.tensor_parallel)
            if part is not None:
                yield name, part


def moments_per_element(network: nn.Module, model: NetworkConfig, train: TrainConfig) -> dict[str, int]:
    """Bytes that the trainer's optimizer remembers of an element of each parameter, by its name: seen after a step of
    it over parameters of one element. The network keeps these; its own, on the meta device, are gone."""
    for name, parameter in list(network.named_parameters()):
        module, _, kind = name.rpartition(".")
        one = nn.Parameter(torch.zeros((1,) * parameter.dim(), dtype=parameter.dtype))
        one.grad = torch.zeros_like(one)
        setattr(network.get_submodule(module), kind, one)
    optimizer = make_optimizer(network, train.optimizer, times_as_wide(model))
    optimizer.step()
    return {
        name: sum(kept.nbytes for kept in optimizer_tensors(optimizer, one).values() if kept.shape == one.shape)
        for name, one in network.named_parameters()
    }


def activation_bytes(model: NetworkConfig, train: TrainConfig) -> int:
    """What a micro-batch of `train.rows_at_once` full rows adds to weights and gradients, at its fullest.

    Followed on a processor; kernels of CUDA devices differ by what they keep of attention.
    """
    if model.layers <= TRACED_LAYERS + 1:
        return _traced(model, train)
    few, more = (
        _traced(model.model_copy(update={"layers": layers}), train) for layers in (TRACED_LAYERS, TRACED_LAYERS + 1)
    )
    return few + (model.layers - TRACED_LAYERS) * (more - few)


def _traced(model: NetworkConfig, train: TrainConfig) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode

    if model.architecture != "bert" and model.z_loss:
        # It looks up the predictions that count, whose number only real rows tell; it adds less than a piece's logits.
        model = model.model_copy(update={"z_loss": 0.0})
    batch = random_batch(model, train.rows_at_once)
    counted = batch.objective.counts(batch.rows)
    with FakeTensorMode(allow_non_fake_inputs=True), Allocations() as allocations:
        network = make_network(model).train()
        if train.engine == "deepspeed":
            network.vocabulary = WholeVocabulary(gradient_at_once=train.zero_stage != 3)
        wrap_blocks(network, compiled=False, recomputed=train.recompute)
        for parameter in network.parameters():
            # Those of all micro-batches are counted apart.
            parameter.register_post_accumulate_grad_hook(_drop_gradient)
        before = allocations.peak = allocations.now
        with autocast(train.dtype, torch.device("cpu")):
            sums = batch.objective.sums(network, batch.rows)
        batch_loss(sums, counted).backward()
        return allocations.peak - before


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that were made while it is entered and are still there (`now`), and the most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note the memory of what it returns."""
        del types
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self._known:
                    self._known[id(storage)] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._freed, id(storage))
        self.peak = max(self.peak, self.now)
        return returned

    def _freed(self, storage: int) -> None:
        self.now -= self._known.pop(storage)
