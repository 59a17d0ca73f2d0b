"""Another machine finds the training that it is to take its share of."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.models.training_control import wait_for_multi_host_training
from model.checkpoint.complete_marker import complete
from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.errors import InputError


@pytest.fixture
def begun(tmp_path: Path) -> Callable[..., Path]:
    """A training that was begun under the root, one second later than the one before."""
    moments = iter(range(10))

    def begin(name: str, **train: object) -> Path:
        out = tmp_path / "work" / name / "scratch" / "train"
        out.mkdir(parents=True)
        run = TrainerRun(
            sequences=(),
            order=Path("order"),
            out=out,
            pad=0,
            tokenizer_digest="none",
            model=GPTConfig(),
            train=TrainConfig.model_validate(train),
        )
        file = out / "run.json"
        file.write_text(run.model_dump_json())
        moment = time.time() + next(moments)
        os.utime(file, (moment, moment))
        return file

    return begin


TWO = {"ranks": 2, "hosts": {"count": 2, "address": "10.0.0.1:29400"}}


def test_the_latest_of_several_hosts_is_joined(tmp_path: Path, begun: Callable[..., Path]) -> None:
    begun("a.1", **TWO)
    latest = begun("b.1", **TWO)
    begun("c.1")
    found, run = wait_for_multi_host_training(tmp_path, 0)
    assert found == latest
    assert run.train.hosts.address == "10.0.0.1:29400"


def test_what_came_to_its_end_is_not_joined(tmp_path: Path, begun: Callable[..., Path]) -> None:
    file = begun("a.1", **TWO)
    (file.parent / "result").mkdir()
    (file.parent / "result" / "model.json").write_text("{}")
    complete(file.parent / "result")
    with pytest.raises(InputError, match="no training is for several hosts under"):
        wait_for_multi_host_training(tmp_path, 0)


def test_where_none_is_the_command_says_what_to_do(tmp_path: Path) -> None:
    reported = CliRunner().invoke(app, ["training", "join", "--root", str(tmp_path), "--wait", "0"])
    assert reported.exit_code == 3
    assert "no training is running under" in reported.stderr
    assert "train.hosts.address" in reported.stderr
