"""The settings of a training, each with its own limits; imports no PyTorch."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from model.config import EXPERT, RUNTIME, BaseConfig, Reach
from model.config.launch import HostsConfig, RestartsConfig
from model.config.options import (
    FLOAT16_RECOVERY_STEP,
    BatchWarmupConfig,
    ClipConfig,
    GuardConfig,
    LengthWarmupConfig,
    LossScaleConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
)

Dtype = Literal["float32", "tf32", "bfloat16", "float16"]
"""Precision of matrix products."""

WeightDtype = Literal["float32", "bfloat16", "float16"]
"""Type of stored weights."""

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\x00]*$")]

NewRows = Literal["mean", "mean_noise", "random"]
"""Initial rows of tokens that a base model lacks."""


PORTABLE_ENVIRONMENT = {"ATEN_CPU_CAPABILITY": "avx2"}
"""Variables of a trainer with portable numerics: PyTorch's own kernels are those of one instruction set."""

LAYOUT = ("ranks", "threads", "micro_batch_rows", "memory_limit")
"""Settings that say where what is computed, and change no bit with portable numerics."""


class TrainFields(BaseConfig):
    """The settings of a training, each with its own limits; `TrainConfig` checks them for consistency."""

    engine: Literal["native", "fsdp", "deepspeed"] = "native"
    """What computes a step. `native` is plain PyTorch with the whole model on every rank. `fsdp` (torch's FSDP2)
    divides weights, gradients and optimizer state over the ranks from the start on, so that none ever has the whole
    model. `deepspeed` partitions optimizer state, gradients and weights (ZeRO). Both are for models that do not fit
    otherwise, and slower for those that do."""
    numerics: Annotated[Literal["native", "portable"], EXPERT] = "native"
    """What decides the last bits. `native`: the libraries of PyTorch, whose sums differ between processors, `ranks`,
    `threads` and `micro_batch_rows`. `portable`: a defined arithmetic, the same on every x86 processor with AVX2 for
    any of these three, which the identity then leaves out. Rows pass in twos, on one thread of each rank; `float32`
    alone."""
    zero_stage: Annotated[Literal[1, 2, 3], EXPERT] = 1
    """`deepspeed`: what is partitioned over the ranks: 1 optimizer state, 2 also gradients, 3 also weights."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where training runs: on the CPU, or on CUDA devices, one for each rank."""
    ranks: int = Field(default=1, ge=1)
    """Processes of the training: copies of the model, whose number must divide `batch_rows`, times `tensor_parallel`
    times `pipeline_parallel`. The data and their order do not depend on it."""
    tensor_parallel: Annotated[int, EXPERT] = Field(default=1, ge=1, le=64)
    """Processes that share each matrix of a copy of the model (Shoeybi et al. 2019): attention by heads, whose number
    it must divide, the MLP by hidden units, embedding and head by tokens of the vocabulary. They communicate four times
    a block, so it is for models that do not fit otherwise."""
    pipeline_parallel: Annotated[int, EXPERT] = Field(default=1, ge=1, le=64)
    """Pipeline stages of a copy of the model, each a process with some of its layers (Narayanan et al. 2021). They
    communicate least, but s stages with m micro-batches are idle for (s - 1) / (m + s - 1) of the time: choose a small
    `micro_batch_rows`."""
    batch_rows: int = Field(default=16, ge=1)
    """Sequences in one optimizer step, over all ranks."""
    micro_batch_rows: Annotated[int, Field(ge=1)] | Literal["auto"] = 16
    """Sequences that each rank computes at once; must divide `batch_rows`, and a rank's share of it unless it is
    larger. Unset: 16, or the next smaller number that does. `auto` tries sizes before the first step, reports tokens
    per second of each, and takes the largest that fits into `memory_limit`. Another size sums the same gradients in
    another order, so the last bits of an `auto` run depend on the machine; model.json records the size."""
    memory_limit: Annotated[int | None, EXPERT] = Field(default=None, ge=1)
    """`micro_batch_rows = "auto"`: bytes that all ranks together may use, by default four fifths of the machine's
    memory. On CUDA each rank may use four fifths of its device at most."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer settings."""
    clip: Annotated[ClipConfig, EXPERT] = ClipConfig()
    """Clipping of the gradient norm over the run."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    phases: Annotated[tuple[PhaseConfig, ...], EXPERT] = ()
    """The last parts of the training, in order, with another mixture or rate each."""
    batch_warmup: Annotated[BatchWarmupConfig, EXPERT] = BatchWarmupConfig()
    """Batch size over the run."""
    length_warmup: Annotated[LengthWarmupConfig, EXPERT] = LengthWarmupConfig()
    """Sequence length over the run; `gpt` only."""
    new_rows: Annotated[NewRows, EXPERT] = "mean"
    """How rows of new tokens are initialised when a vocabulary was extended: `mean` of the rows with which the model's
    own vocabulary writes the same bytes, `mean_noise` with added Gaussian noise, `random` as in a new network. `mean`
    changes the model's predictions least, `random` takes probability from all old tokens."""
    trainable: Annotated[Literal["all", "new_rows"], EXPERT] = "all"
    """What is trained: `all` weights, or only the `new_rows` of an extended vocabulary, while all else stays bit for
    bit (BELLE's first phase). A second run from the result then trains all."""
    masked_share: Annotated[float, EXPERT] = Field(default=0.15, gt=0, lt=1)
    """`bert`: share of a sequence's tokens that are masked, different ones in each epoch: 80% of them become [MASK],
    10% another token, 10% stay (Devlin et al. 2019)."""
    dtype: Dtype = "float32"
    """Precision of matrix products; on CUDA devices `bfloat16` unless set. `bfloat16` is several times faster where the
    hardware supports it, and rounds to three digits; weights, norms, softmax, the residual stream and gradients stay
    float32. `float16` has one digit more and a smaller range, for devices without bfloat16. `tf32` rounds the factors
    of float32 products, on CUDA devices only."""
    loss_scale: Annotated[LossScaleConfig, EXPERT] = LossScaleConfig()
    """`float16`: scaling of the loss before the backward pass."""
    recompute: Annotated[bool, EXPERT] = False
    """Whether blocks keep only their input, and are recomputed in the backward pass (activation checkpointing): a third
    more arithmetic, and memory for the activations of one block instead of all. Changes no bit without `compile`."""
    compile: bool = False
    """Whether blocks are compiled (torch.compile, which needs a C++ compiler): a minute before the first step, and
    faster steps. On CUDA devices true unless set, but not with ZeRO-3. The last bits differ from those without it, and
    repeat in every run. Blocks are not compiled for partial micro-batches, of the last batch or of one that still
    grows."""
    deterministic: Annotated[bool, EXPERT] = True
    """On CUDA devices: whether kernels that do not repeat their sums are refused, so that the same run has the same
    bits and resumes to them. A step of GPT-2 small on an H100 is 7% faster without; the model is then not `exact`."""
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads of each rank; another number sums in another order and gives other last bits. Ranks times threads
    should not exceed the CPU's cores."""
    checkpoint_steps: Annotated[int, RUNTIME] = Field(default=50, ge=1)
    """Optimizer steps between checkpoints. Decides how much work a crash costs, and changes no bit of the result,
    unless the guard rolls back to one of them and changes a setting."""
    keep_checkpoints: Annotated[int, RUNTIME, EXPERT] = Field(default=2, ge=1)
    """Number of checkpoints kept while training."""
    lasting_checkpoints: Annotated[int, RUNTIME, EXPERT] = Field(default=0, ge=0, le=1000)
    """Number of checkpoints at equal distances that stay with the trained model, 12 bytes a weight each. `bessemer data
    forget` trains again from the last one before the removed text."""
    pause_share: Annotated[float | None, RUNTIME, EXPERT] = Field(default=None, gt=0, lt=1)
    """Share of all sequences after which training pauses with a checkpoint and the run ends without failure. Running
    again without this key continues to the same bits."""
    hang_seconds: Annotated[float, RUNTIME, EXPERT] = Field(default=300.0, gt=0)
    """Seconds without a finished step after which a rank counts as hung; all ranks then restart from the last
    checkpoint."""
    start_seconds: Annotated[float, RUNTIME, EXPERT] = Field(default=900.0, gt=0)
    """The same limit outside of steps: before the first one, and while a checkpoint or the result is written."""
    restarts: Annotated[RestartsConfig, RUNTIME, EXPERT] = RestartsConfig()
    """What happens when ranks fail."""
    hosts: Annotated[HostsConfig, RUNTIME, EXPERT] = HostsConfig()
    """Machines over which ranks are spread. The first one has the address; on each other one, with the same files, run
    `bessemer training join`."""
    validation_steps: int | None = Field(default=None, ge=0)
    """Steps between evaluations on held-out sequences, with one more after the last step (table VALIDATION); 0: none.
    Unset: up to twenty over the training, fewer where they would cost more than 3% of its arithmetic, and none where no
    text was held out. Changes no weight."""
    validation_rows: Annotated[int, EXPERT] = Field(default=16, ge=1, le=256)
    """Held-out sequences of each source that are evaluated, always the same."""
    guard: Annotated[GuardConfig, EXPERT] = GuardConfig()
    """Detection of divergence, and recovery."""
    environment: Annotated[tuple[Variable, ...], Reach.ENVIRONMENT, EXPERT] = ()
    """Environment variables of the trainer and its ranks, such as `["MKL_CBWR=COMPATIBLE"]`. From the shell they get
    only paths, credentials, certificates, proxies, the choice of devices (`CUDA_VISIBLE_DEVICES`) and how ranks find
    each other (`NCCL_*`, `GLOO_*`, `MASTER_*`, `SLURM_*`), because others may change bits. Those set here are part of
    the identity."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the initial weights, dropout, masks and spans."""

    @property
    def divides_weights(self) -> bool:
        """Whether ranks create and hold parts of the network alone; with `deepspeed` each creates it whole."""
        return self.engine == "fsdp" or self.tensor_parallel * self.pipeline_parallel > 1

    @property
    def possible_dtypes(self) -> set[Dtype]:
        """Types of products that a training has, or may have after the guard rolled back."""
        steps = self.guard.ladder or ((FLOAT16_RECOVERY_STEP,) if self.dtype == "float16" else ())
        return {self.dtype, *(step.dtype for step in steps if step.dtype is not None)}

    @property
    def given(self) -> dict[str, str]:
        """`environment` as a dictionary, and what the numerics need."""
        given = {name: value for name, _, value in (one.partition("=") for one in self.environment)}
        return given | (PORTABLE_ENVIRONMENT if self.numerics == "portable" else {})

    @property
    def without_effect(self) -> frozenset[str]:
        """Settings that change no bit of the result, whose values the identity leaves out."""
        of_device = {"deterministic"} if self.device == "cpu" else set()
        return frozenset(of_device | set(LAYOUT if self.numerics == "portable" else ()))

    @property
    def rows_at_once(self) -> int:
        """Sequences that each rank computes at once; its whole share of the batch while `auto` is undecided."""
        share = self.batch_rows // self.data_parallel
        return share if self.micro_batch_rows == "auto" else min(self.micro_batch_rows, share)

    @property
    def data_parallel(self) -> int:
        """Number of replicas: copies of the model, which share each batch."""
        return self.ranks // (self.tensor_parallel * self.pipeline_parallel)

    def replica(self, rank: int) -> int:
        """Return the number of the replica that a rank belongs to."""
        return rank // self.tensor_parallel % self.data_parallel
