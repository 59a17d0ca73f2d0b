"""Tensor parallelism by torch's `parallelize_module`: a rank computes some heads, some hidden units of the MLP and
some tokens of the vocabulary (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3).

Weights that `layout.py` divides become DTensors, and with them what is computed from them between the two sums of a
block; the residual stream is an ordinary tensor, the same on every rank.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

from model.data.row_format import NO_LOSS
from model.engines.layout import COLUMN_PARALLEL, ROW_PARALLEL, sharded_dimension
from model.nn.block import Block
from model.nn.factory import Network
from model.nn.vocab_layers import Vocabulary


def shard_network(network: Network, mesh: DeviceMesh) -> None:
    """Make the weights of a network on the meta device this rank's part; its methods return the same as before, given
    the same on every rank.

    Logits are the exception: they are DTensors, and `network.vocabulary` computes the loss of them.
    """
    for name, module in list(network.named_modules()):
        if not any(True for _ in module.parameters()):  # Those of other pipeline stages.
            continue
        if isinstance(module, Block):
            parallelize_module(module, mesh, _block_plan(module), src_data_rank=None)
            module.first_head = mesh.get_local_rank() * (module.config.heads // mesh.size())
        elif isinstance(module, nn.Embedding) and (dimension := sharded_dimension(f"{name}.weight")) is not None:
            of_rows = _SummedInFloat32(input_layouts=Replicate())
            parallelize_module(module, mesh, ColwiseParallel() if dimension else of_rows, src_data_rank=None)
        elif name == "head":
            parallelize_module(module, mesh, ColwiseParallel(use_local_output=False), src_data_rank=None)
    for name, bias in list(network.named_parameters(recurse=False)):
        placement = [Shard(0) if sharded_dimension(name) == 0 else Replicate()]
        setattr(network, name, nn.Parameter(distribute_tensor(bias.detach(), mesh, placement, src_data_rank=None)))
    network.vocabulary = ShardedVocabulary(mesh)


def _block_plan(block: Block) -> dict[str, ParallelStyle]:
    plan, whole = dict[str, ParallelStyle](), Replicate()
    for name, _ in block.named_children():
        if name in COLUMN_PARALLEL:
            # Heads are reshaped locally. Hidden units may be divided unevenly, which only a DTensor knows.
            plan[name] = ColwiseParallel(use_local_output=not name.startswith("mlp"))
        elif name in ROW_PARALLEL:
            plan[name] = _SummedInFloat32()
        elif name in ("query_norm", "key_norm"):
            # Held whole, while the gradient comes from this rank's heads.
            plan[name] = SequenceParallel(sequence_dim=1, use_local_output=True)
        elif name.endswith("_norm") and block.config.norm_position == "pre":
            # As one DTensor for all layers that read it, its gradient is summed over the ranks once.
            plan[name] = PrepareModuleOutput(output_layouts=whole, desired_output_layouts=whole, use_local_output=False)
    return plan


class _SummedInFloat32(RowwiseParallel):
    """Products of any type are rounded once more only after they are summed over the ranks."""

    @staticmethod
    def _prepare_output_fn(output_layouts: Any, use_local_output: Any, mod: Any, outputs: Any, device_mesh: Any) -> Any:
        # At once: compiled blocks do not know tensors that still arrive.
        return outputs.float().redistribute(placements=output_layouts).to_local()


class ShardedVocabulary(Vocabulary):
    """The vocabulary whose logits are DTensors, each rank with those of some tokens.

    No rank has the logits of all tokens: what is exchanged is a few numbers for each prediction. Used within torch's
    `loss_parallel`, forward and backward.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(gradient_at_once=False)
        self._mesh = mesh

    def read(self, hidden: Tensor) -> Tensor:
        """Return the stream, whose gradient is summed over the ranks, since each has other logits."""
        return DTensor.from_local(hidden, self._mesh, [Replicate()], run_check=False)

    def own(self, logits: Tensor) -> Tensor:
        assert isinstance(logits, DTensor)
        return logits.to_local()

    def nats(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        nats = F.cross_entropy(logits_NV.float(), targets_N, ignore_index=NO_LOSS, reduction="sum")
        assert isinstance(nats, DTensor)
        return nats.to_local()

    def log_normaliser(self, logits_NV: Tensor) -> Tensor:
        """Return logsumexp over all ranks; the largest logit of all is subtracted first, so that nothing overflows."""
        logits_NV = logits_NV.float()
        largest_N1 = _replicated(logits_NV.detach().amax(-1, keepdim=True))
        sum_N = _replicated((logits_NV - largest_N1).exp().sum(-1))
        return sum_N.to_local().log() + largest_N1.to_local()[:, 0]

    def argmax(self, logits_NV: Tensor) -> Tensor:
        """Return the first token with the largest logit over all ranks."""
        index_N = logits_NV.detach().float().argmax(-1)
        return index_N.full_tensor() if isinstance(index_N, DTensor) else index_N


def _replicated(tensor: Tensor) -> DTensor:
    assert isinstance(tensor, DTensor)
    return tensor.redistribute(placements=[Replicate()])
