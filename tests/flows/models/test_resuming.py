"""`bessemer training resume` goes on with a training that stopped, under other settings."""

import json
from pathlib import Path

from typer.testing import CliRunner

from flows.cli import app

SMALL = (
    'budget_tokens="6K"',
    "train.checkpoint_steps=4",
    "train.model.layers=1",
    "train.model.width=16",
    "vocab.vocab_size=400",
)


def test_a_training_that_paused_goes_on_to_its_end_under_other_settings(foundry: Path, tmp_path: Path) -> None:
    """It would pause at once if it kept the share at which it has paused."""
    root = ["--root", str(tmp_path / "root")]
    settings = [word for setting in (*SMALL, "train.pause_share=0.5") for word in ("--set", setting)]
    paused = CliRunner().invoke(app, ["run", str(foundry / "foundry.toml"), *settings, *root, "--json"])
    assert (paused.exit_code, json.loads(paused.stdout)["state"]) == (0, "paused"), paused.stderr
    changed = ["--set", "train.schedule.peak_lr=1e-4", "--because", "the loss has settled"]
    resumed = CliRunner().invoke(app, ["training", "resume", *changed, *root, "--json"])
    assert resumed.exit_code == 0, resumed.stderr
    record = json.loads(resumed.stdout)
    assert record["state"] == "completed"
    assert [entry["stage"] for entry in record["stages"] if entry["outcome"] == "built"] == ["train", "evaluate"]
    ended = CliRunner().invoke(app, ["training", "status", *root])
    assert "there is nothing to resume" in ended.stderr
