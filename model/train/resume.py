"""What a run must agree with to go on with what an earlier process left: checkpoints, and what was decided for it.

Rows, tokenizer and network must agree before a step is made; each contradiction names who and the cure.
"""

from collections.abc import Mapping
from typing import Any

import torch

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
"""Settings that change no bit of the result."""

LOOKS = {"validation_steps": True, "validation_rows": True}
"""Settings that change what is told of a run, and no weight."""

VERSIONS = ("machine", "torch")
"""Entries of `must_agree` that tell of the program and the machine instead of the run."""


def must_agree(run: TrainerRun) -> dict[str, Any]:
    """What a checkpoint must agree with. What is part of the config too is told in words here."""
    return {
        "engine": _engine_in_words(run.train),
        "ranks": run.train.ranks,
        "tokenizer": run.tokenizer_digest,
        "config": digest_bytes(deciding(run).encode()),
        "order": digest_file(run.order),
        "machine": machine_parts(run.train),
        "torch": str(torch.__version__),
        "base": None if run.base is None else base_digest(run.base.folder),
    }


def versions_that_changed(run: TrainerRun, checkpoint: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What the state of a checkpoint says of the program and the machine and is no longer so: before, and today."""
    today = must_agree(run)
    return {name: (checkpoint[name], today[name]) for name in VERSIONS if checkpoint[name] != today[name]}


def optimizer_layout(run: TrainerRun) -> dict[str, Any]:
    """What the optimizer's state in a checkpoint must agree with to be taken back; else it starts anew.

    The number of ranks only where matrices or blocks are cut: copies hold the whole state, and ZeRO's is cut anew
    (`model/engines/deepspeed.py`).
    """
    kind = run.train.optimizer.kind
    layout = {"kind": kind, "engine": _engine_in_words(run.train)}
    return layout if run.train.data_parallel == run.train.ranks else {**layout, "ranks": run.train.ranks}


def _engine_in_words(train: TrainConfig) -> str:
    shared = [f", ZeRO stage {train.zero_stage}"] if train.engine == "deepspeed" else []
    layout = {"tensor_parallel": train.tensor_parallel, "pipeline_parallel": train.pipeline_parallel}
    shared += [f", {name} {size}" for name, size in layout.items() if size > 1]
    return train.engine + "".join(shared)


def deciding(run: TrainerRun) -> str:
    """All of `run` that changes a bit of the result; ORDER counts by its bytes, SEQUENCES through it, and a model to
    start from by its description, which names the digest of its weights."""
    of_base = {"folder", "digest", "added_pieces"}
    runtime: dict[str, Any] = {"out": True, "sequences": True, "order": True, "heldout": True, "base": of_base}
    return run.model_dump_json(exclude={**runtime, "train": RUNTIME_SETTINGS | LOOKS})


def check_rows(data: SequenceReader, run: TrainerRun) -> None:
    """Raises InputError where the sequences are not what the run's network reads, or ORDER asks for nothing.

    Sequences that say nothing of their rows are believed, but for the length of rows.
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
        raise InputError(f"{run.order} asks for no row at all; there is nothing to train on. Look at chunk's report.")


def _row_length(rows: RowFormat | None, run: TrainerRun) -> int:
    context = run.model.context
    if isinstance(run.model, GPTConfig):
        return context + 1
    if isinstance(run.model, BERTConfig):
        return context
    if rows is None:
        return raw_length(context)
    return raw_length(context, rows.noise_density, rows.mean_noise_span, rows.denoising)


def _check_format(rows: RowFormat, run: TrainerRun) -> None:
    objective = OBJECTIVE_OF[run.model.architecture]
    if rows.objective != objective:
        raise InputError(
            f"the sequences were laid out for {rows.objective}, and the network ({run.model.architecture}) is trained"
            f' on {objective}. Set chunk.objective = "{objective}" and run again from chunk, or choose another'
            f" train.model.architecture."
        )
    if rows.tokenizer_digest != run.tokenizer_digest:
        raise InputError(
            f"the sequences were made with the tokenizer {rows.tokenizer_digest}, and this run's tokenizer is"
            f" {run.tokenizer_digest}; the same ids mean other text. Run again from chunk, so that this run's tokenizer"
            f" writes the sequences."
        )
    if rows.vocab_size != run.model.vocab_size:
        raise InputError(
            f"the sequences are written in {rows.vocab_size} pieces, and the network has rows for"
            f" {run.model.vocab_size}. Leave train.model.vocab_size out, and the network takes the vocabulary's size."
        )
    if rows.pad != run.pad or run.eos not in (None, rows.eos):
        raise InputError(
            f"the sequences are padded with {rows.pad} and close documents with {rows.eos}; this run says {run.pad} and"
            f" {run.eos}. Run again from chunk."
        )
