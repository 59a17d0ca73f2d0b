"""An ablation through the command: what it reuses, what it compares, and the parts of a network that it trained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 900.0
SMALL = """
threads = 1

[evaluate]
shots = [0]
heldout_max_bytes = 4000
ngram_tokens = 1000
sample_tokens = 1
temperatures = [0.0]
bootstrap_rounds = 10
threads = 1
"""
CHANGES = """
seeds = 1

[changes.no-embedding-norm]
"train.model.embedding_norm" = false

[changes.too-deep]
"train.model.layers" = 3
"train.max_seconds" = 0.001
"""


def ablate(*words: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "flows.cli", "ablate", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_changes_are_laid_beside_the_base_and_parts_beside_the_whole(foundry: Path, tmp_path: Path) -> None:
    recipe, changes, root = tmp_path / "small.toml", tmp_path / "mine.toml", tmp_path / "root"
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)).replace('"40K"', '"16K"')
    recipe.write_text(text + SMALL)
    changes.write_text(CHANGES)
    found = ablate(recipe, changes, "--root", root)
    base, change, stopped = found["lines"]
    assert "sample" in base["built"]
    assert change["built"] == ["evaluate", "train"]
    line = change["measures"]["bits per byte"]
    assert line["difference"] == line["value"] - base["measures"]["bits per byte"]["value"]
    assert (line["n"], line["low"], line["verdict"]) == (1, None, "")
    assert {"training loss", "tokens a second", "bits per byte"} <= set(found["measures"])
    (benchmark,) = [name for name in found["measures"] if name.startswith("cloze")]
    assert change["measures"][benchmark]["items"]["n"] == 3
    assert stopped["measures"] == {}
    (cause,) = stopped["failed"].values()
    assert cause.startswith("GuardError: train: stopped after")
    told = Path(found["markdown"]).read_text()
    assert "| no-embedding-norm |" in told
    assert "too-deep, seed 7, failed: GuardError" in told
    assert "figure-measure0" in Path(found["page"]).read_text()

    (run,) = base["runs"].values()
    parts = ablate(run, "--components", "--root", root)
    assert len(parts["alone"]) == 2 + 2 + 2 + 4
    assert parts["bits_per_byte"] > 0
    heads = parts["curves"]["head"]
    assert [len(line.get("taken", [])) for line in heads] == [0, 1, 2, 3, 4]
    assert heads[0]["bits_per_byte"] == parts["bits_per_byte"]
    sizes = [line["parameters"] for line in heads]
    assert sizes == sorted(sizes, reverse=True)
    assert "layer 1 head 0" in Path(parts["markdown"]).read_text()
