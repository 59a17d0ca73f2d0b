"""The same bytes for any number of workers, again when forced, and a wave that stops where bytes stay the same."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.stages import STAGES

pytestmark = pytest.mark.joints

WORKERS = ("sample.workers", "clean.workers", "dedup.threads", "decontaminate.workers", "chunk.workers")
LAST_WITH_WORKERS = "chunk"
WITHOUT_EFFECT = {
    "sample": "sample.slack=110.0",
    "clean": "clean.limits.gopher_words_max=99999",
    "dedup": "dedup.survivors_per_bucket=128",
    "decontaminate": "decontaminate.max_pieces=11",
    "vocab": "vocab.max_bytes=100000000",
    "chunk": "chunk.max_epochs=3.9",
    "evaluate": "evaluate.max_items=150",
}
"""A setting of each stage that changes its identity and, on this corpus, no byte of its result."""


@pytest.fixture
def existing(walked: Any, tmp_path: Path) -> Path:
    """A copy of the root in which the whole pipeline exists."""
    return Path(shutil.copytree(walked.root, tmp_path / "existing"))


def test_any_number_of_workers_gives_the_same_bytes(
    walked: Any, run_program: Callable[..., str], joint: Callable[..., Any], tmp_path: Path
) -> None:
    parts = {stage: _parts(manifest) for stage, manifest in walked.manifests().items()}
    assert all(parts[stage] >= 4 for stage in STAGES[:4]), f"too few parts for 4 workers: {parts}"
    expected = {stage: manifest["content"] for stage, manifest in walked.manifests().items()}
    with joint("bytes: 1, 2 and 4 workers") as tally:
        for count in (1, 2, 4):
            settings = [f"{name}={count}" for name in WORKERS]
            for line in _walk(run_program, walked.recipe, tmp_path / str(count), LAST_WITH_WORKERS, *settings):
                reported = (
                    f"{line['stage']} of {count} workers: {line['content']}, and {expected[line['stage']]} before"
                )
                tally.expect(line["outcome"] == "built" and line["content"] == expected[line["stage"]], reported)
        tally.note = f"parts: {', '.join(f'{stage} {parts[stage]}' for stage in STAGES[:6])}"
    with joint("bytes: little memory, other checkpoints") as tally:
        settings = ["dedup.memory_bytes=4096", "train.checkpoint_steps=3", "train.keep_checkpoints=1"]
        for line in _walk(run_program, walked.recipe, tmp_path / "little", "train", *settings):
            reported = f"{line['stage']} under {settings}: {line['content']}, and {expected[line['stage']]} before"
            tally.expect(line["outcome"] == "built" and line["content"] == expected[line["stage"]], reported)
        tally.note = "runtime settings change no byte"


def test_force_reproduces_every_stage(walked: Any, existing: Path, joint: Callable[..., Any]) -> None:
    with joint("bytes: the command with --force") as tally:
        words = [sys.executable, "-m", "flows.cli", "run", walked.recipe, "--root", existing, "--force", "--json"]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd=walked.project)
        assert done.returncode == 0, done.stderr
        stages = json.loads(done.stdout)["stages"]
        assert [entry["stage"] for entry in stages] == list(STAGES)
        for entry in stages:
            tally.expect(entry["outcome"] == "reproduced", f"{entry['stage']}: {entry['outcome']}")
        tally.note = "every stage reproduced"


def test_a_change_without_effect_stops_the_wave(
    walked: Any, existing: Path, run_program: Callable[..., str], joint: Callable[..., Any]
) -> None:
    with joint("bytes: a setting without effect stops the wave") as tally:
        for changed, setting in WITHOUT_EFFECT.items():
            for line in _walk(run_program, walked.recipe, existing, STAGES[-1], setting):
                wanted = "built" if line["stage"] == changed else "reused"
                reported = f"{setting}: {line['stage']} was {line['outcome']} and not {wanted}"
                tally.expect(line["outcome"] == wanted, reported)
        tally.note = "the stage was built, and every other reused"


def _walk(run_program: Callable[..., str], *words: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_program("walk_road.py", *words).splitlines()]


def _parts(manifest: dict[str, Any]) -> int:
    return sum(file["table"] in ("documents", "sequences") for file in manifest["files"])
