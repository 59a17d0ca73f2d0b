"""Every setting of a training, each valid by itself; no PyTorch."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from model.config import RUNTIME, BaseConfig, Reach
from model.config.launch import HostsConfig, RestartsConfig
from model.config.options import (
    BatchWarmupConfig,
    ClipConfig,
    GuardConfig,
    LengthWarmupConfig,
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
)

Dtype = Literal["float32", "tf32", "bfloat16", "float16"]
"""Types in which matrices are multiplied."""

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\x00]*$")]

NewRows = Literal["mean", "mean_noise", "random"]
"""How the rows of pieces start that a base model does not have."""


class TrainFields(BaseConfig):
    """The settings of a training, each valid by itself; `TrainConfig` checks them together."""

    engine: Literal["native", "deepspeed"] = "native"
    """What computes a step: `native` is plain PyTorch, every rank holding the whole model; `deepspeed` spreads the
    optimizer's state, gradients and weights over the ranks (ZeRO), for models that do not fit otherwise, and is slower
    where they do."""
    zero_stage: Literal[1, 2, 3] = 1
    """`deepspeed`: what is spread over the ranks: 1 optimizer state, 2 gradients too, 3 weights too."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it is computed: on the processor, or on CUDA devices, one for each rank."""
    ranks: int = Field(default=1, ge=1, le=256)
    """Processes on this machine that share each batch: copies of the model, which must divide `batch_rows`, times
    `tensor_parallel` times `pipeline_parallel`. The data and their order do not depend on it."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Processes that cut each matrix of a copy among them (Shoeybi et al. 2019): attention by heads, which it must
    divide, the MLP by hidden units, embedding and head by pieces of the vocabulary. They talk four times a block, so
    it is for models that do not fit otherwise."""
    pipeline_parallel: int = Field(default=1, ge=1, le=64)
    """Stages of a copy, each a process with some of its layers; micro-batches flow through them (Narayanan et al.
    2021). They talk least, and of s stages with m micro-batches a share of (s - 1) / (m + s - 1) stands idle: choose
    `micro_batch_rows` small."""
    batch_rows: int = Field(default=16, ge=1)
    """Rows that one optimizer step reads, over all ranks."""
    micro_batch_rows: Annotated[int, Field(ge=1)] | Literal["auto"] = 16
    """Rows that pass through the model at once on each rank; must divide `batch_rows`, and a rank's share of it unless
    it is larger than that. `auto` tries sizes before the first step, tells tokens per second of each, and takes the
    largest that fits into `memory_limit`. Another size adds up the same gradients in another order, so that the last
    bits of an `auto` run are the machine's; the model says which size it was."""
    memory_limit: int | None = Field(default=None, ge=1)
    """`micro_batch_rows = "auto"`: bytes that all ranks together may take; four fifths of the machine's memory by
    default."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer settings."""
    clip: ClipConfig = ClipConfig()
    """Limit of the gradient's norm over the run."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    batch_warmup: BatchWarmupConfig = BatchWarmupConfig()
    """Rows of a step over the run."""
    length_warmup: LengthWarmupConfig = LengthWarmupConfig()
    """Length of rows over the run; of a `gpt` alone."""
    new_rows: NewRows = "mean"
    """How the rows of an extended vocabulary start in a trained model: `mean` of the rows with which the model's own
    vocabulary wrote the same bytes, `mean_noise` with Gaussian noise besides, `random` as in a fresh network. `mean`
    leaves what the model knows nearly untouched, `random` takes probability from all old pieces."""
    trainable: Literal["all", "new_rows"] = "all"
    """What learns: `all` weights, or only the `new_rows` of an extended vocabulary while the rest stays bit for bit as
    it was (BELLE's first phase). A second run from the result then trains all."""
    masked_share: float = Field(default=0.15, gt=0, lt=1)
    """Share of a row's tokens that are hidden from a `bert`, anew in each epoch: 80% of them as [MASK], 10% as another
    token, 10% as they are (Devlin et al. 2019)."""
    dtype: Dtype = "float32"
    """Type in which matrices are multiplied. `bfloat16` is several times faster where the processor has units for it,
    and rounds to three digits; weights, norms, softmax, the residual stream and gradients stay float32. `float16`
    likewise, with a digit more and a smaller range, for devices without bfloat16. `tf32` rounds the factors of float32
    products, on CUDA devices alone."""
    loss_scale: LossScaleConfig = LossScaleConfig()
    """`float16`: by how much the loss is multiplied before the backward pass."""
    recompute: bool = False
    """Whether blocks keep their input alone and compute what is within them again in the backward pass: a third more
    arithmetic, and memory for one block's inner results instead of all. Changes no bit without `compile`."""
    compile: bool = False
    """Whether blocks are compiled (torch.compile, which needs a C++ compiler): a minute before the first step and less
    time in each. Other last bits than without, the same at every run. Whole micro-batches alone: rows that fill none,
    of a last batch or of one that still grows, are computed without it."""
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads of each rank's arithmetic; another number sums in another order and gives other last bits. Ranks
    times threads should not exceed the processor's cores."""
    checkpoint_steps: Annotated[int, RUNTIME] = Field(default=50, ge=1)
    """Optimizer steps between checkpoints; decides how much work a crash costs, and no bit of the result. Only where
    the guard went back and changed a setting does it matter from which of them."""
    keep_checkpoints: Annotated[int, RUNTIME] = Field(default=2, ge=1)
    """Newest checkpoints that are kept while training."""
    pause_share: Annotated[float | None, RUNTIME] = Field(default=None, gt=0, lt=1)
    """Share of all rows after which training pauses with a checkpoint, and the run ends there: neither failed nor at
    its end. Run without it, training goes on to the same bits."""
    hang_seconds: Annotated[float, RUNTIME] = Field(default=300.0, gt=0)
    """Seconds without a finished step after which a rank counts as hung; all are then started again from the last
    checkpoint."""
    start_seconds: Annotated[float, RUNTIME] = Field(default=900.0, gt=0)
    """The same where no steps are made: before the first one, and while a checkpoint or the result is written."""
    restarts: Annotated[RestartsConfig, RUNTIME] = RestartsConfig()
    """What follows where ranks fail."""
    hosts: Annotated[HostsConfig, RUNTIME] = HostsConfig()
    """Machines over which ranks are spread. The first one has the address; on each other one, with the same files:
    `bessemer train join`."""
    validation_steps: int | None = Field(default=None, ge=1)
    """Steps between looks at held-out rows, and one after the last step (table VALIDATION); none without. Changes no
    weight. Every engine looks, without `compile`, where the ranks do not share one model."""
    validation_rows: int = Field(default=16, ge=1, le=256)
    """Held-out rows of each source that are looked at, always the same."""
    max_nonfinite_steps: int = Field(default=3, ge=1)
    """Steps in a row with a non-finite loss or gradient that count as divergence: the guard goes back, or, where there
    is none, training stops."""
    guard: GuardConfig = GuardConfig()
    """What is done against divergence."""
    environment: Annotated[tuple[Variable, ...], Reach.ENVIRONMENT] = ()
    """Environment variables of the trainer and its ranks, such as `["MKL_CBWR=COMPATIBLE"]`. Of the shell's, only
    paths, credentials, certificates, proxies, the choice of devices (`CUDA_VISIBLE_DEVICES`) and how ranks find each
    other (`NCCL_*`, `GLOO_*`, `MASTER_*`, `SLURM_*`) reach them. Others may change bits: what stands here does reach
    them, and is part of the identity."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the initial weights."""

    @property
    def given(self) -> dict[str, str]:
        """The variables of `environment` by name."""
        return {name: value for name, _, value in (one.partition("=") for one in self.environment)}

    @property
    def rows_at_once(self) -> int:
        """Rows that pass through the model at once on each rank. Where the machine has yet to decide, all that there
        are."""
        share = self.batch_rows // self.data_parallel
        return share if self.micro_batch_rows == "auto" else min(self.micro_batch_rows, share)

    @property
    def data_parallel(self) -> int:
        """Copies of the model, which share each batch."""
        return self.ranks // (self.tensor_parallel * self.pipeline_parallel)
