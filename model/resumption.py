"""What a run must agree with to go on with what an earlier process left: checkpoints, and what was decided for it."""

from collections.abc import Mapping
from typing import Any

import torch

from model.base_weights import base_digest
from model.config import TrainConfig, TrainerRun
from model.machine import machine_of
from model.reading import digest_bytes, digest_file
from model.strict import runtime_fields

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
        "machine": machine_of(run.train),
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
    (`model/resharding.py`).
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
