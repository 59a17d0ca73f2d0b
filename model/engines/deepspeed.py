"""DeepSpeed's ZeRO as an engine: optimizer state (1), gradients (2) and weights (3) partitioned over the ranks.

Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054. DeepSpeed does the partitioning and the collectives. Learning
rate, normalisation of the loss, checkpoints and the handling of non-finite numbers are those of the native engine.

For another number of ranks the optimizer's state is resharded. DeepSpeed 0.19.8 stores each parameter group as one
vector. Stages 1 and 2 pad the vector and cut it into equal parts, one for each rank. Stage 3 pads and cuts each
parameter, and a rank's part is the concatenation of its pieces. Padding is never trained: its moments are zero.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from deepspeed.runtime import compiler
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.runtime.zero import partitioned_param_coordinator
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from torch import Tensor

from model.config.block import is_gated
from model.config.train import TrainerRun
from model.distributed.process_group import Ranks
from model.engines.base import NO_LIMITS, Limits, Reading, Totals
from model.engines.memory import BUCKET_ELEMENTS, GATHERED_ELEMENTS
from model.engines.native import NativeEngine
from model.engines.runtime import NetworkWithLoss, sums_of
from model.nn.factory import Network
from model.nn.vocab_layers import Vocabulary
from model.objectives.base import Sums
from model.optim.optimizers import AdamW, optimizer_tensors, penalty, set_learning_rate
from model.optim.schedules import StepSchedule


class DeepSpeedEngine(NativeEngine):
    """ZeRO over gloo or NCCL. Needs a process group, even of one rank."""

    def __init__(self, run: TrainerRun, network: Network, ranks: Ranks) -> None:
        super().__init__(run, network, ranks)
        self._partitioned = run.train.zero_stage == 3
        self.optimizer_shards, self.weight_shards = ranks.size, 1
        # Its shared memory collectives are compiled on first use, which takes two minutes and needs a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # ZeRO imports DeepSpeed's Muon, which is not used here; compiling its functions would import the compiler, in
        # two seconds.
        compiler.compile = lambda: compiler.dummy_decorator
        from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

        # It knows optimizers by their very type, and warns of any other.
        if AdamW not in ZERO_SUPPORTED_OPTIMIZERS:
            ZERO_SUPPORTED_OPTIMIZERS.append(AdamW)
        # DeepSpeed calls deprecated names, which warn at each step.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        # The number of the CUDA device, which a launcher sets; DeepSpeed refuses to start without it.
        os.environ.setdefault("LOCAL_RANK", "0")
        deepspeed.init_distributed(
            "gloo" if self._device.type == "cpu" else "nccl", auto_mpi_discovery=False, verbose=False
        )
        network.vocabulary = Vocabulary(gradient_at_once=not self._partitioned, fused=run.train.compile)
        module = NetworkWithLoss(network, self._objective, run.train.dtype)
        assert isinstance(self.optimizer, torch.optim.Optimizer), "Muon with AdamW needs whole matrices"
        # DeepSpeed types it as any optimizer; it is a ZeRO optimizer that wraps ours.
        self._zero: Any
        with nullcontext() if run.train.compile else _without_compiler():
            self._module, self._zero, _, _ = deepspeed.initialize(
                model=module,
                # One of PyTorch, since DeepSpeed's own AdamW is compiled on first use.
                optimizer=self.optimizer,
                config=_configuration(run),
                dist_init_required=False,
            )
        self._gate = ZeroGate(self._zero)
        if self._partitioned:
            # They are used outside the module that owns them, as the embedding is by the head.
            for parameter in _external_parameters(network):
                deepspeed.zero.register_external_parameter(module, parameter)

    def begin(self, batch: Any, schedule: StepSchedule, loss_scale: float = 1.0) -> None:
        """Compute gradients as the native engine does, with ZeRO's collectives."""
        self._zero.clip_grad = schedule.max_norm
        if loss_scale != self._zero.loss_scale:
            # Set here, because DeepSpeed's own rule ends the run where a scale cannot fall further.
            self._zero.override_loss_scale(loss_scale)
        share = self._share(batch, self._config.rows_at_once * schedule.row_pieces)
        totals = Totals()
        last = len(share.micro_batches) - 1
        for index, micro_batch in enumerate(share.micro_batches):
            self._module.set_gradient_accumulation_boundary(index == last)
            sums = self._sums(micro_batch)
            totals.add(sums)
            # DeepSpeed averages gradients over ranks, and these must add up. ZeRO decides by the gradient alone, which
            # can be finite where the loss is infinite: as NaN it reaches every rank through the norm, and every rank
            # skips the step.
            weight = self._ranks.size if all(bool(nats.isfinite()) for nats in sums.nats) else math.nan
            loss = sum(nats * (weight / count) for nats, count in zip(sums.nats, share.counted, strict=True))
            if index == last and (self._config.optimizer.l1 or self._config.optimizer.l2):
                loss = loss + penalty(self._matrices, self._config.optimizer)
            self._module.backward(loss, scale_wrt_gas=False)
        self._found = totals.reduce_over_ranks(self._ranks, share.counted)
        set_learning_rate(self._zero.param_groups, schedule.lr)

    def finish(self, limits: Limits = NO_LIMITS) -> Reading:
        """Have ZeRO update the weights, which waits for its norm and decides on the host."""
        loss = self._found.losses.sum()
        self._gate.admits = lambda grad_norm: bool(limits.admit(loss, loss.new_tensor(grad_norm)))
        self._module.step()
        grad_norm, applied = (loss.new_tensor(one) for one in (self._gate.grad_norm, self._module.was_step_applied()))
        return self._found.read_later(grad_norm, applied, self._ranks)

    def _sums(self, micro_batch: Any) -> Sums:
        return sums_of(self._module, micro_batch, self._device)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights, complete on the first rank only; ZeRO-3 gathers one parameter at a time."""
        weights: dict[str, Tensor] = {}
        for name, parameter in self.network.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]) if self._partitioned else nullcontext():
                if self._ranks.is_first:
                    weights[name] = parameter.detach().clone()
        return weights

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the moments of this rank's partitions, as `partition|moment`."""
        return {
            f"{index}|{moment}": value.detach().contiguous()
            for index, partition in enumerate(self._partitions())
            for moment, value in optimizer_tensors(self._zero.optimizer, partition).items()
        }

    def restore_optimizer(self, state: dict[str, Tensor]) -> None:
        for index, partition in enumerate(self._partitions()):
            moments = {key.partition("|")[2]: value for key, value in state.items() if key.startswith(f"{index}|")}
            if moments:
                self._zero.optimizer.state[partition] = moments

    def restore_resharded(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Reshard the moments of all earlier ranks, and restore this rank's part."""
        groups = self._zero.fp16_groups if self._partitioned else self._zero.bit16_groups
        state: dict[str, Tensor] = {}
        for index, (group, partition) in enumerate(zip(groups, self._partitions(), strict=True)):
            elements = [parameter.ds_numel if self._partitioned else parameter.numel() for parameter in group]
            for key in (key for key in states[0] if key.startswith(f"{index}|")):
                parts = [part[key] for part in states]
                if parts[0].dim() == 0:
                    state[key] = parts[0]
                    continue
                whole = whole_vector(parts, elements, by_parameter=self._partitioned)
                shard = self._ranks.rank, self._ranks.size, partition.numel()
                state[key] = part_of_vector(whole, elements, *shard, by_parameter=self._partitioned)
        self.restore_optimizer(state)

    def _partitions(self) -> list[Tensor]:
        return (
            self._zero.fp32_partitioned_groups_flat if self._partitioned else self._zero.single_partition_of_fp32_groups
        )


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Have ZeRO-3's functions run as they are, and hooks that are registered within the block: what keeps them out of
    compiled graphs imports the compiler, which takes as long as the rest of PyTorch.

    The functions stay so: this process must compile no engine afterwards.
    """
    for owner in (partitioned_param_coordinator, PartitionedParameterCoordinator):
        for function in vars(owner).values():
            if (written := getattr(function, "__wrapped__", None)) is not None:
                # The attribute in which `torch._disable_dynamo` keeps what it calls.
                written.__dynamo_disable = written
    disable: Any = torch.compiler.disable
    torch.compiler.disable = lambda function: function
    try:
        yield
    finally:
        torch.compiler.disable = disable


def _external_parameters(network: Network) -> list[Tensor]:
    """Return the parameters that are used where the module that owns them is not called."""
    external = ("new_rows", "new_head_rows", "head_bias", "masked_head_bias")
    own = dict(network.named_parameters(recurse=False))
    return [network.embedding.weight, *(own[name] for name in external if name in own)]


def _configuration(run: TrainerRun) -> dict[str, Any]:
    hidden = run.model.hidden * (2 if is_gated(run.model.activation) else 1)
    vectors = max(hidden, 3 * run.model.width)
    return {
        "train_micro_batch_size_per_gpu": run.train.rows_at_once,
        "gradient_clipping": run.train.clip.max_norm,
        # For SGD, which DeepSpeed has not tested; it is element-wise like Adam, and tested here.
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {
            "stage": run.train.zero_stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "stage3_max_live_parameters": GATHERED_ELEMENTS,
            "stage3_max_reuse_distance": GATHERED_ELEMENTS,
            # Norms and biases stay whole on every rank: gathering them costs more messages than it saves memory.
            "stage3_param_persistence_threshold": vectors,
            # Needs CUDA streams.
            "overlap_comm": run.train.device == "cuda",
        },
    }


class ZeroGate:
    """Calls `admits` with the norm of each finite gradient, and skips the step where it returns False.

    DeepSpeed knows the norm only within its own step. Between norm and update it calls `_update_scale`, in all stages,
    and then looks whether the step overflowed (DeepSpeed 0.19.8, `stage_1_and_2.step`,
    `stage3._loss_scale_update_and_overflow_cleanup`). This class replaces that method.
    """

    def __init__(self, zero: Any) -> None:
        self.admits: Callable[[float], bool] = lambda grad_norm: True
        self.grad_norm = math.nan
        """Gradient norm of the last step before clipping; infinite where any element was not finite."""
        self._zero = zero
        self._scaled_norm: float | None = None
        self._update_scale = zero._update_scale
        zero._update_scale = self._judge
        if hasattr(zero, "scaled_global_norm"):
            self._measure = zero.scaled_global_norm
            zero.scaled_global_norm = self._measured
        else:
            self._groups = zero._get_norm_groups
            zero._get_norm_groups = self._measured_groups

    def _measured(self, *arguments: Any, **named: Any) -> Any:
        norm = self._measure(*arguments, **named)
        self._scaled_norm = float(norm)
        return norm

    def _measured_groups(self) -> Any:
        groups = self._groups()
        self._scaled_norm = float(combine_grad_norm_groups(groups))
        return groups

    def _judge(self, overflow: bool) -> None:
        scaled, self._scaled_norm = self._scaled_norm, None
        self.grad_norm = math.inf if overflow or scaled is None else scaled / self._zero.loss_scale
        self._update_scale(overflow)
        if not overflow and not self.admits(self.grad_norm):
            self._zero.overflow = True


def whole_vector(parts: Sequence[Tensor], elements: Sequence[int], *, by_parameter: bool) -> Tensor:
    """Return the moments of a group in the order of its parameters, from the parts of all ranks in rank order.

    `elements` holds the size of each parameter. Raises ValueError where the parts are not of such a group.
    """
    if not by_parameter:
        whole = torch.cat(list(parts))
        if len(whole) < sum(elements):
            raise ValueError(f"parts have {len(whole)} elements together, and the group has {sum(elements)}")
        return whole[: sum(elements)]
    pieces = [-(-size // len(parts)) for size in elements]
    if any(len(part) != sum(pieces) for part in parts):
        raise ValueError(f"parts have {[len(part) for part in parts]} elements, and each rank holds {sum(pieces)}")
    by_rank = [part.split(pieces) for part in parts]
    wholes = [torch.cat(of_parameter) for of_parameter in zip(*by_rank, strict=True)]
    return torch.cat([whole[:size] for whole, size in zip(wholes, elements, strict=True)])


def part_of_vector(
    whole: Tensor, elements: Sequence[int], rank: int, ranks: int, size: int, *, by_parameter: bool
) -> Tensor:
    """Return what `rank` of `ranks` holds of the result of `whole_vector`: `size` elements with padding.

    Raises ValueError where a part does not have that size.
    """
    if not by_parameter:
        return _padded(whole, size * ranks)[rank * size : (rank + 1) * size].clone()
    pieces = []
    for parameter in whole.split(list(elements)):
        piece = -(-len(parameter) // ranks)
        pieces.append(_padded(parameter, piece * ranks)[rank * piece : (rank + 1) * piece])
    part = torch.cat(pieces)
    if len(part) != size:
        raise ValueError(f"the part has {len(part)} elements, and the rank holds {size}")
    return part


def _padded(vector: Tensor, size: int) -> Tensor:
    if len(vector) > size:
        raise ValueError(f"{len(vector)} elements do not fit into {size}")
    return torch.cat((vector, vector.new_zeros(size - len(vector))))
