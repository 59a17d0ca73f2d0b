"""Optimizers, penalties, limits and schedules in the real trainer: their records, and resuming."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.errors import Numerics
from model.train.trainer import train
from tests.model.forked_trainers import train_in_ranks

EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")
CURRICULA = {
    "batch_warmup": {"start_rows": 2, "step_rows": 2, "share": 0.5},
    "length_warmup": {"start_length": 4, "share": 0.6},
    "clip": {"max_norm": 5.0, "early_norm": 0.3, "early_share": 0.3},
}
CHOICES = {
    "lamb": {"optimizer": {"kind": "lamb"}},
    "sgd": {"optimizer": {"kind": "sgd", "l1": 1e-4, "l2": 1e-3}},
    "muon": {"optimizer": {"kind": "muon"}},
    "curricula": CURRICULA,
    "float16": {"dtype": "float16", "loss_scale": {"start": 2.0**23, "growth_steps": 3}},
    "recomputed": {"recompute": True, "dtype": "bfloat16"},
}


def columns(run: TrainerRun, table: str) -> dict[str, list]:
    with pa.OSFile(str(run.out / "result" / f"{table}.arrow"), "rb") as source:
        return pa.ipc.open_file(source).read_all().to_pydict()


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def go_back_to(run: TrainerRun, step: int) -> None:
    """As if the trainer had been killed some steps after this checkpoint."""
    shutil.rmtree(run.out / "result")
    for checkpoint in (run.out / "checkpoints").glob("step-*"):
        if checkpoint.name > f"step-{step:09d}":
            shutil.rmtree(checkpoint)


def finished(trainer: subprocess.Popen[str]) -> None:
    _, err = trainer.communicate(timeout=400)
    assert trainer.returncode == 0, err


@pytest.mark.parametrize("choice", CHOICES)
def test_going_on_from_a_checkpoint_changes_no_bit(make_run, choice: str) -> None:
    run = make_run(batch_rows=4, micro_batch_rows=2, positions=32, keep_checkpoints=9, **CHOICES[choice])
    train(run)
    undisturbed = result(run)
    go_back_to(run, 6)
    train(run)
    assert result(run) == undisturbed
    assert [kind for kind in columns(run, "events")["kind"] if kind != "overflow"] == ["start", "resume"]


def test_a_mixture_of_experts_goes_on_to_the_same_bits(make_run) -> None:
    run: TrainerRun = make_run(batch_rows=4, positions=32, keep_checkpoints=9, recompute=True, dtype="bfloat16")
    sizes = {name: getattr(run.model, name) for name in ("vocab_size", "context", "layers", "heads", "width")}
    run = run.model_copy(update={"model": GPTConfig(**sizes, experts=4, balance=0.1)})
    train(run)
    undisturbed = result(run)
    go_back_to(run, 6)
    train(run)
    assert result(run) == undisturbed
    losses = columns(run, "metrics")["loss"]
    assert losses[-1] < losses[0]


def test_what_each_step_read_and_its_limit_are_written_down(make_run) -> None:
    run = make_run(batch_rows=4, positions=24, **CURRICULA)
    train(run)
    steps, metrics = columns(run, "steps"), columns(run, "metrics")
    # Twelve rows in one stride of two to the whole: two rows a step while the ramp lasts, then four.
    assert steps["pos_start"] == [0, 2, 4, 6, 8, 10, 12, 16, 20]
    assert steps["pos_end"] == [*steps["pos_start"][1:], 24]
    # Sixteen tokens: on a line from 4 at row 0 to 16 at row 14.4, halves are reached at row 4.8.
    assert steps["row_pieces"] == [4, 4, 4, 2, 2, 2, 2, 1, 1]
    # Row 2 comes at positions 6 and 16, and twelve of its sixteen predictions would be of padding.
    assert metrics["tokens"] == [16 * end - 12 * ((end > 6) + (end > 16)) for end in steps["pos_end"]]
    # The third part of the run ends at row 7.2.
    assert metrics["max_norm"] == [0.3, 0.3, 0.3, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]


def test_a_limit_that_no_gradient_reaches_changes_no_bit_and_a_lower_one_does(make_run) -> None:
    weights = {}
    for name, clip in {"never": 1e9, "nor": 1e8, "always": 1e-3}.items():
        run = make_run(name, positions=8, clip={"max_norm": clip}, optimizer={"kind": "sgd"})
        train(run)
        weights[name] = result(run)["model.safetensors"]
    assert weights["never"] == weights["nor"] != weights["always"]


def test_penalties_shrink_matrices_and_stay_out_of_the_loss_that_is_reported(make_run) -> None:
    def trained(name: str, **penalties: float) -> tuple[float, float, float]:
        run = make_run(name, positions=40, optimizer={"weight_decay": 0.0, **penalties})
        train(run)
        weights = load_file(run.out / "result" / "model.safetensors")
        reported = columns(run, "metrics")
        matrices = [v for name, v in weights.items() if v.ndim == 2 and name.startswith("blocks")]
        return sum(float(np.square(m).sum()) for m in matrices), reported["loss"][0], reported["grad_norm"][0]

    plain, l1, l2 = trained("plain"), trained("l1", l1=0.1), trained("l2", l2=1.0)
    assert l1[0] < plain[0] > l2[0]
    assert l1[1] == plain[1] == l2[1]
    assert l1[2] > plain[2] < l2[2]


@pytest.mark.parametrize(
    ("stage", "choice"),
    [
        pytest.param(1, CHOICES["sgd"] | CURRICULA, id="zero-1"),
        pytest.param(2, CHOICES["sgd"] | CURRICULA, id="zero-2", marks=pytest.mark.prove),
        pytest.param(3, {"optimizer": {"kind": "sgd"}} | CURRICULA, id="zero-3", marks=pytest.mark.prove),
    ],
)
def test_two_ranks_of_zero_compute_what_one_process_does(make_run, stage: int, choice: dict) -> None:
    settings = {"batch_rows": 4, "micro_batch_rows": 2, "positions": 4 * 12 + 2, **choice}
    alone, run = (
        make_run("alone", **settings),
        make_run("zero", engine="deepspeed", zero_stage=stage, ranks=2, **settings),
    )
    train(alone)
    train_in_ranks(run)
    ours, reference = columns(run, "metrics"), columns(alone, "metrics")
    assert columns(run, "steps") == columns(alone, "steps")
    np.testing.assert_allclose(ours["loss"], reference["loss"], rtol=1e-5)
    np.testing.assert_allclose(ours["grad_norm"], reference["grad_norm"], rtol=1e-5)
    weights, expected = (load_file(Path(folder.out) / "result" / "model.safetensors") for folder in (run, alone))
    for name in weights:
        np.testing.assert_allclose(weights[name], expected[name], atol=2e-6, err_msg=name)


@pytest.mark.prove
def test_sgd_under_zero_goes_on_bit_by_bit(make_run, launch: Callable[..., subprocess.Popen[str]]) -> None:
    run = make_run(
        engine="deepspeed", zero_stage=2, ranks=2, batch_rows=4, positions=40, keep_checkpoints=9, **CHOICES["sgd"]
    )
    finished(launch(run))
    undisturbed = result(run)
    go_back_to(run, 6)
    finished(launch(run))
    assert result(run) == undisturbed


def test_overflows_of_float16_are_skipped_reported_and_not_taken_for_the_end(make_run) -> None:
    run = make_run(positions=40, dtype="float16", loss_scale={"start": 2.0**30, "growth_steps": 5})
    train(run)
    steps, metrics, events = columns(run, "steps"), columns(run, "metrics"), columns(run, "events")
    overflows = [step for step, kind in zip(events["step"], events["kind"], strict=True) if kind == "overflow"]
    # More in a row than the non-finite steps that end a run.
    assert overflows[:5] == [0, 1, 2, 3, 4]
    assert [step for step, applied in zip(steps["step"], steps["applied"], strict=True) if not applied] == overflows
    scale = 2.0**30
    clean = 0
    for step in steps["step"]:
        assert metrics["scale"][step] == scale
        clean = 0 if step in overflows else clean + 1
        scale = scale / 2 if step in overflows else scale * 2 if clean == 5 else scale
        clean %= 5
    alone = make_run("alone", positions=40)
    train(alone)
    assert metrics["loss"][0] == pytest.approx(columns(alone, "metrics")["loss"][0], rel=1e-3)


def test_at_the_floor_an_overflow_is_a_non_finite_step(make_run) -> None:
    run = make_run(positions=40, dtype="float16", loss_scale={"start": 2.0**30, "floor": 2.0**29})
    with pytest.raises(Numerics, match="3 steps in a row, the last at step 3"):
        train(run)


@pytest.mark.parametrize(
    "stage", [1, pytest.param(2, marks=pytest.mark.prove), pytest.param(3, marks=pytest.mark.prove)]
)
def test_zero_scales_the_loss_of_float16_as_the_native_engine_does(make_run, stage: int) -> None:
    settings = {"positions": 40, "batch_rows": 4, "dtype": "float16", "loss_scale": {"start": 2.0**24}}
    alone, run = make_run("alone", **settings), make_run("zero", engine="deepspeed", zero_stage=stage, **settings)
    train(alone)
    train_in_ranks(run)
    assert columns(run, "steps")["applied"] == columns(alone, "steps")["applied"]
    ours, reference = columns(run, "metrics"), columns(alone, "metrics")
    assert ours["scale"] == reference["scale"]
    np.testing.assert_allclose(ours["loss"], reference["loss"], rtol=1e-4)
    applied = columns(run, "steps")["applied"]
    assert 1 < applied.count(True) < len(applied)
    norms = np.array([ours["grad_norm"], reference["grad_norm"]])[:, applied]
    np.testing.assert_allclose(*norms, rtol=1e-3)


@pytest.mark.parametrize(
    "layout", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}, {}], ids=["tensor", "pipeline", "data"]
)
@pytest.mark.prove
def test_recomputed_blocks_change_no_bit_over_several_ranks(
    make_run, launch: Callable[..., subprocess.Popen[str]], layout: dict
) -> None:
    settings = {"positions": 40, "batch_rows": 4, "ranks": 2, **layout}
    kept, again = make_run("kept", **settings), make_run("again", recompute=True, **settings)
    for run in (kept, again):
        finished(launch(run))
    assert result(again)["model.safetensors"] == result(kept)["model.safetensors"]


@pytest.mark.parametrize(
    "layout",
    [
        {"ranks": 2, "tensor_parallel": 2},
        pytest.param({"ranks": 4, "tensor_parallel": 2, "pipeline_parallel": 2}, marks=pytest.mark.prove),
        pytest.param({"ranks": 4, "pipeline_parallel": 2, "recompute": True}, marks=pytest.mark.prove),
        pytest.param({"ranks": 4, "engine": "fsdp", "tensor_parallel": 2}, marks=pytest.mark.prove),
    ],
)
def test_dropout_is_the_same_in_every_layout_and_goes_on_to_the_same_bits(make_run, layout: dict) -> None:
    def trained(name: str, **settings: object) -> TrainerRun:
        run = make_run(name, batch_rows=4, micro_batch_rows=2, positions=32, keep_checkpoints=9, **settings)
        run = run.model_copy(update={"model": run.model.model_copy(update={"dropout": 0.3})})
        train_in_ranks(run)
        return run

    run, alone = trained("ranks", **layout), trained("alone", engine="fsdp")
    ours, reference = columns(run, "metrics"), columns(alone, "metrics")
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(ours[name], reference[name], rtol=1e-4)
    undisturbed = result(run)
    go_back_to(run, 6)
    train_in_ranks(run)
    assert result(run) == undisturbed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "deepspeed", "zero_stage": 3}, "zero_stage = 1 or 2"),
    ],
)
def test_blocks_that_are_not_whole_are_not_compiled(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate({"compile": True, **settings})


@pytest.mark.prove
@pytest.mark.parametrize(
    "settings", [{}, {"engine": "deepspeed", "zero_stage": 2, "ranks": 2}], ids=["native", "zero-2"]
)
def test_a_compiled_run_computes_the_same_and_ends_with_the_same_bytes_when_it_goes_on(
    make_run, launch: Callable[..., subprocess.Popen[str]], settings: dict
) -> None:
    settings = {"batch_rows": 4, "positions": 40, "keep_checkpoints": 9, **settings}
    eager, compiled = make_run("eager", **settings), make_run("compiled", compile=True, **settings)
    for run in (eager, compiled):
        finished(launch(run))
    losses = [columns(run, "metrics")["loss"] for run in (compiled, eager)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    undisturbed = result(compiled)
    go_back_to(compiled, 6)
    finished(launch(compiled))
    assert result(compiled) == undisturbed
