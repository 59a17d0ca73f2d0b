"""Track which part of a training step runs: by module names in the forward pass, by the graph in the backward pass.

Between modules the network calls functions (attention itself, activations, the tied head), so three rules fill the
gaps. Within a block, a function belongs to the part of the module before it: attention follows its input projection.
Outside all blocks, operations before the first module prepare the batch (targets, masks); from there or from any
embedding to the next block they belong to the embedding, between two blocks to the activation ranges,
and after the last block to the head and loss.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.autograd.graph import Node
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

BATCH, EMBEDDING, NORMS, ATTENTION, MLP, HEAD = "batch", "embedding", "norms", "attention", "MLP", "head and loss"

ACTIVATION_RANGES, CLIPPING, OPTIMIZER = "thermometers", "clipping", "optimizer"

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"

PHASES = (FORWARD, BACKWARD, UPDATE)

PARTS = (BATCH, EMBEDDING, NORMS, ATTENTION, MLP, HEAD, ACTIVATION_RANGES, CLIPPING, OPTIMIZER)

_OF_NAMES = (
    (HEAD, re.compile(r"(^|_)head(_|$)|^(lm|mlm|nsp)|pooler")),
    (NORMS, re.compile(r"norm(_|$)|^ln(_|$)")),
    (ATTENTION, re.compile(r"attention|attn")),
    (MLP, re.compile(r"mlp|ffn|feed_forward")),
    (EMBEDDING, re.compile(r"embed|^(wte|wpe)$")),
    (ACTIVATION_RANGES, re.compile(r"score_range")),
)

_CLIPPING = re.compile(r"^_foreach_(norm|mul|div)|^linalg_vector_norm|^_foreach_clamp")


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


class PartTracker:
    """Follows a network through its steps within `watching`; `place` returns the current part and phase."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._parts = {module: part_of_module(path) for path, module in network.named_modules() if path}
        blocks = [block for group in network.modules() if isinstance(group, nn.ModuleList) for block in group]
        self._blocks = set(blocks)
        self._last_block = blocks[-1] if blocks else None
        self._open: list[nn.Module] = []
        self._before: str | None = None
        self._outside = BATCH
        self._of_node = HEAD
        self._optimizing = False
        self._backward = False
        self._claimed: set[Node] = set()

    def place(self, operation: str) -> tuple[str, str]:
        """Return part and phase of an operation that runs now; recomputation in the backward pass is backward."""
        part = self.part(operation)
        if part in (CLIPPING, OPTIMIZER):
            return part, UPDATE
        return part, BACKWARD if self._backward else FORWARD

    def part(self, operation: str) -> str:
        """Return the part of an operation of this name that runs now."""
        if self._optimizing:
            return OPTIMIZER
        # Of a network's own operations only activation ranges compute smallest and largest in one pass.
        if operation == "aminmax":
            return ACTIVATION_RANGES
        for module in reversed(self._open):
            if part := self._parts.get(module):
                return part
        if any(module in self._blocks for module in self._open):
            return self._before or self._outside
        if self._backward:
            return self._of_node
        return CLIPPING if self._outside == BATCH and _CLIPPING.search(operation) else self._outside

    def claim(self, node: Node | None, part: str) -> None:
        """Assign all unassigned nodes of the graph from `node` on to a part, which then gets their backward work."""
        unclaimed = [node]
        while unclaimed:
            node = unclaimed.pop()
            if node is None or node in self._claimed:
                continue
            self._claimed.add(node)
            node.register_prehook(self._entering(part))
            unclaimed.extend(following for following, _ in node.next_functions)

    def _entering(self, part: str) -> Callable[[Any], None]:
        def enter(_gradients: Any) -> None:
            self._of_node = part

        return enter

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Mark the backward pass of one micro-batch; the next one's forward pass begins after it."""
        self._backward, self._of_node = True, HEAD
        try:
            yield
        finally:
            self._backward, self._outside, self._before = False, BATCH, None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Install hooks on all modules and on optimizers; remove them at the end."""
        with ExitStack() as hooks:
            for module in self._network.modules():
                handles = (
                    module.register_forward_pre_hook(self._enter),
                    module.register_forward_hook(self._leave, always_call=True),
                )
                for handle in handles:
                    hooks.callback(handle.remove)
            hooks.callback(register_optimizer_step_pre_hook(self._begin_update).remove)
            hooks.callback(register_optimizer_step_post_hook(self._end_update).remove)
            yield

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        self._open.append(module)
        if module in self._blocks:
            self._before = None
        if not self._backward:
            if module in self._blocks:
                self._outside = ACTIVATION_RANGES
            elif self._parts.get(module) == EMBEDDING or (self._outside == BATCH and module is not self._network):
                self._outside = EMBEDDING

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._open.pop()
        # An activation range only observes: what follows it belongs to the part before it.
        if (part := self._parts.get(module)) and part != ACTIVATION_RANGES:
            self._before = part
        if module is self._last_block and not self._backward:
            self._outside = HEAD

    def _begin_update(self, *_: Any) -> None:
        self._optimizing = True

    def _end_update(self, *_: Any) -> None:
        self._optimizing = False
