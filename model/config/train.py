"""Everything that decides a training run, as frozen models; `run.json` holds one `TrainerRun`."""

from pathlib import Path

from pydantic import Field, ValidationError, field_validator, model_validator

from model.checksummed_json import given_text, write_sealed
from model.config import BaseConfig
from model.config.fields import TrainFields
from model.config.network import GPTConfig, NetworkConfig
from model.config.rules import check_consistency, check_ranks, check_unused_settings
from model.errors import InputError, RecipeError


class TrainConfig(TrainFields):
    """How a model is trained, given its sequences in their order."""

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
        check_unused_settings(self)
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


class StartingModel(BaseConfig):
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


class TrainerRun(BaseConfig):
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
        check_consistency(self.model, self.train)
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


def read_run(path: Path) -> TrainerRun:
    """The run described by a JSON file; InputError without one, RecipeError names every wrong key.

    A file that a program wrote holds its digest; one that a person wrote need not. Raises IntegrityError where it does,
    and is damaged.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path} that describes a training run")
    try:
        text = given_text(path, "Run the recipe again: it is written anew.")
        return TrainerRun.model_validate_json(text)
    except ValidationError as error:
        raise RecipeError(f"{path}: {error}") from error


def write_run(path: Path, run: TrainerRun) -> None:
    """Write what the trainer is told."""
    write_sealed(path, run.model_dump(mode="json"))
