"""The memory of one rank of a training, computed from the objects that the trainer itself creates.

Weights, gradients and the optimizer's state are those of `sizes.py`. Activations are those of a forward and a backward
pass over fake tensors, in which every allocation is counted. How the engines native and deepspeed divide these among
ranks is in `memory_of_rank`, which `tests/model/engines/test_memory.py` compares with engines that run. Ranks that
divide weights (FSDP, tensor and pipeline parallelism) are started dry instead (`dry_layout.py`). What cannot be traced
has no figure for activations, and `unknown` says why. Libraries and the fragmentation of the allocator come on top.
"""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from model.config.fields import Dtype
from model.config.network import NetworkConfig
from model.config.train import TrainConfig
from model.engines.base import batch_loss
from model.engines.counters import Allocations
from model.engines.runtime import autocast, wrap_blocks
from model.engines.sizes import Sizes, rank_sizes
from model.nn.experts import Experts
from model.nn.factory import make_uninitialised
from model.nn.vocab_layers import Vocabulary
from model.objectives.synthetic import random_batch

BUCKET_ELEMENTS = 5_000_000
"""Size of DeepSpeed's buckets for gradients and weights. Its default of 500M takes 2 GB in each process."""

GATHERED_ELEMENTS = 1_000_000_000
"""Weights that ZeRO-3 keeps gathered on a rank where they are soon needed again; DeepSpeed's default."""

TRACED_LAYERS = 2
"""Layers of the smaller of two traced networks: each further layer adds the same."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank, that with the most where ranks differ."""

    start: float
    """What every rank creates: with ZeRO the whole network, before it is sharded; else its part."""
    weights: float
    gradients: float
    """At most: with ZeRO-1 they are whole until a step's last micro-batch."""
    optimizer: float
    """Its state; with ZeRO also a second float32 copy of the rank's part of the weights."""
    buffers: float
    """During passes: DeepSpeed's buckets, and the weights that ZeRO-3 has gathered."""
    step: float
    """Gradients and copies of them during their reduction and the optimizer's update."""
    activations: float | None
    """The most that a micro-batch adds, copies of weights in other types included; None where unknown."""
    accumulates: bool
    """Whether gradients of one micro-batch are kept while another passes."""
    unknown: str = ""
    """Why activations are unknown."""

    @property
    def parts(self) -> dict[str, float | None]:
        """What the peak consists of, for tables."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "buffers": self.buffers,
            "activations": self.activations,
        }

    @property
    def state(self) -> float:
        """Bytes between steps."""
        return self.weights + self.optimizer

    @property
    def at_least(self) -> float:
        """The peak, without activations where they are unknown."""
        passing = self.activations or 0.0
        # A single micro-batch frees activations while its gradients are computed.
        passing = self.gradients + passing if self.accumulates else max(self.gradients, passing)
        return max(self.start, self.state + max(passing + self.buffers, self.step))

    @property
    def total(self) -> float | None:
        """The peak; None where activations are unknown."""
        return None if self.activations is None else self.at_least

    def to_json(self) -> dict[str, float | str | None]:
        """Return parts and peaks as plain values."""
        return {**asdict(self), "at_least": self.at_least, "total": self.total}


def rank_memory(model: NetworkConfig, train: TrainConfig) -> RankMemory:
    """Return the memory of the rank that needs the most."""
    # Frozen models are hashable, which their types do not show.
    train = train.model_copy(update={"phases": ()})  # They change no size, and their tables cannot be hashed.
    return _rank_memory(model, train)  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=64)
def _rank_memory(model: NetworkConfig, train: TrainConfig) -> RankMemory:
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    parts = [
        rank_sizes(model, train, stage * (train.ranks // train.pipeline_parallel) + tensor)
        for stage in range(train.pipeline_parallel)
        for tensor in range(train.tensor_parallel)
    ]
    own = max(parts, key=lambda part: part.weights + part.moments)
    memory = memory_of_rank(own, train)
    if train.trainable != "all":
        # Only new rows have gradients; how many there are is in the base model.
        unknown = f"train.trainable is {train.trainable}"
        return replace(memory, gradients=0, optimizer=0, step=0, unknown=unknown)
    if train.compile:
        return replace(memory, unknown="with train.compile the compiler decides what is kept")
    if train.numerics == "portable":
        return replace(memory, unknown="what portable numerics keeps of attention and of units is not modelled")
    try:
        if train.divides_weights:
            return _measured_dry(model, train)
        return replace(memory, activations=activation_bytes(model, train), unknown="")
    except DynamicOutputShapeException as error:
        return replace(memory, unknown=f"a pass depends on the contents of rows ({error})")


def _measured_dry(model: NetworkConfig, train: TrainConfig) -> RankMemory:
    from model.engines.dry_layout import dry_layout

    rank = dry_layout(model, train).fullest
    return RankMemory(
        start=rank.weights,
        weights=rank.weights,
        gradients=rank.gradients,
        optimizer=rank.optimizer,
        # Gathered weights, gradients before they are divided, messages, and the block that is being computed.
        buffers=max(0.0, rank.peak - rank.weights - rank.optimizer - rank.gradients - rank.activations),
        step=0,
        activations=rank.activations,
        accumulates=True,
    )


def memory_of_rank(own: Sizes, train: TrainConfig) -> RankMemory:
    """Return the memory of a rank that holds a part of the network of these sizes, without activations; with ZeRO the
    whole, of which data ranks divide weights, gradients or moments."""
    ranks = train.data_parallel
    shared = {
        "start": own.weights,
        "activations": None,
        "accumulates": train.batch_rows > ranks * train.rows_at_once,
        "unknown": "the network is not known",
    }
    if train.engine != "deepspeed":
        # NativeEngine reduces a copy of all gradients, as one vector.
        step = own.weights * (2 if ranks > 1 and train.engine == "native" else 1)
        return RankMemory(
            weights=own.weights, gradients=own.weights, optimizer=own.moments, buffers=0, step=step, **shared
        )
    element = own.weights / own.elements
    stage, part = train.zero_stage, own.weights / ranks
    bucket = BUCKET_ELEMENTS * element
    return RankMemory(
        weights=part if stage == 3 else own.weights,
        gradients=own.weights if stage == 1 else part,
        # DeepSpeed updates a float32 copy of the rank's part, even of float32 weights.
        optimizer=own.moments / ranks + part,
        buffers=bucket + (element * min(own.elements, GATHERED_ELEMENTS) if stage == 3 else 0),
        # Its part of the gradients, and a copy as one vector.
        step=2 * part,
        **shared,
    )


def activation_bytes(model: NetworkConfig, train: TrainConfig) -> int:
    """Return the most that a micro-batch of `train.rows_at_once` full rows adds to weights and gradients.

    Traced with CPU kernels; those of CUDA devices keep other tensors of attention.
    """
    gradient_at_once = train.engine != "deepspeed" or train.zero_stage != 3
    settings = (train.rows_at_once, train.dtype, train.recompute, gradient_at_once)
    if model.layers <= TRACED_LAYERS + 1:
        return _traced(model, *settings)  # pyright: ignore[reportArgumentType]  # hashable, as above
    few, more = (
        _traced(model.model_copy(update={"layers": layers}), *settings)  # pyright: ignore[reportArgumentType]
        for layers in (TRACED_LAYERS, TRACED_LAYERS + 1)
    )
    return few + (model.layers - TRACED_LAYERS) * (more - few)


@lru_cache(maxsize=64)
def _traced(model: NetworkConfig, rows: int, dtype: Dtype, recompute: bool, gradient_at_once: bool) -> int:
    """Return `activation_bytes` of a network with few layers; most layouts of one training are alike in it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    batch = random_batch(model, rows)
    counted = batch.objective.counts(batch.rows)
    with FakeTensorMode(allow_non_fake_inputs=True), Allocations() as allocations:
        network = make_uninitialised(model).train()
        network.vocabulary = Vocabulary(gradient_at_once=gradient_at_once)
        for module in network.modules():
            if isinstance(module, Experts):
                module.product = _product_of_shapes
        wrap_blocks(network, compiled=False, recomputed=recompute)
        for parameter in network.parameters():
            # Gradients of parameters are counted separately.
            parameter.register_post_accumulate_grad_hook(_drop_gradient)
        before = allocations.peak = allocations.now
        with autocast(dtype, torch.device("cpu")):
            sums = batch.objective.sums(network, batch.rows)
        batch_loss(sums, counted).backward()
        return allocations.peak - before


def _product_of_shapes(x_SI: Tensor, weight_EIO: Tensor, end_E: Tensor) -> Tensor:
    """Return a tensor of the shape of `grouped_product` that keeps the same tensors; of fake ones in float32 there is
    no other."""
    del end_E
    return x_SI @ weight_EIO[0]


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None
