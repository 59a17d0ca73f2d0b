"""What another machine gets of an unfinished training: all that decides its bits, and nothing half-written."""

from pathlib import Path

from model.checkpoint.run_folder import MICRO_BATCH
from model.launch.failures import RESTARTS_FILE
from tasks.train.run import TRAINED_ANEW, kept_files


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
