"""Searches through the command and a real Prefect server: what they share, what they find, and what a kill costs."""

import json
import os
import re
import signal
import subprocess
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from flows.experiments.trial_log import Trial, TrialLog
from flows.experiments.trials import edited_recipe, parse_editable
from flows.recipe.load import apply_setting, load_recipe
from flows.runs.record import list_runs
from tests.command import invoke
from tests.command import words as command_words

pytestmark = pytest.mark.usefixtures("shared_server")

SECONDS = 900.0
LR = '"train.schedule.peak_lr" = { low = 1e-4, high = 1e-1, log = true }'
SMALL = """
[evaluate]
shots = [0]
heldout_max_bytes = 4000
ngram_tokens = 1000
sample_tokens = 1
temperatures = [0.0]
bootstrap_rounds = 10
threads = 1
"""


def searched(foundry: Path, folder: Path, head: str, space: str) -> Path:
    """The small recipe, smaller still, with a search."""
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)).replace('"40K"', '"16K"')
    path = folder / "searched.toml"
    path.write_text(f"{text}\nthreads = 1\n{SMALL}\n[search]\n{head}\n\n[search.space]\n{space}\n")
    return path


def search(recipe: Path, root: Path, *words: str) -> dict[str, Any]:
    return json.loads(invoke("study", "search", recipe, "--root", root, "--json", *words).stdout)


def test_trials_side_by_side_build_what_they_share_once(foundry: Path, tmp_path: Path) -> None:
    space = f'{LR}\n"vocab.vocab_size" = {{ choices = [400, 512] }}'
    recipe = searched(foundry, tmp_path, "trials = 3\nparallel = 2", space)
    found = search(recipe, tmp_path / "root")
    assert [line["state"] for line in found["lines"]] == ["complete"] * 3
    assert found["best"]["value"] == min(line["value"] for line in found["lines"])
    built = Counter(
        (entry["stage"], entry["identity"])
        for record in list_runs(tmp_path / "root")
        for entry in record["stages"]
        if entry["outcome"] == "built"
    )
    assert set(built.values()) == {1}
    counts = Counter(stage for stage, _ in built)
    sizes = {line["settings"]["vocab.vocab_size"] for line in found["lines"]}
    assert counts == {
        **dict.fromkeys(("sample", "clean", "dedup", "decontaminate"), 1),
        **dict.fromkeys(("vocab", "chunk"), len(sizes)),
        **dict.fromkeys(("train", "evaluate"), 3),
    }

    best = load_recipe(Path(found["recipe"]), tmp_path / "root")
    asked = [f"{key}={json.dumps(value)}" for key, value in found["best"]["settings"].items()]
    assert best.identity_params() == load_recipe(recipe, tmp_path / "root", asked).identity_params()
    page = Path(found["page"]).read_text()
    figures = json.loads(re.search(r'<script id="figures" type="application/json">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert set(figures) == {"history", "slice0", "slice1"}
    shown = invoke("study", "search", "show", "foundry", "--root", tmp_path / "root").stdout
    assert f"best: trial {found['best']['trial']}" in shown
    assert "run it: bessemer run" in shown


def reported(trials: list[Trial]) -> list[Any]:
    """What a search decided and found, without its clocks and run ids."""
    return [
        (
            *(one.number, one.origin, one.settings, one.state, one.rung, one.value),
            [(stop.rung, stop.step, stop.steps, stop.loss) for stop in one.stops],
        )
        for one in trials
    ]


def models(root: Path) -> list[str]:
    """Contents of the trained models."""
    manifests = (root / "artifacts" / "train").glob("*/manifest.json")
    return sorted(json.loads(path.read_text())["content"] for path in manifests)


@pytest.mark.prove
def test_a_search_killed_again_and_again_finds_what_an_undisturbed_one_does(foundry: Path, tmp_path: Path) -> None:
    recipe = searched(foundry, tmp_path, "trials = 5", LR)
    search(recipe, tmp_path / "whole")
    whole = TrialLog(tmp_path / "whole" / "searches" / "foundry" / "trials.jsonl").trials
    states = Counter(trial.state for trial in whole)
    assert states["complete"] >= 1
    assert states["paused"] >= 2
    assert all(trial.state in ("paused", "complete") for trial in whole)

    root = tmp_path / "killed"
    path = root / "searches" / "foundry" / "trials.jsonl"
    for lines in (2, 3, 6, 9):  # Right behind a beginning, a pause, and in later stretches.
        running = subprocess.Popen(
            command_words("study", "search", recipe, "--root", root, "--json"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + SECONDS
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert running.poll() is None, running.stderr and running.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    search(recipe, root)
    assert reported(TrialLog(path).trials) == reported(whole)
    assert models(root) == models(tmp_path / "whole")


def test_settings_reach_tables_that_a_recipe_writes_out_of_order() -> None:
    text = "# mine\n[train.model]\nwidth = 32\n\n[train]\nbatch_rows = 8\n\n[vocab]\nvocab_size = 512 # small\n"
    document = parse_editable(text)
    apply_setting(document, "train.schedule.peak_lr=0.01")
    apply_setting(document, "vocab.vocab_size=400")
    written = tomlkit.dumps(document)
    assert tomllib.loads(written) == {
        "train": {"model": {"width": 32}, "batch_rows": 8, "schedule": {"peak_lr": 0.01}},
        "vocab": {"vocab_size": 400},
    }
    assert written.startswith("# mine")
    assert "# small" in written


def test_a_recipe_for_another_folder_names_its_own_whatever_the_name_of_that(tmp_path: Path) -> None:
    folder = tmp_path / 'a "b" c\'d\\e'
    folder.mkdir()
    path = folder / "mine.toml"
    path.write_text("[[sources]]\npaths = ['{recipe}/a'] # text\n[train]\nbase_model = \"{recipe}/b\" # base\n")
    written = tomlkit.dumps(edited_recipe(path, ["vocab.base={recipe}/c"]))
    assert tomllib.loads(written) == {
        "sources": [{"paths": [f"{folder}/a"]}],
        "train": {"base_model": f"{folder}/b"},
        "vocab": {"base": f"{folder}/c"},
    }
    assert "# text" in written
    assert "# base" in written


def test_the_best_recipe_has_the_micro_batch_that_its_trial_had(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[train]\nbatch_rows = 8\nmicro_batch_rows = 8\n")
    found = edited_recipe(recipe, ["train.batch_rows=12"])["train"]
    assert (found["batch_rows"], found["micro_batch_rows"]) == (12, 6), "the largest up to 8 that divides 12"
