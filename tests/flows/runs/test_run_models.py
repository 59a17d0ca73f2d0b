"""`bessemer runs list` distinguishes architectures and sizes, of runs that trained and of those that will."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.commands import common as commands
from model.checkpoint.weights import save_model
from model.checksummed_json import write_sealed
from model.config.network import BERTConfig, GPTConfig
from model.nn.factory import make_network, parameter_count

GPT = GPTConfig(vocab_size=300, context=16, layers=1, heads=2, width=16)
BERT = BERTConfig(vocab_size=300, context=16, layers=1, heads=2, width=16)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs that trained a GPT and a BERT, one that is to train a T5, and one of which no recipe exists."""
    for number, config in enumerate([GPT, BERT]):
        folder = tmp_path / "artifacts" / str(number)
        folder.mkdir(parents=True)
        save_model(folder, config, make_network(config).initialise(1).state_dict(), {})
        record(tmp_path, f"run-{number}", [{"stage": "train", "outcome": "built", "path": str(folder)}])
    record(tmp_path, "run-2", [{"stage": "train", "outcome": "failed"}])
    write_sealed(tmp_path / "runs" / "run-2" / "recipe.json", {"train": {"model": {"architecture": "t5"}}})
    gone = [{"stage": "train", "outcome": "built", "path": str(tmp_path / "gone")}]
    record(tmp_path, "run-3", gone)
    return tmp_path


def record(root: Path, run_id: str, stages: list[dict[str, Any]]) -> None:
    (root / "runs" / run_id).mkdir(parents=True)
    reported = {"run_id": run_id, "recipe_name": "small", "state": "completed", "stages": stages}
    write_sealed(root / "runs" / run_id / "run.json", reported)


def test_ids_of_runs_are_whole_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, run_id = "20261126T082852Z-a24944", "20261126T083250Z-ba994b"
    for name, same in ((earlier, {}), (run_id, {"same_as": earlier})):
        (tmp_path / "runs" / name).mkdir(parents=True)
        stages = [{"stage": "sample", "outcome": "reused"}] * 8
        reported = {"run_id": name, "recipe_name": "quickstart", "state": "completed", "stages": stages, **same}
        write_sealed(tmp_path / "runs" / name / "run.json", reported)
    monkeypatch.setattr(commands, "PIPE_WIDTH", 80)
    lines = CliRunner().invoke(app, ["runs", "list", "--root", str(tmp_path)]).stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("2026")] == [earlier, run_id]
    assert "as 20261126T082852Z" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80


def test_runs_are_listed_with_their_networks(root: Path) -> None:
    found = json.loads(CliRunner().invoke(app, ["runs", "list", "--root", str(root), "--json"]).stdout)
    assert [run["model"] for run in found] == [
        {"architecture": "gpt", "parameters": parameter_count(GPT)},
        {"architecture": "bert", "parameters": parameter_count(BERT)},
        {"architecture": "t5", "parameters": None},
        {"architecture": None, "parameters": None},
    ]
    lines = CliRunner().invoke(app, ["runs", "list", "--root", str(root)]).stdout.splitlines()
    assert lines[0].split() == ["run", "recipe", "model", "state", "stages"]
    assert [line.split()[2] for line in lines[1:]] == ["gpt", "bert", "t5", "-"]
    assert f" {parameter_count(GPT):,} " in lines[1]
