"""What is recorded with a model for training it again."""

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from model.code_digest import code_digest
from model.config.train import TrainerRun
from model.guard.decisions import Decision
from model.train.reproduction import LOCK, REPRODUCTION, installed_packages, write_reproduction


def test_a_trained_model_says_what_made_it(
    tmp_path: Path, make_run: Callable[..., TrainerRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do not tell")
    run = make_run(environment=("MKL_CBWR=AVX2",))
    by_hand = Decision(attempt=1, by="hand", cause="too fast", onset=3, step=3, to_step=2)
    write_reproduction(tmp_path, run, [by_hand])
    reported = json.loads((tmp_path / REPRODUCTION).read_text())
    assert reported["launch"][1:] == ["-m", "model.train", "run.json"]
    assert TrainerRun.model_validate(reported["run"]) == run
    assert reported["interventions"][0]["cause"] == "too fast"
    assert reported["code_digest"] == code_digest()
    assert (reported["environment"]["MKL_CBWR"], reported["environment"]["NCCL_ALGO"]) == ("AVX2", "Ring")
    assert "do not tell" not in (tmp_path / REPRODUCTION).read_text()


def test_the_lock_names_every_package_once_and_can_be_installed_from(
    tmp_path: Path, make_run: Callable[..., TrainerRun]
) -> None:
    run = make_run()
    write_reproduction(tmp_path, run, [])
    lines = (tmp_path / LOCK).read_text().splitlines()
    assert f"torch=={metadata.version('torch')}" in lines
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))


def test_of_two_versions_on_the_path_the_lock_names_the_one_that_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "torch-1.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [line for line in installed_packages() if line.startswith("torch==")] == ["torch==1.2.3"]


def test_what_a_broken_installation_left_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished training must not fail for it."""
    before = installed_packages()
    left = tmp_path / "gone-1.2.3.dist-info"
    left.mkdir()
    (left / "INSTALLER").write_text("pip\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_packages() == before
