"""Everything that decides a training run, as frozen models; `run.json` holds one `TrainerRun`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from model.architecture import GPTConfig, NetworkConfig
from model.guard.config import GuardConfig
from model.hosts_config import HostsConfig
from model.parallel.checks import check_ranks
from model.restart_config import RestartsConfig
from model.settings_together import check_read, check_together
from model.step_config import (
    BatchWarmupConfig,
    ClipConfig,
    LengthWarmupConfig,
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from model.strict import RUNTIME, Reach, Strict

Dtype = Literal["float32", "tf32", "bfloat16", "float16"]
"""Types in which matrices are multiplied."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\x00]*$")]
NewRows = Literal["mean", "mean_noise", "random"]
"""How the rows of pieces start that a base model does not have."""


class TrainConfig(Strict):
    """How a model is trained, given its sequences in their order."""

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

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _stage_0_is_the_native_engine(cls, stage: object) -> object:
        if stage == 0:
            raise ValueError(
                "stage 0 spreads nothing, which is what engine = native does with ranks, and in float32 DeepSpeed's"
                " stage 0 writes a NaN gradient into the weights. Leave zero_stage out and choose engine = native"
            )
        return stage

    @model_validator(mode="after")
    def _nothing_is_set_in_vain(self) -> "TrainConfig":
        check_read(self)
        return self

    @model_validator(mode="after")
    def _held_out_rows_can_be_looked_at(self) -> "TrainConfig":
        if self.validation_steps is None:
            return self
        shared = self.tensor_parallel * self.pipeline_parallel > 1
        if self.compile or shared:
            raise ValueError(
                "validation_steps looks at held-out rows with a whole network on each rank, without compile,"
                " tensor_parallel and pipeline_parallel. Leave it out; evaluate measures held-out text after training"
            )
        return self

    @model_validator(mode="after")
    def _hosts_have_as_many_ranks_each(self) -> "TrainConfig":
        hosts = self.hosts.count
        if self.ranks % hosts:
            raise ValueError(f"ranks = {self.ranks} cannot be spread evenly over hosts.count = {hosts}")
        fewer = [here * self.ranks // hosts for here in range(1, hosts) if self.restarts.fewer_ranks]
        if uneven := [size for size in fewer if self.batch_rows % size]:
            raise ValueError(
                f"restarts.fewer_ranks would go on with {uneven[0]} ranks where a host is missing, and a batch of"
                f" {self.batch_rows} rows cannot be spread evenly over them. Choose batch_rows accordingly"
            )
        return self

    @model_validator(mode="after")
    def _ranks_that_are_left_make_whole_copies(self) -> "TrainConfig":
        if self.restarts.fewer_ranks and self.data_parallel < self.ranks:
            raise ValueError(
                f"restarts.fewer_ranks goes on with any number of ranks, and a copy of the model takes"
                f" {self.ranks // self.data_parallel} (tensor_parallel {self.tensor_parallel}, pipeline_parallel"
                f" {self.pipeline_parallel}). Leave it out, or set both to 1"
            )
        if self.restarts.fewer_ranks and self.device == "cuda":
            raise ValueError(
                "restarts.fewer_ranks leaves ranks out, and rank k computes on CUDA device k, so that the device of a"
                " rank that failed would be that of another. Leave it out, or set device = cpu"
            )
        return self

    @model_validator(mode="after")
    def _zero_can_do_the_optimizer(self) -> "TrainConfig":
        if self.engine == "deepspeed" and self.optimizer.kind in ("lamb", "muon"):
            raise ValueError(
                f"optimizer.kind {self.optimizer.kind} looks at whole matrices, and ZeRO cuts all weights into one"
                f" vector a rank, so that no rank has any. Set engine = native, or optimizer.kind = adamw or sgd"
            )
        if self.engine == "deepspeed" and self.zero_stage == 3 and (self.optimizer.l1 or self.optimizer.l2):
            raise ValueError(
                "penalties l1 and l2 look at all weights outside the network's modules, where ZeRO stage 3 has none."
                " Set zero_stage = 1 or 2, or engine = native, or use optimizer.weight_decay, which each rank applies"
                " to its own part"
            )
        return self

    @model_validator(mode="after")
    def _the_device_can_be_shared(self) -> "TrainConfig":
        if self.device == "cuda" and self.tensor_parallel * self.pipeline_parallel > 1:
            raise ValueError(
                f"copies over several ranks (tensor_parallel {self.tensor_parallel}, pipeline_parallel"
                f" {self.pipeline_parallel}) exchange over processors alone. Set both to 1, and engine = deepspeed with"
                f" zero_stage = 3 for a model that no device holds"
            )
        if self.device == "cuda" and self.micro_batch_rows == "auto":
            raise ValueError("micro_batch_rows = auto measures the memory of processes, not of devices. Set a number")
        return self

    @model_validator(mode="after")
    def _the_device_has_the_type(self) -> "TrainConfig":
        if self.dtype == "tf32" and self.device != "cuda":
            raise ValueError(
                f"dtype is tf32, and device is {self.device}: only CUDA devices, from Ampere on, have such products."
                f" Set dtype = bfloat16, which is faster still, or float32, or device = cuda"
            )
        return self

    @model_validator(mode="after")
    def _blocks_can_be_compiled(self) -> "TrainConfig":
        if self.compile and self.engine == "deepspeed" and self.zero_stage == 3:
            raise ValueError(
                "compile takes a block as one piece, and ZeRO stage 3 fetches weights between its parts. Set"
                " zero_stage = 1 or 2, or compile = false"
            )
        if self.compile and self.tensor_parallel > 1:
            raise ValueError(
                f"compile takes a block as one piece, and the ranks of tensor_parallel {self.tensor_parallel} talk to"
                f" each other within blocks. Set compile = false, or pipeline_parallel instead of tensor_parallel"
            )
        return self

    @model_validator(mode="after")
    def _micro_batches_fill_the_batch(self) -> "TrainConfig":
        rows = self.micro_batch_rows
        if rows != "auto" and self.batch_rows % rows:
            raise ValueError(f"micro_batch_rows {rows} does not divide batch_rows {self.batch_rows}")
        if rows == "auto" and self.tensor_parallel * self.pipeline_parallel > 1:
            raise ValueError(
                "micro_batch_rows = auto tries sizes on a whole model, and tensor_parallel and pipeline_parallel share"
                " one out; a pipeline wants small ones besides. Set a number"
            )
        check_ranks(self)
        copies, who = self.data_parallel, "ranks" if self.data_parallel == self.ranks else "copies of the model"
        if self.batch_rows % copies:
            raise ValueError(f"{who} {copies} does not divide batch_rows {self.batch_rows}")
        share = self.batch_rows // copies
        if rows != "auto" and share % min(rows, share):
            raise ValueError(
                f"micro_batch_rows {rows} does not divide the {share} rows that each of {copies}"
                f" {who} reads of batch_rows {self.batch_rows}"
            )
        return self

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

    @model_validator(mode="after")
    def _batches_grow_to_the_whole(self) -> "TrainConfig":
        grows = self.batch_warmup
        if not grows.share:
            return self
        missing = self.batch_rows - grows.start_rows
        if missing <= 0 or missing % grows.step_rows:
            raise ValueError(
                f"batch_warmup.start_rows {grows.start_rows} and whole strides of step_rows {grows.step_rows} do not"
                f" lead to batch_rows {self.batch_rows}"
            )
        for name in ("start_rows", "step_rows"):
            if getattr(grows, name) % self.data_parallel:
                raise ValueError(
                    f"ranks {self.data_parallel} does not divide batch_warmup.{name} {getattr(grows, name)}"
                )
        return self


class StartingModel(Strict):
    """A trained model to start from, and what its vocabulary has become."""

    folder: Path
    """Folder with its `model.safetensors` and `model.json`, or that of a published model, as `transformers` has it."""
    digest: str | None = None
    """What stands for its settings and weights in the identity of the run, against which they are held."""
    tokenizer_digest: str
    """Digest of the tokenizer that it was trained with: the run's own, or the one that the run's was grown from."""
    added_pieces: Path | None = None
    """Arrow file that names, for each piece beyond the model's rows (`id`), the ids with which the model's own
    tokenizer wrote the same bytes (`base_ids`); none where the tokenizer is the same."""


class TrainerRun(Strict):
    """The contents of `run.json`: what to train on, where to write, and how."""

    sequences: tuple[Path, ...]
    """Arrow files of SEQUENCES, in order of rows."""
    order: Path
    """Arrow file of ORDER."""
    out: Path
    """Folder for checkpoints and results."""
    pad: int = Field(ge=0)
    """Token id of padding; its prediction carries no loss."""
    eos: int | None = Field(default=None, ge=0)
    """Token id that closes every document; needed where attention stays within documents."""
    tokenizer_digest: str
    """Digest of the tokenizer that made the sequences; travels into every checkpoint and export."""
    model: NetworkConfig
    """The network."""
    train: TrainConfig
    """The training."""
    heldout: Path | None = None
    """Arrow file of held-out rows, like those of SEQUENCES, for `validation_steps`."""
    base: StartingModel | None = None
    """A trained model to start from; random weights by default. The optimizer starts afresh."""

    @model_validator(mode="after")
    def _network_and_training_go_together(self) -> "TrainerRun":
        check_together(self.model, self.train)
        return self

    @model_validator(mode="after")
    def _documents_have_borders(self) -> "TrainerRun":
        if isinstance(self.model, GPTConfig) and self.model.attend_within_documents and self.eos is None:
            raise ValueError("model.attend_within_documents needs eos, the token that closes every document")
        return self

    @model_validator(mode="after")
    def _new_rows_have_a_base(self) -> "TrainerRun":
        if self.train.trainable == "new_rows" and self.base is None:
            raise ValueError("train.trainable = new_rows needs a trained model whose vocabulary was extended")
        return self
