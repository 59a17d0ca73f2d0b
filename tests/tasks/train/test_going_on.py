"""What another machine gets of an unfinished training: all that decides its bits, and nothing half-written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tasks.train.run
from model.checkpoint.run_folder import MICRO_BATCH, REPLAY
from model.launch.failures import RESTARTS_FILE
from tasks.artifacts.artifact import Artifact
from tasks.train.run import TRAINED_ANEW, kept_files, offer_checkpoints


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_complete_checkpoints_come_before_what_was_decided_and_after_the_end_of_a_replay(tmp_path: Path) -> None:
    out = tmp_path / "train"
    write(out, "checkpoints/step-000000020/weights", "checkpoints/step-000000020/COMPLETE")
    write(out, "checkpoints/step-000000010/weights", "checkpoints/step-000000010/COMPLETE")
    write(out, "checkpoints/step-000000030/weights", "checkpoints/tmp-000000040/COMPLETE")
    write(out, "attempts/0001/decision.json", "attempts/tmp-0002/decision.json")
    write(out, "heartbeat", "run.json", "result/model.json", RESTARTS_FILE, MICRO_BATCH, TRAINED_ANEW)
    groups = [[path.relative_to(out).as_posix() for path in group] for group in kept_files(tmp_path)]
    assert groups == [
        ["trained_anew"],
        ["checkpoints/step-000000010/COMPLETE", "checkpoints/step-000000010/weights"],
        ["checkpoints/step-000000020/COMPLETE", "checkpoints/step-000000020/weights"],
        ["attempts/0001/decision.json"],
        ["micro_batch.json"],
        ["restarts.jsonl"],
    ]


def test_before_training_there_is_nothing(tmp_path: Path) -> None:
    assert list(kept_files(tmp_path)) == []


def test_a_checkpoint_whose_copy_was_broken_off_is_offered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are made where links are not possible."""
    write(tmp_path / "train" / "one", "step-000000010.COMPLETE", "step-000000010.weights")
    records = [SimpleNamespace(name=name) for name in ("step-000000010.COMPLETE", "step-000000010.weights")]
    parent = {"sequences": {"stage": "chunk", "identity": "two"}}
    path = tmp_path / "train" / "one"
    trained: Any = SimpleNamespace(path=path, manifest={"parents": parent}, records=records, file=path.joinpath)
    sequences = SimpleNamespace(files=lambda name: [tmp_path / name], rows=lambda name: 0)
    monkeypatch.setattr(Artifact, "open", lambda path: sequences)
    copied = tasks.train.run.link_or_copy

    def break_off(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks.train.run, "link_or_copy", break_off)
    with pytest.raises(KeyboardInterrupt):
        offer_checkpoints(trained, tmp_path)
    monkeypatch.setattr(tasks.train.run, "link_or_copy", copied)
    offer_checkpoints(trained, tmp_path)
    found = {file.name: file.read_text() for file in (tmp_path / REPLAY / "step-000000010").iterdir()}
    assert found == {"COMPLETE": "step-000000010.COMPLETE", "weights": "step-000000010.weights"}
    offer_checkpoints(trained, tmp_path)
