"""An ablation through the command: what it reuses, what it compares, and the parts of a network that it trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.experiments.component_ablation import alone_figure
from model.checksummed_json import read_sealed
from model.digests import digest_file
from tasks.artifacts.artifact import Artifact
from tests.command import invoke

pytestmark = pytest.mark.usefixtures("shared_server")

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

[changes.embedding-norm]
"train.model.embedding_norm" = true

[changes.too-deep]
"train.model.layers" = 3
"train.max_seconds" = 0.001
"""


GOING_ON = """
seeds = 1

[changes.small-batches]
"train.batch_rows" = 4
"train.micro_batch_rows" = 4

[then.settings]
"train.batch_rows" = 8
"train.micro_batch_rows" = 8
"""


@pytest.fixture(scope="module")
def home(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a root that the tests share."""
    folder = tmp_path_factory.mktemp("ablations")
    text = (foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)).replace('"40K"', '"16K"')
    (folder / "small.toml").write_text(text + SMALL)
    return folder


def ablate(*words: str | Path) -> dict[str, Any]:
    return json.loads(invoke("study", "ablate", *words, "--json").stdout)


def test_changes_are_laid_beside_the_base_and_parts_beside_the_whole(home: Path) -> None:
    recipe, changes, root = home / "small.toml", home / "mine.toml", home / "root"
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
    reported = Path(found["markdown"]).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "| embedding-norm |" in reported
    assert "too-deep, seed 7, failed: GuardError" in reported
    assert "figure-measure0" in Path(found["page"]).read_text()

    (run,) = base["runs"].values()
    parts = ablate(run, "--components", "--root", root)
    assert len(parts["alone"]) == 2 + 2 + 2 + 4
    assert alone_figure(parts)["layout"]["height"] == 90 + 10 * 22, "each bar has room for its name"
    assert parts["bits_per_byte"] > 0
    heads = parts["curves"]["head"]
    assert [len(line.get("taken", [])) for line in heads] == [0, 1, 2, 3, 4]
    assert heads[0]["bits_per_byte"] == parts["bits_per_byte"]
    sizes = [line["parameters"] for line in heads]
    assert sizes == sorted(sizes, reverse=True)
    assert "layer 1 head 0" in Path(parts["markdown"]).read_text().replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.usefixtures("forked_trainers")
def test_where_second_runs_are_asked_for_they_go_on_from_the_first_and_are_measured(home: Path) -> None:
    """A quarter of 16,000 tokens in batches of eight rows of 64: eight steps, from each first model and from none."""
    (home / "then.toml").write_text(GOING_ON)
    found = ablate(home / "small.toml", home / "then.toml", "--root", home / "root")
    assert [line["change"] for line in found["lines"]] == ["base", "small-batches", "second-run-alone"]

    def trained(run_id: str) -> Artifact:
        record = json.loads((home / "root" / "runs" / run_id / "run.json").read_text())
        (path,) = [entry["path"] for entry in record["stages"] if entry["stage"] == "train"]
        return Artifact.open(Path(path))

    measured = [trained(run_id) for line in found["lines"] for run_id in line["runs"].values()]
    assert [model.report.facts["training"]["steps"] for model in measured] == [8, 8, 8]
    folder = home / "root" / "ablations" / "small-then"
    run_ids = read_sealed(folder / "runs.json", "")
    assert list(run_ids) == ["base 7", "base 7, then", "small-batches 7", "small-batches 7, then", "second-run-alone 7"]
    began_from = [model.report.facts.get("base_model", {}).get("weights") for model in measured]
    firsts = [trained(run_ids[name]).file("model.safetensors") for name in ("base 7", "small-batches 7")]
    assert began_from == [*(digest_file(path) for path in firsts), None]
    base, _, alone = (line["measures"]["bits per byte"] for line in found["lines"])
    assert alone["value"] > base["value"]
    assert alone["difference"] == alone["value"] - base["value"]
    reported = Path(found["markdown"]).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "Each model continued in a second run, alike for all, on 25% as many tokens (train.batch_rows 8" in reported
    assert "not compared: the speed of a second run" in reported
    assert "second-run-alone is the second run from new weights" in Path(found["page"]).read_text()
