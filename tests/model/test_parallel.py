"""One copy of the model over several real processes: the same numbers as in one, and the same bytes after kills."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from safetensors.numpy import load_file

from model.config import TrainerRun
from model.training import train

TENSOR = {"ranks": 2, "tensor_parallel": 2}
PIPELINE = {"ranks": 2, "pipeline_parallel": 2}
BOTH = {"ranks": 4, "tensor_parallel": 2, "pipeline_parallel": 2}
BATCHES = {"batch_rows": 8, "micro_batch_rows": 2, "positions": 8 * 50 + 3}
"""Fifty steps of four micro-batches, and one that is short."""
WITHIN = 1e-4


def finish(trainer: subprocess.Popen[str]) -> tuple[int, list[dict], str]:
    out, err = trainer.communicate(timeout=240)
    return trainer.returncode, [json.loads(line) for line in out.splitlines()], err


def metrics(run: TrainerRun) -> dict[str, np.ndarray]:
    with pa.OSFile(str(run.out / "result" / "metrics.arrow"), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    return {name: np.array(table[name].to_pylist()) for name in ("loss", "grad_norm", "thermometers", "lr")}


def agree(run: TrainerRun, reference: TrainerRun) -> None:
    ours, theirs = metrics(run), metrics(reference)
    assert len(ours["loss"]) == 51
    for name in ("loss", "grad_norm", "thermometers"):
        print(name, float(np.max(np.abs(ours[name] / theirs[name] - 1))))
        np.testing.assert_allclose(ours[name], theirs[name], rtol=WITHIN, err_msg=name)
    weights, expected = (load_file(folder.out / "result" / "model.safetensors") for folder in (run, reference))
    assert {name: w.shape for name, w in weights.items()} == {name: w.shape for name, w in expected.items()}
    for name in weights:
        np.testing.assert_allclose(weights[name], expected[name], atol=1e-3, err_msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, build_run) -> TrainerRun:
    run = build_run(tmp_path_factory.mktemp("alone"), **BATCHES)
    train(run)
    return run


@pytest.mark.parametrize("layout", [TENSOR, PIPELINE, BOTH], ids=["tensor", "pipeline", "both"])
def test_a_copy_over_several_ranks_computes_what_one_does(alone: TrainerRun, make_run, launch, layout: dict) -> None:
    run = make_run(**BATCHES, **layout)
    code, messages, err = finish(launch(run))
    assert code == 0, err
    assert messages[-1]["kind"] == "done"
    agree(run, alone)
