"""Check that a run can resume: its checkpoints, its sequences and its network must agree before a step is made.

Each error names the two sides that contradict each other, and what to do.
"""

from typing import Any

import torch

from model.checkpoint.state import OptimizerLayout, Requirements
from model.config import runtime_fields
from model.config.machine import machine_parts
from model.config.network import OBJECTIVE_OF, BERTConfig, GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.data.dataset import SequenceReader
from model.data.row_format import RowFormat
from model.data.span_lengths import raw_length
from model.digests import digest_bytes, digest_file
from model.errors import InputError
from model.huggingface.io import base_digest

RUNTIME_SETTINGS = runtime_fields(TrainConfig)
"""Settings that never change a bit of the result."""

LAYOUT_SETTINGS = ("engine", "ranks", "tensor_parallel", "pipeline_parallel")
"""Settings that decide which rank computes what. They change the order of sums, and so the last bits."""

REPORTING_SETTINGS = {"validation_steps": True, "validation_rows": True}
"""Settings that change what is reported of a run, and no weight."""

PARTS = "parts (fsdp, tensor_parallel or pipeline_parallel)"
"""The engine of a checkpoint whose parts ranks of any layout read."""

VERSIONS = ("machine", "torch")
"""Entries of `resume_requirements` that describe the program and the machine, not the run."""


def resume_requirements(run: TrainerRun) -> Requirements:
    """Return the entries that a checkpoint's state must have for `run` to resume from it.

    Engine, ranks and tokenizer are part of the config's digest too; as entries of their own they make clear errors.
    Where ranks write parts of weights, their layout is none of them: any other one reads the parts that it needs.
    """
    found: Requirements = {
        "engine": PARTS if run.train.divides_weights else _describe_engine(run.train),
        "ranks": None if "ranks" in run.train.without_effect else run.train.ranks,
        "tokenizer": run.tokenizer_digest,
        "config": digest_bytes(deciding_settings(run).encode()),
        "order": digest_file(run.order),
        "machine": machine_parts(run.train),
        "torch": str(torch.__version__),
        "base": None if run.base is None else base_digest(run.base.folder),
    }
    if run.train.divides_weights:
        del found["ranks"]
    return found


def deciding_settings(run: TrainerRun) -> str:
    """Return, as JSON, all settings of `run` that change a bit of the result.

    Files are left out: ORDER counts by its digest, SEQUENCES through ORDER, and the base model by its description,
    which names the digest of its weights.
    """
    of_base = {"folder", "digest", "added_pieces"}
    runtime: dict[str, Any] = {"out": True, "sequences": True, "order": True, "heldout": True, "base": of_base}
    layout = dict.fromkeys(LAYOUT_SETTINGS, True) if run.train.divides_weights else {}
    left_out = settings_left_out(run.train) | REPORTING_SETTINGS | layout
    return run.model_dump_json(exclude={**runtime, "train": left_out})


def settings_left_out(train: TrainConfig) -> dict[str, Any]:
    """Return the settings that change no bit of the result, as an exclusion for `model_dump`."""
    return RUNTIME_SETTINGS | dict.fromkeys(train.without_effect, True)


def describe_layout(train: TrainConfig) -> str:
    """Return the engine and the ranks of each kind, for the log; with portable numerics without the ranks, of which
    nothing in a checkpoint depends."""
    return _describe_engine(train) + ("" if train.numerics == "portable" else f", ranks {train.ranks}")


def _describe_engine(train: TrainConfig) -> str:
    shared = [f", ZeRO stage {train.zero_stage}"] if train.engine == "deepspeed" else []
    layout = {"tensor_parallel": train.tensor_parallel, "pipeline_parallel": train.pipeline_parallel}
    shared += [f", {name} {size}" for name, size in layout.items() if size > 1]
    return train.engine + "".join(shared)


def changed_versions(run: TrainerRun, checkpoint: Requirements) -> dict[str, tuple[Any, Any]]:
    """Return the entries of VERSIONS in a checkpoint's state that differ today, each as (before, now)."""
    today = resume_requirements(run)
    return {name: (checkpoint[name], today[name]) for name in VERSIONS if checkpoint[name] != today[name]}


def optimizer_layout(run: TrainerRun) -> OptimizerLayout:
    """Return what an optimizer's state in a checkpoint must agree with to be restored; otherwise it starts empty.

    The number of ranks does not count: replicas hold the whole state, parts are read by any layout, and ZeRO's shards
    are cut again (`model/engines/deepspeed.py`).
    """
    engine = PARTS if run.train.divides_weights else _describe_engine(run.train)
    return {"kind": run.train.optimizer.kind, "engine": engine}


def check_rows(data: SequenceReader, run: TrainerRun) -> None:
    """Raise InputError where the sequences do not fit the run's network, or ORDER is empty.

    Of sequences without a recorded row format only the length of rows is checked.
    """
    if data.row_format is not None:
        _check_format(data.row_format, run)
    needed = _row_length(data.row_format, run)
    if data.row_length != needed:
        raise InputError(
            f"sequences have rows of {data.row_length} tokens, but a {run.model.architecture} of context"
            f" {run.model.context} needs {needed}. Leave chunk.row_length and chunk.input_length out;"
            f" train.model.context decides them. Run again from chunk."
        )
    if data.positions == 0:
        raise InputError(f"{run.order} lists no rows; there is nothing to train on. See the report of chunk.")


def _check_format(rows: RowFormat, run: TrainerRun) -> None:
    objective = OBJECTIVE_OF[run.model.architecture]
    if rows.objective != objective:
        raise InputError(
            f"the sequences were built for {rows.objective}, and the network ({run.model.architecture}) is trained"
            f' on {objective}. Set chunk.objective = "{objective}" and run again from chunk, or choose another'
            f" train.model.architecture."
        )
    if rows.tokenizer_digest != run.tokenizer_digest:
        raise InputError(
            f"the sequences were made with the tokenizer {rows.tokenizer_digest}, and this run's tokenizer is"
            f" {run.tokenizer_digest}; the same ids mean different text. Run again from chunk, so that the sequences"
            f" are written with this run's tokenizer."
        )
    if rows.vocab_size != run.model.vocab_size:
        raise InputError(
            f"the sequences use a vocabulary of {rows.vocab_size} tokens, and the network has {run.model.vocab_size}"
            f" embedding rows. Leave train.model.vocab_size out, and the network takes the vocabulary's size."
        )
    if rows.pad != run.pad or run.eos not in (None, rows.eos):
        raise InputError(
            f"the sequences are padded with id {rows.pad} and end documents with id {rows.eos}; this run expects"
            f" {run.pad} and {run.eos}. Run again from chunk."
        )


def _row_length(rows: RowFormat | None, run: TrainerRun) -> int:
    context = run.model.context
    if isinstance(run.model, GPTConfig):
        return context + 1
    if isinstance(run.model, BERTConfig):
        return context
    if rows is None:
        return raw_length(context)
    return raw_length(context, rows.noise_density, rows.mean_noise_span, rows.denoising)
