"""The configuration of a training run, as frozen models; `run.json` holds a `TrainerRun`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from model.checksummed_json import read_optionally_sealed, write_sealed
from model.config import BaseConfig
from model.config.fields import TrainFields
from model.config.network import GPTConfig, NetworkConfig
from model.config.rules import check_consistency, check_portable, check_ranks, check_unused_settings
from model.errors import InputError, RecipeError, validation_problems

NEW_ROWS_PEAK_LR = 5e-3
"""2.5 times the rate of a whole network. After 300 steps, half of whose rows were English, Russian bits per byte had
fallen by 18.8% instead of 14.7%, and English ones had risen by 1.2% with both rates (one seed,
`tests/prove_data/test_new_rows.py`)."""


class TrainConfig(TrainFields):
    """The settings of a training, checked for consistency."""

    @model_validator(mode="before")
    @classmethod
    def _device_decides_what_is_not_set(cls, values: Any) -> Any:
        """On CUDA devices multiply in bfloat16, and compile where ranks hold whole weights, unless set otherwise."""
        if not isinstance(values, Mapping) or values.get("device") != "cuda":
            return values
        engine = values.get("engine")
        divided = engine == "fsdp" or values.get("tensor_parallel", 1) != 1
        compiled = not divided and (engine != "deepspeed" or values.get("zero_stage") != 3)
        return {"dtype": "bfloat16", "compile": compiled, **values}

    @model_validator(mode="before")
    @classmethod
    def _new_rows_alone_take_a_higher_rate(cls, values: Any) -> Any:
        """Where the new rows alone are trained, and no rate is set, take theirs: no other weight can be harmed."""
        if not isinstance(values, Mapping) or values.get("trainable") != "new_rows":
            return values
        schedule = values.get("schedule", {})
        if not isinstance(schedule, Mapping):
            return values
        return {**values, "schedule": {"peak_lr": NEW_ROWS_PEAK_LR, **schedule}}

    @model_validator(mode="before")
    @classmethod
    def _micro_batch_follows_the_batch(cls, values: Any) -> Any:
        """Where `micro_batch_rows` is not set and its default does not fit the batch, take the next smaller one."""
        if not isinstance(values, Mapping) or "micro_batch_rows" in values:
            return values
        most = cls.model_fields["micro_batch_rows"].default
        rows = fitting_micro_batch(values, most)
        return values if rows == most else {**values, "micro_batch_rows": rows}

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _stage_0_is_the_native_engine(cls, stage: object) -> object:
        if stage == 0:
            raise ValueError(
                "stage 0 partitions nothing, as engine = native does, and in float32 DeepSpeed's stage 0 applies NaN"
                " gradients to the weights. Leave zero_stage out and set engine = native"
            )
        return stage

    @model_validator(mode="after")
    def _settings_are_used(self) -> "TrainConfig":
        check_unused_settings(self)
        check_portable(self)
        return self

    @model_validator(mode="after")
    def _hosts_have_equal_ranks_and_fewer_are_whole_replicas(self) -> "TrainConfig":
        if self.ranks % self.hosts.count:
            raise ValueError(f"ranks = {self.ranks} cannot be divided evenly among hosts.count = {self.hosts.count}")
        replica, here = self.tensor_parallel * self.pipeline_parallel, self.ranks // self.hosts.count
        if self.restarts.fewer_ranks and self.ranks == replica > 1:
            raise ValueError(
                f"restarts.fewer_ranks continues with the replicas that are whole, and all {self.ranks} ranks are one"
                f" (tensor_parallel {self.tensor_parallel}, pipeline_parallel {self.pipeline_parallel}). Leave it out,"
                f" or set ranks = {2 * replica} or more"
            )
        if self.restarts.fewer_ranks and here % replica:
            raise ValueError(
                f"restarts.fewer_ranks continues without a host that is missing, and each of {self.hosts.count} hosts"
                f" has {here} ranks, which are no whole replicas of {replica} (tensor_parallel {self.tensor_parallel},"
                f" pipeline_parallel {self.pipeline_parallel}). Leave it out, or set ranks ="
                f" {-(-here // replica) * replica * self.hosts.count}"
            )
        return self

    @model_validator(mode="after")
    def _zero_supports_the_optimizer(self) -> "TrainConfig":
        library, lacks = {"fsdp": ("FSDP", ["muon"]), "deepspeed": ("ZeRO", ["lamb", "muon"])}.get(
            self.engine, ("", [])
        )
        if self.optimizer.kind in lacks:
            others = ", ".join(kind for kind in ("adamw", "sgd", "lamb") if kind not in lacks)
            raise ValueError(
                f"optimizer.kind {self.optimizer.kind} needs whole matrices, and {library} partitions all weights, so"
                f" no rank has any. Set engine = native, or optimizer.kind to one of {others}"
            )
        if self.engine == "deepspeed" and self.zero_stage == 3 and (self.optimizer.l1 or self.optimizer.l2):
            raise ValueError(
                "penalties l1 and l2 need all weights outside the network's modules, where ZeRO stage 3 has none."
                " Set zero_stage = 1 or 2, or engine = native, or use optimizer.weight_decay, which each rank applies"
                " to its own part"
            )
        return self

    @model_validator(mode="after")
    def _device_and_engine_support_the_settings(self) -> "TrainConfig":
        if self.dtype == "tf32" and self.device != "cuda":
            raise ValueError(
                f"dtype is tf32, and device is {self.device}: only CUDA devices, from Ampere on, have such products."
                f" Set dtype = bfloat16, which is faster still, or float32, or device = cuda"
            )
        if self.compile and self.engine == "deepspeed" and self.zero_stage == 3:
            raise ValueError(
                "compile makes one graph of a block, and ZeRO stage 3 gathers weights within blocks. Set zero_stage = 1"
                " or 2, or compile = false"
            )
        if self.engine == "fsdp" and self.micro_batch_rows == "auto":
            raise ValueError(
                "micro_batch_rows = auto tries sizes on a whole model, and engine = fsdp divides it. Set a number"
            )
        return self

    @model_validator(mode="after")
    def _micro_batches_fill_the_batch(self) -> "TrainConfig":
        rows = self.micro_batch_rows
        if rows != "auto" and self.batch_rows % rows:
            raise ValueError(f"micro_batch_rows {rows} does not divide batch_rows {self.batch_rows}")
        if rows == "auto" and self.tensor_parallel * self.pipeline_parallel > 1:
            raise ValueError(
                "micro_batch_rows = auto tries sizes on a whole model, and tensor_parallel and pipeline_parallel divide"
                " it. Set a number; a small one for pipelines"
            )
        check_ranks(self)
        copies, noun = self.data_parallel, "ranks" if self.data_parallel == self.ranks else "copies of the model"
        if self.batch_rows % copies:
            fitting = -(-self.batch_rows // copies) * copies
            raise ValueError(
                f"{noun} {copies} does not divide batch_rows {self.batch_rows}. Set batch_rows = {fitting}"
            )
        share = self.batch_rows // copies
        if rows != "auto" and share % min(rows, share):
            raise ValueError(
                f"micro_batch_rows {rows} does not divide the {share} rows that each of {copies}"
                f" {noun} reads of batch_rows {self.batch_rows}. Set micro_batch_rows = {math.gcd(rows, share)}"
            )
        return self

    @model_validator(mode="after")
    def _batch_warmup_reaches_batch_rows(self) -> "TrainConfig":
        warmup = self.batch_warmup
        if not warmup.share:
            return self
        missing = self.batch_rows - warmup.start_rows
        if missing <= 0 or missing % warmup.step_rows:
            raise ValueError(
                f"batch_warmup.start_rows {warmup.start_rows} and multiples of step_rows {warmup.step_rows} do not"
                f" lead to batch_rows {self.batch_rows}"
            )
        for name in ("start_rows", "step_rows"):
            if getattr(warmup, name) % self.data_parallel:
                raise ValueError(
                    f"ranks {self.data_parallel} does not divide batch_warmup.{name} {getattr(warmup, name)}"
                )
        return self


class StartingModel(BaseConfig):
    """A trained model to start from, and how its vocabulary was extended."""

    folder: Path
    """Folder with its `model.safetensors` and `model.json`, or a published model in the format of `transformers`."""
    digest: str | None = None
    """Digest of its settings and weights, which is part of the run's identity, and is checked."""
    tokenizer_digest: str
    """Digest of the tokenizer that it was trained with: the run's own, or the one that the run's extends."""
    added_pieces: Path | None = None
    """Arrow file with, for each token beyond the model's rows (`id`), the ids with which the model's own tokenizer
    writes the same bytes (`base_ids`); none where the tokenizer is the same."""


class TrainerRun(BaseConfig):
    """The contents of `run.json`: data, output folder, network and training."""

    sequences: tuple[Path, ...]
    """Arrow files of SEQUENCES, in order of rows."""
    order: Path
    """Arrow file of ORDER."""
    out: Path
    """Folder for checkpoints and results."""
    pad: int = Field(ge=0)
    """Token id of padding, whose prediction carries no loss."""
    eos: int | None = Field(default=None, ge=0)
    """Token id that ends every document; needed where attention stays within documents."""
    tokenizer_digest: str
    """Digest of the tokenizer of the sequences; copied into every checkpoint and export."""
    model: NetworkConfig
    """The network."""
    train: TrainConfig
    """The training."""
    heldout: Path | None = None
    """Arrow file of held-out sequences for `validation_steps`, in the format of SEQUENCES."""
    base: StartingModel | None = None
    """A trained model to start from; random weights by default. Optimizer state is not taken over."""

    @model_validator(mode="after")
    def _parts_are_consistent(self) -> "TrainerRun":
        check_consistency(self.model, self.train)
        if isinstance(self.model, GPTConfig) and self.model.attend_within_documents and self.eos is None:
            raise ValueError("model.attend_within_documents needs eos, the token that ends every document")
        if self.train.trainable == "new_rows" and self.base is None:
            raise ValueError("train.trainable = new_rows needs a trained model whose vocabulary was extended")
        return self


def read_run(path: Path) -> TrainerRun:
    """Return the run in a JSON file, which need not hold a digest if it was written by hand.

    Raises InputError without the file, RecipeError with every wrong key, and IntegrityError where it has a digest and
    is damaged.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path} that describes a training run")
    try:
        text = read_optionally_sealed(path, "Run the recipe again, which rewrites it.")
        return TrainerRun.model_validate_json(text)
    except ValidationError as error:
        raise RecipeError(f"{path}: {validation_problems(error)}") from error


def write_run(path: Path, run: TrainerRun) -> None:
    """Write `run.json`."""
    write_sealed(path, run.model_dump(mode="json"))


def fitting_micro_batch(values: Mapping[str, Any], most: int) -> int:
    """Return `most`, or the largest number below it that divides the rows that each rank reads of a batch.

    `values` are those of a table `train`; `most` is returned where they are wrong, so that validation names the error.
    """
    names = ("batch_rows", "ranks", "tensor_parallel", "pipeline_parallel")
    given = [values.get(name, TrainFields.model_fields[name].default) for name in names]
    if not all(isinstance(value, int) and value > 0 for value in given):
        return most
    rows, ranks, *parallel = given
    copies = max(1, ranks // math.prod(parallel))
    share = rows // copies
    if rows % copies or not share or (rows % most == 0 and share % min(most, share) == 0):
        return most
    return next(size for size in range(min(most, share), 0, -1) if share % size == 0)
