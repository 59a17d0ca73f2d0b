"""Several processes train one model: the numbers of one process, and the same bytes after kills and stops."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from model.config.options import ScheduleConfig
from model.config.train import TrainConfig, TrainerRun
from model.errors import InputError
from model.files import user_cache
from model.train.template import FORKS
from model.train.trainer import train
from tests.model.distributed.one_skipped_step import meet_faults
from tests.model.forked_ranks import run_ranks
from tests.model.forked_trainers import import_engine, pause_at_each_step
from tests.model.rank_processes import is_alive, rank_processes
from tests.processes import wait_until

PROJECT = Path(__file__).resolve().parents[3]
NATIVE = {"ranks": 2}
TENSOR = {"ranks": 2, "tensor_parallel": 2}
FEWER = {"restarts": {"fewer_ranks": True}}
PIPELINE = {"ranks": 2, "pipeline_parallel": 2}
FSDP = {"engine": "fsdp", "ranks": 2}
ZERO = {stage: {"engine": "deepspeed", "zero_stage": stage, "ranks": 2} for stage in (1, 2, 3)}
BATCHES = {"batch_rows": 8, "micro_batch_rows": 2, "positions": 8 * 10 + 3, "checkpoint_steps": 3}
"""Ten steps of two micro-batches a rank, and one whose rows do not go round."""
STEPS = 20 if FORKS else 100
"""Enough to be killed in the middle: forks can pause at each."""
LONG = {"batch_rows": 4, "positions": 4 * STEPS, "checkpoint_steps": 4}
EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")


def finish(trainer: subprocess.Popen[str]) -> tuple[int, list[dict], str]:
    out, err = trainer.communicate(timeout=120)
    return trainer.returncode, [json.loads(line) for line in out.splitlines()], err


def metrics(run: TrainerRun) -> dict[str, np.ndarray]:
    with pa.OSFile(str(run.out / "result" / "metrics.arrow"), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    names = ("loss", "grad_norm", "activation_lows", "activation_highs", "lr")
    return {name: np.array(table[name].to_pylist()) for name in names}


def result(run: TrainerRun) -> dict[str, bytes]:
    return {name: (run.out / "result" / name).read_bytes() for name in EXACT_FILES}


def checkpoints(run: TrainerRun) -> list[str]:
    return sorted(path.name for path in (run.out / "checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, build_run) -> TrainerRun:
    run = build_run(tmp_path_factory.mktemp("alone"), **BATCHES)
    train(run)
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, build_run, launch) -> Callable[[dict], TrainerRun]:
    """The finished run of ranks with these settings; of each there is one."""
    found: dict[str, TrainerRun] = {}

    def of(settings: dict) -> TrainerRun:
        if str(settings) not in found:
            run = build_run(tmp_path_factory.mktemp("undisturbed"), **BATCHES | settings)
            code, messages, err = finish(launch(run))
            assert code == 0, err
            assert messages[-1]["kind"] == "done"
            found[str(settings)] = run
        return found[str(settings)]

    return of


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NATIVE, id="native"),
        pytest.param(FSDP, id="fsdp"),
        pytest.param(ZERO[1], id="zero-1", marks=pytest.mark.prove),
        pytest.param(ZERO[2], id="zero-2", marks=pytest.mark.prove),
        pytest.param(ZERO[3], id="zero-3"),
    ],
)
def test_two_ranks_compute_what_one_does(alone: TrainerRun, undisturbed, settings: dict) -> None:
    run = undisturbed(settings)
    ours, reference = metrics(run), metrics(alone)
    assert len(ours["loss"]) == 11
    assert (ours["lr"] == reference["lr"]).all()
    np.testing.assert_allclose(ours["loss"], reference["loss"], rtol=1e-5)
    np.testing.assert_allclose(ours["grad_norm"], reference["grad_norm"], rtol=1e-5)
    for name in ("activation_lows", "activation_highs"):
        np.testing.assert_allclose(ours[name], reference[name], rtol=1e-5)
    weights, expected = (load_file(folder.out / "result" / "model.safetensors") for folder in (run, alone))
    assert set(weights) == set(expected)
    for name in weights:
        # Adam divides by roots of squares that may be tiny, which magnifies the last bits of a gradient.
        np.testing.assert_allclose(weights[name], expected[name], atol=2e-4, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NATIVE, id="native"),
        pytest.param(FSDP, id="fsdp", marks=pytest.mark.prove),
        pytest.param(ZERO[3], id="zero-3", marks=pytest.mark.prove),
    ],
)
def test_two_ranks_attend_within_documents_as_one_does(make_run, launch, settings: dict) -> None:
    def within(name: str, **settings: object) -> TrainerRun:
        run = make_run(name, batch_rows=4, positions=40, **settings)
        return run.model_copy(
            update={"eos": 5, "model": run.model.model_copy(update={"attend_within_documents": True})}
        )

    alone, run, across = within("alone"), within("ranks", **settings), make_run("across", batch_rows=4, positions=40)
    train(alone)
    train(across)
    code, _, err = finish(launch(run))
    assert code == 0, err
    np.testing.assert_allclose(metrics(run)["loss"], metrics(alone)["loss"], rtol=1e-5)
    assert not np.allclose(metrics(across)["loss"][-1], metrics(alone)["loss"][-1], rtol=1e-4)


CHOICES = [
    {"positions": "learned", "activation": "swiglu", "norm": "rmsnorm", "tied_head": False, "z_loss": 0.01},
    {"positions": "relative", "norm_position": "post", "qk_norm": "head", "biases": False},
]
"""Two networks that have between them a matrix of every kind."""


@pytest.mark.parametrize("choices", CHOICES, ids=["learned", "relative"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NATIVE, id="native"),
        pytest.param(FSDP, id="fsdp", marks=pytest.mark.prove),
        pytest.param(ZERO[3], id="zero-3", marks=pytest.mark.prove),
    ],
)
def test_two_ranks_train_other_networks_as_one_does(make_run, launch, settings: dict, choices: dict) -> None:
    def chosen(name: str, **settings: object) -> TrainerRun:
        run = make_run(name, batch_rows=4, positions=40, **settings)
        return run.model_copy(update={"model": run.model.model_copy(update=choices)})

    alone, run = chosen("alone"), chosen("ranks", **settings)
    train(alone)
    code, _, err = finish(launch(run))
    assert code == 0, err
    ours, reference = metrics(run), metrics(alone)
    np.testing.assert_allclose(ours["loss"], reference["loss"], rtol=1e-5)
    np.testing.assert_allclose(ours["grad_norm"], reference["grad_norm"], rtol=1e-4)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks in /proc")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NATIVE, id="native"),
        pytest.param(TENSOR, id="tensor", marks=pytest.mark.prove),
        pytest.param(PIPELINE, id="pipeline"),
        pytest.param(TENSOR | PIPELINE | {"ranks": 4}, id="both", marks=pytest.mark.prove),
        pytest.param(FSDP, id="fsdp"),
        # With three ranks the order of summation is no longer the only one possible.
        pytest.param({"ranks": 3, "batch_rows": 6}, id="native-3", marks=pytest.mark.prove),
        pytest.param(ZERO[1], id="zero-1", marks=pytest.mark.prove),
        pytest.param(ZERO[2], id="zero-2", marks=pytest.mark.prove),
        pytest.param(ZERO[3], id="zero-3", marks=pytest.mark.prove),
    ],
)
def test_killed_and_stopped_they_end_with_the_bytes_of_an_undisturbed_run(
    make_run, launch, undisturbed, settings: dict
) -> None:
    run = make_run(**BATCHES | settings)

    trainer = launch(run, before=pause_at_each_step)
    wait_until(lambda: len(checkpoints(run)) > 0)
    ranks = [process.pid for process in rank_processes(trainer.pid)]
    os.kill(ranks[-1], signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, ranks)), seconds=10)
    restart = next(line for line in trainer.stdout if "restart" in line)
    assert f"rank {len(ranks) - 1} of {len(ranks)} was killed by SIGKILL" in json.loads(restart)["words"]
    started = json.loads(next(line for line in trainer.stdout if "start" in line))
    assert started["kind"] == "start"
    assert started["step"] % BATCHES["checkpoint_steps"] == 0 < started["step"]
    trainer.terminate()
    code, messages, err = finish(trainer)
    assert code == 75, err
    assert "\nInfra: asked to stop" in err
    assert not list(run.out.glob("ranks-*"))
    stopped_at = messages[-1]["step"]
    assert checkpoints(run)[-1] == f"step-{stopped_at:09d}"

    code, messages, err = finish(launch(run))
    assert code == 0, err
    assert messages[0]["step"] == stopped_at
    assert result(run) == result(undisturbed(settings))


def test_a_checkpoint_of_other_ranks_or_another_engine_is_refused(make_run) -> None:
    run = make_run(positions=6)
    train(run)
    (run.out / "result" / "model.json").unlink()
    for settings, words in (
        ({"ranks": 2}, "its `ranks` is 1, but this run asks for 2"),
        (TENSOR, r"its `engine` is native, but this run asks for parts \(fsdp, tensor_parallel or"),
        (ZERO[2], "its `engine` is native, but this run asks for deepspeed, ZeRO stage 2"),
    ):
        with pytest.raises(InputError, match=words):
            train(run.model_copy(update={"train": run.train.model_copy(update=settings)}))


def stopped(make_run, launch, name: str, **settings: object) -> TrainerRun:
    """A run that was asked to stop after its first checkpoint."""
    run = make_run(name, **LONG | settings)
    trainer = launch(run, before=pause_at_each_step)
    wait_until(lambda: len(checkpoints(run)) > 0)
    trainer.terminate()
    code, _, err = finish(trainer)
    assert code == 75, err
    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TENSOR, PIPELINE),
        pytest.param(FSDP, FSDP | TENSOR | {"ranks": 4}, id="fsdp-to-fsdp-tensor", marks=pytest.mark.prove),
        pytest.param(TENSOR | PIPELINE | {"ranks": 4}, FSDP, id="both-to-fsdp", marks=pytest.mark.prove),
    ],
)
def test_a_checkpoint_of_one_layout_resumes_in_another(make_run, launch, before: dict, after: dict) -> None:
    undisturbed = make_run("undisturbed", **LONG | {"micro_batch_rows": 1})
    train(undisturbed)
    run = stopped(make_run, launch, "stopped", **before)
    undivided = {"engine": "native", "tensor_parallel": 1, "pipeline_parallel": 1}
    changed = TrainConfig.model_validate({**run.train.model_dump(), **undivided, **after})
    code, messages, err = finish(launch(run.model_copy(update={"train": changed})))
    assert code == 0, err
    assert next(message for message in messages if message["kind"] == "start")["step"] > 0
    (change,) = [message for message in messages if message.get("event") == "layout_changed"]
    assert change["before"] != change["now"]
    ours, reference = metrics(run), metrics(undisturbed)
    assert len(ours["loss"]) == STEPS
    np.testing.assert_allclose(ours["loss"], reference["loss"], rtol=1e-4)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks in /proc")
def test_ranks_do_not_outlive_a_killed_supervisor(make_run, launch) -> None:
    run = make_run(**LONG | NATIVE)
    trainer = launch(run, before=pause_at_each_step)
    wait_until((run.out / "heartbeat").exists)
    ranks = [process.pid for process in rank_processes(trainer.pid)]
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: not any(map(is_alive, ranks)), seconds=10)


def test_an_error_of_all_ranks_is_reported_once_with_its_own_exit_code(make_run, launch) -> None:
    run = make_run(**LONG | NATIVE)
    shorter = run.model_copy(update={"model": run.model.model_copy(update={"context": 8})})
    code, messages, err = finish(launch(shorter))
    assert (code, messages) == (3, [])
    assert err.count("InputError: sequences have rows of 17 tokens") == 1


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NATIVE, id="native", marks=pytest.mark.prove),
        pytest.param(TENSOR, id="tensor", marks=pytest.mark.prove),
        pytest.param(PIPELINE, id="pipeline"),
        pytest.param(FSDP, id="fsdp"),
        pytest.param(ZERO[1], id="zero-1", marks=pytest.mark.prove),
        pytest.param(ZERO[2], id="zero-2"),
        pytest.param(ZERO[3], id="zero-3", marks=pytest.mark.prove),
    ],
)
@pytest.mark.parametrize("case", ["nan", pytest.param("infinite", marks=pytest.mark.prove)])
def test_what_one_rank_computes_wrongly_is_applied_on_none(make_run, tmp_path: Path, settings: dict, case: str) -> None:
    run = make_run(batch_rows=4, micro_batch_rows=1, **settings)
    import_engine(run.train)
    run_ranks(2, functools.partial(meet_faults, run, tmp_path, case))
    lines = [(tmp_path / f"rank-{rank}.json").read_text() for rank in range(2)]
    for facts in map(json.loads, lines):
        assert facts["applied"] == ([True, False, True] if case == "nan" else [False])
        assert facts["loss"] == ("nan" if case == "nan" else "inf")
        assert facts["kept"]


@pytest.mark.prove
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_three_skipped_steps_in_a_row_end_it_as_the_native_engine_does(make_run, launch, stage: int) -> None:
    schedule = ScheduleConfig(peak_lr=1e30, end_lr=1e30, warmup_share=0)

    def skipped(name: str, **settings: Any) -> list[int]:
        code, messages, err = finish(launch(make_run(name, **LONG | settings, schedule=schedule)))
        assert code == 76, err
        assert err.startswith("Numerics: ") or "\nNumerics: " in err
        return [message["step"] for message in messages if message.get("event") == "skipped_step"]

    steps = skipped("zero", **ZERO[stage])
    # Three in a row, and three more after the rollback that they lead to.
    assert steps == skipped("native", **NATIVE)
    assert [step - steps[0] for step in steps[:3]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zero_stage": 0}, "stage 0 partitions nothing"),
        ({"ranks": 3}, "ranks 3 does not divide batch_rows 16. Set batch_rows = 18"),
        (
            {"ranks": 2, "batch_rows": 12, "micro_batch_rows": 4},
            "the 6 rows that each of 2 ranks .* Set micro_batch_rows = 2",
        ),
        ({"engine": "megatron"}, "'native', 'fsdp' or 'deepspeed'"),
        (TENSOR | FEWER, "all 2 ranks are one .* or set ranks = 4 or more"),
        (
            TENSOR | FEWER | {"ranks": 6, "hosts": {"count": 2, "address": "10.0.0.1:29400"}},
            "each of 2 hosts has 3 ranks, .* set ranks = 8",
        ),
    ],
)
def test_impossible_numbers_of_ranks_are_refused_with_a_message(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate(settings)


def test_a_share_smaller_than_the_micro_batch_passes_at_once() -> None:
    assert TrainConfig(ranks=4).batch_rows == TrainConfig(ranks=4).micro_batch_rows == 16


TRAINS = """
import pathlib, sys
from model.config.train import read_run
from model.errors import Paused
from model.train.trainer import train
for file in sys.argv[1:]:
    try:
        train(read_run(pathlib.Path(file)))
    except Paused as pause:
        print("paused after", pause.step)
sys.exit("deepspeed" in sys.modules)
"""


def test_the_native_engine_goes_on_with_two_threads_and_does_not_load_deepspeed(make_run, tmp_path: Path) -> None:
    """In a process of its own, which has loaded nothing else and has no forks to come."""
    whole, paused = (make_run(name, positions=8, threads=2) for name in ("whole", "paused"))
    half = paused.model_copy(update={"train": paused.train.model_copy(update={"pause_share": 0.5})})
    files = [tmp_path / f"{name}.json" for name in ("whole", "half", "rest")]
    for file, run in zip(files, (whole, half, paused), strict=True):
        file.write_text(run.model_dump_json())
    words = [sys.executable, "-c", TRAINS, *map(str, files)]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "paused after 2\n"), done.stderr
    assert result(paused) == result(whole)


WITHOUT_COMPILER = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._dynamo":
            raise ImportError("the compiler is imported")

sys.meta_path.insert(0, Refused())
"""


def test_zero_3_starts_within_a_minute_without_a_compiler(make_run, tmp_path: Path) -> None:
    """DeepSpeed would compile its exchange and its optimizer on first use: minutes, and nothing without a compiler.
    PyTorch's own, which it would import only to keep out of it, is not imported: here that fails."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_COMPILER)
    run = make_run(**ZERO[3], positions=4)
    file = tmp_path / "run.json"
    file.write_text(run.model_dump_json())
    fresh = {"PATH": "/nowhere", "HOME": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    fresh["PYTHONPATH"] = str(tmp_path)
    # Which instructions PyTorch chooses here is known; another process would ask it.
    fresh["XDG_CACHE_HOME"] = str(user_cache().parent)
    done = subprocess.run(
        [sys.executable, "-m", "model.train", str(file)],
        cwd=PROJECT,
        env=fresh,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "extensions").exists()
