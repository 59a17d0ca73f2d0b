"""BERT and T5 in the real trainer: every engine computes the same, and a killed run ends with the same bytes."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from model.checkpoint.weights import load_model
from model.config.network import BERTConfig, GPTConfig, T5Config
from model.config.train import TrainerRun
from model.data.dataset import open_table
from model.data.row_format import RowFormat
from model.distributed.process_group import SINGLE_PROCESS
from model.errors import InputError
from model.nn.factory import activation_range_names
from model.train.loop import Callback, Step
from model.train.trainer import train
from tests.model.forked_trainers import train_in_ranks
from tests.processes import in_a_child

PAD, CLS, SEP, MASK = 3, 4, 5, 6
TEXT_FROM = 20
SENTINELS = tuple(range(7, 20))
SPECIAL = (0, 1, 2, PAD, CLS, SEP, MASK, *SENTINELS)
LENGTH = {"gpt": 17, "bert": 24, "t5": 34}
"""Tokens of a row: 16 and the last target, 24, and what an input of 32 is left from."""
SIZES: dict[str, Any] = {"vocab_size": 48, "layers": 2, "heads": 2, "width": 16}
NETWORKS = {
    "gpt": GPTConfig(context=16, **SIZES),
    "bert": BERTConfig(context=24, norm_position="pre", **SIZES),
    "t5": T5Config(context=32, **SIZES),
}
OBJECTIVES = {"gpt": "causal_lm", "bert": "masked_lm", "t5": "span_corruption"}
EXACT_FILES = ("model.safetensors", "model.json", "steps.arrow", "metrics.arrow")
TEN_STEPS = 8 * 10 + 3
"""Ten batches of eight rows, and one whose rows do not go round."""


def rows_of(architecture: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Twelve rows; those of a BERT are pairs, of which one has no second stretch."""
    tokens = np.random.default_rng(5).integers(TEXT_FROM, 48, size=(12, LENGTH[architecture]))
    tokens[2, 9:] = PAD
    if architecture != "bert":
        return tokens, {}
    second = [10 + row % 4 for row in range(12)]
    tokens[:, 0] = CLS
    for row, start in enumerate(second):
        tokens[row, start - 1] = SEP
    second[2], tokens[2, 8] = LENGTH["bert"], SEP
    follows: list[bool | None] = [row % 2 == 0 for row in range(12)]
    follows[2] = None
    return tokens, {"pairs": (second, follows)}


@pytest.fixture(scope="module")
def run_of(build_run, write_sequences, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrainerRun]:
    """A run of an architecture; keywords are those of `build_run`."""

    def build(architecture: str, **settings: Any) -> TrainerRun:
        home = tmp_path_factory.mktemp(architecture)
        row_format = RowFormat(
            objective=OBJECTIVES[architecture],
            tokenizer_digest="tokenizer",
            vocab_size=48,
            eos=2,
            pad=PAD,
            cls=CLS,
            sep=SEP,
            mask=MASK,
            sentinels=SENTINELS,
            special=SPECIAL,
        )
        tokens, pairs = rows_of(architecture)
        file = write_sequences(home / "rows.arrow", tokens, row_format=row_format, **pairs)
        run = build_run(home, **{"batch_rows": 8, "micro_batch_rows": 2, "positions": TEN_STEPS, **settings})
        return run.model_copy(update={"sequences": (file,), "model": NETWORKS[architecture]})

    return build


def metrics(run: TrainerRun) -> pa.Table:
    with pa.OSFile(str(run.out / "result" / "metrics.arrow"), "rb") as source:
        return pa.ipc.open_file(source).read_all()


def column(table: pa.Table, name: str) -> np.ndarray:
    return np.array(table[name].to_pylist(), dtype=np.float64)


@pytest.fixture(scope="module")
def alone(run_of) -> Callable[[str], TrainerRun]:
    """The finished run of an architecture in this process, by the native engine."""
    finished: dict[str, TrainerRun] = {}

    def trained(architecture: str) -> TrainerRun:
        if architecture not in finished:
            finished[architecture] = run_of(architecture)
            train(finished[architecture])
        return finished[architecture]

    return trained


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_the_result_says_what_was_trained_and_loads(alone, architecture: str) -> None:
    run = alone(architecture)
    description = json.loads((run.out / "result" / "model.json").read_text())
    assert description["architecture"] == description["config"]["architecture"] == architecture
    assert description["activation_ranges"] == activation_range_names(run.model)
    network = load_model(run.out / "result", "tokenizer")
    assert network.config == run.model
    table = metrics(run)
    # [CLS] and two [SEP] of a pair are not counted, nor the padding of row 2: of the BERT's it ends with a [SEP] at 11.
    full, short = {"bert": (24 - 3, 12 - 2), "t5": (34, 9)}[architecture]
    shorts = open_table(run.order).column("row").to_pylist()[:TEN_STEPS].count(2)
    assert 0 < shorts < TEN_STEPS
    assert column(table, "tokens")[-1] == full * (TEN_STEPS - shorts) + short * shorts
    assert column(table, "loss")[-1] < column(table, "loss")[0]


def test_losses_of_hidden_tokens_and_pairs_are_distinguished_and_add_up(alone) -> None:
    table = metrics(alone("bert"))
    masked, pairs = column(table, "masked_loss"), column(table, "next_loss")
    np.testing.assert_allclose(masked + pairs, column(table, "loss"), rtol=1e-12)
    assert masked[0] == pytest.approx(np.log(48), abs=0.3)
    assert pairs[0] == pytest.approx(np.log(2), abs=0.3)
    for name in ("masked_accuracy", "next_accuracy"):
        assert ((column(table, name) >= 0) & (column(table, name) <= 1)).all()
    assert metrics(alone("gpt"))["masked_loss"].null_count == 11


ENGINES = {
    "native": {"ranks": 2},
    **{f"zero-{stage}": {"engine": "deepspeed", "zero_stage": stage, "ranks": 2} for stage in (1, 2, 3)},
}
EVERY_TIME = {("bert", "native"), ("t5", "native"), ("bert", "zero-3"), ("t5", "zero-3")}
ALL_ENGINES = [
    pytest.param(architecture, engine, marks=() if (architecture, engine) in EVERY_TIME else pytest.mark.prove)
    for architecture in NETWORKS
    for engine in ENGINES
]


@pytest.mark.parametrize(("architecture", "engine"), ALL_ENGINES)
def test_every_engine_computes_what_one_process_does(alone, run_of, architecture: str, engine: str) -> None:
    one = alone(architecture)
    shared = run_of(architecture, **ENGINES[engine])
    train_in_ranks(shared)
    expected, found = metrics(one), metrics(shared)
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(column(found, name)[:10], column(expected, name)[:10], rtol=1e-5)
    if architecture == "bert":
        assert found["next_accuracy"].equals(expected["next_accuracy"])


class Killed(Callback):
    """Kills the process after a step, behind which a checkpoint may be under way."""

    def after_step(self, step: Step) -> None:
        if step.number == 8:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.prove), "bfloat16"])
def test_killed_and_started_again_it_ends_with_the_same_bytes(run_of, architecture: str, dtype: str) -> None:
    settings = {"positions": 8 * 12, "checkpoint_steps": 4, "dtype": dtype}
    undisturbed, killed = (run_of(architecture, **settings) for _ in range(2))
    train(undisturbed)
    assert in_a_child(train, killed, SINGLE_PROCESS, None, [Killed()]) == signal.SIGKILL
    assert list((killed.out / "checkpoints").glob("step-*"))
    assert not (killed.out / "result").exists()
    train(killed)
    for name in EXACT_FILES:
        assert (killed.out / "result" / name).read_bytes() == (undisturbed.out / "result" / name).read_bytes(), name


def test_bfloat16_reaches_nearly_the_same_loss(alone, run_of) -> None:
    rounded = run_of("gpt", dtype="bfloat16")
    train(rounded)
    losses, exact = column(metrics(rounded), "loss"), column(metrics(alone("gpt")), "loss")
    assert losses[-1] == pytest.approx(exact[-1], rel=0.02)
    assert (losses != exact).any()


def test_rows_of_another_objective_are_refused_before_the_first_step(run_of) -> None:
    run = run_of("bert").model_copy(update={"model": NETWORKS["t5"]})
    with pytest.raises(InputError, match=r"built for masked_lm, and the network \(t5\) is trained on span_corruption"):
        train(run)
    assert not Path(run.out / "checkpoints").exists()


CHOICES = {
    "muon": {"optimizer": {"kind": "muon"}, "recompute": True},
    "lamb": {"optimizer": {"kind": "lamb"}, "dtype": "bfloat16"},
    "float16": {"dtype": "float16", "micro_batch_rows": "auto", "clip": {"early_norm": 0.1, "early_share": 0.5}},
    "growing": {
        "batch_warmup": {"start_rows": 2, "step_rows": 2, "share": 0.5},
        "optimizer": {"kind": "sgd", "l2": 0.1},
    },
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_what_can_be_chosen_of_training_is_there_for_all_networks(run_of, architecture: str, choice: str) -> None:
    run = run_of(architecture, **{"positions": 48, "schedule": {"peak_lr": 0.003}, **CHOICES[choice]})
    train(run)
    undisturbed = [(run.out / "result" / name).read_bytes() for name in EXACT_FILES]
    losses = column(metrics(run), "loss")
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] + 0.1
    shutil.rmtree(run.out / "result")
    shutil.rmtree(max((run.out / "checkpoints").glob("step-*")))
    train(run)
    assert [(run.out / "result" / name).read_bytes() for name in EXACT_FILES] == undisturbed
