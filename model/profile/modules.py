"""Count and time the operations of a step, and assign each to a part of the network.

In the forward pass the parts are those of the modules that run. Between modules the network calls functions (attention
itself, activations, the tied head), so three rules fill the gaps. Within a block, a function belongs to the part of the
module before it, norms aside: attention follows its input projections, also where queries and keys are normalised.
Outside all blocks, operations before the first module prepare the batch (targets, masks); from there or from any
embedding to the next block they belong to the embedding, between two blocks to the activation ranges, and after the
last block to the head and loss. An operation of the backward pass belongs to the part of the operation whose graph node
it computes, found by autograd's sequence numbers.

FLOPs are those of matrix products, by PyTorch's own formulas (`torch.utils.flop_counter`). Bytes are counted as if
there were no cache, as the roofline requires: each input tensor is read once, each output is written once.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _autograd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from model.profile.roofline import Machine

BATCH, EMBEDDING, NORMS, ATTENTION, MLP, HEAD = "batch", "embedding", "norms", "attention", "MLP", "head and loss"

ACTIVATION_RANGES, CLIPPING, OPTIMIZER = "activation ranges", "clipping", "optimizer"

PARTS = (BATCH, EMBEDDING, NORMS, ATTENTION, MLP, HEAD, ACTIVATION_RANGES, CLIPPING, OPTIMIZER)

PHASES = FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"

SMALL_SECONDS = 20e-6
"""Below this, calling an operation takes about as long as executing it."""

_OF_NAMES = (
    (HEAD, re.compile(r"(^|_)head(_|$)|^(lm|mlm|nsp)|pooler")),
    (NORMS, re.compile(r"norm(_|$)|^ln(_|$)")),
    (ATTENTION, re.compile(r"attention|attn")),
    (MLP, re.compile(r"mlp|ffn|feed_forward|experts")),
    (EMBEDDING, re.compile(r"embed|^(wte|wpe)$")),
    (ACTIVATION_RANGES, re.compile(r"score_range")),
)

_CLIPPING = re.compile(r"^_foreach_(norm|mul|div)|^linalg_vector_norm|^_foreach_clamp")

_OVERWRITING = {"copy_", "zero_", "fill_", "normal_"}
"""Operations that write what they do not read."""

_LOOKUPS = {"embedding", "index", "index_select", "gather"}
"""Operations that read as much of their first tensor as they return."""

_ONLY_READ = {"grads"}
"""Arguments that a schema marks as written and that are only read: a fused optimizer may unscale gradients in place."""


@dataclass
class PartCost:
    """The cost of one part of a step in one phase: seconds, FLOPs of matrix products, bytes moved, operations."""

    part: str
    phase: str
    seconds: float = 0.0
    bound_seconds: float = 0.0
    """Least seconds that its operations can take, each on the roofline."""
    flops: float = 0.0
    bytes: float = 0.0
    operations: int = 0
    small_seconds: float = 0.0
    """Seconds in operations shorter than SMALL_SECONDS."""


class OperationCounter(TorchDispatchMode):
    """Adds up the cost of the operations that run within it in `costs`, by part and phase."""

    def __init__(self, network: nn.Module, machine: Machine, clock: Callable[[], float]) -> None:
        super().__init__()
        self.costs: dict[tuple[str, str], PartCost] = {}
        self._machine = machine
        self._clock = clock
        self._network = network
        self._parts = {module: part_of_module(path) for path, module in network.named_modules() if path}
        blocks = [block for group in network.modules() if isinstance(group, nn.ModuleList) for block in group]
        self._blocks, self._last_block = set(blocks), blocks[-1] if blocks else None
        self._hooks = ExitStack()
        self._open: list[nn.Module] = []
        self._before: str | None = None
        self._outside = BATCH
        self._optimizing = False
        self._was_backward = False
        self._sequence: list[tuple[int, str]] = []
        """Of each operation of the forward pass: the number of autograd's next node, and the part."""
        self._of_node = HEAD

    def __enter__(self) -> "OperationCounter":
        handles = (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(lambda *_: setattr(self, "_optimizing", True)),
            register_optimizer_step_post_hook(lambda *_: setattr(self, "_optimizing", False)),
        )
        for handle in handles:
            self._hooks.callback(handle.remove)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        part, phase = self._place(func.overloadpacket.__name__)
        if func.is_view or func.namespace != "aten":
            return func(*args, **kwargs)
        began = self._clock()
        out = func(*args, **kwargs)
        seconds = self._clock() - began
        flops, moved = flops_of(func, args, kwargs, out), bytes_of(func, args, kwargs, out)
        cost = self.costs.setdefault((part, phase), PartCost(part, phase))
        cost.seconds += seconds
        cost.bound_seconds += self._machine.bound_seconds(flops, moved)
        cost.flops += flops
        cost.bytes += moved
        cost.operations += 1
        cost.small_seconds += seconds if seconds < SMALL_SECONDS else 0.0
        return out

    def _place(self, operation: str) -> tuple[str, str]:
        """Return part and phase of an operation that runs now; recomputation in the backward pass is backward."""
        if self._optimizing:
            return OPTIMIZER, UPDATE
        node = torch._C._current_autograd_node()
        if self._was_backward and node is None and not self._open:
            # Of the next micro-batch, or of the update.
            self._outside, self._before, self._of_node = BATCH, None, HEAD
        self._was_backward = node is not None
        part = self._part(operation, node)
        if node is None:
            self._sequence.append((_autograd._get_sequence_nr(), part))
        return part, UPDATE if part == CLIPPING else FORWARD if node is None else BACKWARD

    def _part(self, operation: str, node: Any) -> str:
        # Of a network's own operations only activation ranges compute smallest and largest in one pass.
        if operation == "aminmax":
            return ACTIVATION_RANGES
        for module in reversed(self._open):
            if part := self._parts.get(module):
                return part
        if any(module in self._blocks for module in self._open):
            return self._before or self._outside
        if node is not None:
            # The node was made before its operation ran. Sums into gradients have no number: they follow their node.
            index = bisect_right(self._sequence, node._sequence_nr(), key=lambda pair: pair[0])
            if index < len(self._sequence):
                self._of_node = self._sequence[index][1]
            return self._of_node
        return CLIPPING if self._outside == BATCH and _CLIPPING.search(operation) else self._outside

    def _enter_module(self, module: nn.Module, _inputs: Any) -> None:
        self._open.append(module)
        if module in self._blocks:
            self._before = None
        if torch._C._current_autograd_node() is None:
            if module in self._blocks:
                self._outside = ACTIVATION_RANGES
            elif self._parts.get(module) == EMBEDDING or (self._outside == BATCH and module is not self._network):
                self._outside = EMBEDDING

    def _leave_module(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._open.pop()
        # What follows an activation range, or a norm of queries and keys, belongs to the part before it.
        part = self._parts.get(module)
        if part and part != ACTIVATION_RANGES and (part != NORMS or self._before is None):
            self._before = part
        if module is self._last_block and torch._C._current_autograd_node() is None:
            self._outside = HEAD


def part_of_module(path: str) -> str | None:
    """Return the part that a module's dotted path names, e.g. `blocks.3.attention.query`; None for a mere container.

    A norm counts as a norm anywhere except in a head, which is counted whole.
    """
    names = path.split(".")
    for part, pattern in _OF_NAMES:
        # A head's names count anywhere in the path, a norm's only at its end: `norm` may be a container.
        if any(pattern.search(name) for name in (names[-1:] if part == NORMS else names)):
            return part
    return None


def flops_of(operation: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Return the FLOPs of matrix products, counting multiplications and additions; attention counts without masking.

    All other operations count as zero, as in 6 N + 12 L D T (Kaplan et al. 2020). The formulas are PyTorch's, except
    for products of experts, and for attention on a CPU, whose backward pass recomputes the scores and so has five
    products for two.
    """
    packet = operation.overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return float(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return float(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    if packet is torch.ops.aten._grouped_mm:
        # Rows times the matrix of their expert, or outer products of rows, summed for each expert.
        return 2.0 * args[0].numel() * args[1].shape[-1]
    return 0.0


def bytes_of(operation: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Return the bytes that an operation reads and writes."""
    name = operation.overloadpacket.__name__
    if name in _LOOKUPS:
        return sum(map(size_of, _tensors_in(args[1:]))) + 2.0 * sum(map(size_of, _tensors_in(out)))
    moved = 0.0
    given: set[int] = set()
    arguments = operation._schema.arguments
    named = ((argument, kwargs[argument.name]) for argument in arguments if argument.name in kwargs)
    for argument, value in (*zip(arguments, args, strict=False), *named):
        written = argument.alias_info is not None and argument.alias_info.is_write and argument.name not in _ONLY_READ
        for tensor in _tensors_in(value):
            given.add(id(tensor))
            moved += size_of(tensor) * (1 if not written or name in _OVERWRITING else 2)
    return moved + sum(size_of(tensor) for tensor in _tensors_in(out) if id(tensor) not in given)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors of an argument or result: itself, or those in its lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(one)


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; those that an expanded dimension repeats count once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in pairs if stride or not size) * tensor.element_size()
