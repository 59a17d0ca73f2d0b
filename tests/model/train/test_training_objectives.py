"""Every objective through the real trainer: a few steps that learn, and a model that says what it is."""

import io
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from model.config.train import TrainConfig, TrainerRun
from model.data.row_format import RowFormat, WordBorders
from model.data.span_lengths import Denoising, raw_length
from model.train.trainer import train

SENTINELS = tuple(range(47, 37, -1))
SIZES = {"vocab_size": 48, "context": 16, "layers": 1, "heads": 2, "width": 16}
FORMAT: dict[str, Any] = {
    "tokenizer_digest": "tokenizer",
    "vocab_size": 48,
    "eos": 1,
    "pad": 0,
    "cls": 2,
    "sep": 3,
    "mask": 4,
    "sentinels": SENTINELS,
    "special": (0, 1, 2, 3, 4, *sorted(SENTINELS)),
}
BORDERS = WordBorders(np.arange(48) % 2 == 1, np.ones(48, dtype=np.bool_)).packed()
T5 = [
    pytest.param({"architecture": "t5"}, {"objective": "span_corruption", "denoising": kind}, id=kind)
    for kind in get_args(Denoising)
]
OTHERS = [
    pytest.param({"attention": "prefix"}, {"objective": "causal_lm"}, id="prefix of a gpt"),
    pytest.param(
        {"architecture": "bert"}, {"objective": "masked_lm", "word_borders": BORDERS}, id="whole words of a bert"
    ),
]


@pytest.fixture
def run_of(tmp_path: Path, write_sequences, write_order):
    """A run of four steps over a text of few tokens, which a network begins to know."""

    def run(model: dict[str, Any], said: dict[str, Any]) -> TrainerRun:
        rows = RowFormat.model_validate(FORMAT | said)
        length = {"causal_lm": 17, "masked_lm": 16}.get(rows.objective) or raw_length(16, kind=rows.denoising)
        tokens = np.random.default_rng(5).integers(5, 8, size=(8, length))
        pairs = None
        if rows.objective == "masked_lm":
            tokens[:, 0], tokens[:, [7, 15]], pairs = 2, 3, ([8] * 8, [True, False] * 4)
        file = write_sequences(tmp_path / "rows.arrow", tokens, row_format=rows, pairs=pairs)
        order = write_order(
            tmp_path / "order.arrow", list(range(8)) * 4, [epoch for epoch in range(4) for _ in "8" * 8]
        )
        train = {"batch_rows": 8, "micro_batch_rows": 4, "threads": 1, "checkpoint_steps": 2}
        return TrainerRun.model_validate(
            {
                "sequences": (file,),
                "order": order,
                "out": tmp_path / "out",
                "pad": 0,
                "eos": 1,
                "tokenizer_digest": "tokenizer",
                "model": SIZES | model,
                "train": TrainConfig.model_validate(train | {"schedule": {"peak_lr": 0.02, "warmup_share": 0.0}}),
            }
        )

    return run


@pytest.mark.parametrize(("model", "said"), T5 + OTHERS)
def test_every_objective_is_trained_by_the_real_trainer(run_of, model: dict, said: dict) -> None:
    run = run_of(model, said)
    reported = io.StringIO()
    train(run, messages=reported)
    lines = reported.getvalue().splitlines()
    losses = [message["loss"] for message in map(json.loads, lines) if message.get("kind") == "step"]
    assert len(losses) >= 2
    assert losses[-1] < losses[0] - 0.2
    assert json.loads((run.out / "result" / "model.json").read_text())["config"] == run.model.model_dump(mode="json")


def test_rows_of_another_denoising_are_of_another_length(run_of, launch) -> None:
    made = run_of({"architecture": "t5"}, {"objective": "span_corruption", "denoising": "iid_drop"})
    other = run_of({"architecture": "t5"}, {"objective": "span_corruption", "denoising": "mass_style"})
    assert raw_length(16, kind="iid_drop") == 18
    assert raw_length(16, kind="mass_style") == 15
    trainer = launch(made.model_copy(update={"model": other.model.model_copy(update={"context": 18})}))
    _, words = trainer.communicate(timeout=120)
    assert trainer.returncode == 3
    assert "InputError" in words
    assert "needs 17" in words
