"""One damaged record of a run: commands that read others name it, say what to do, and do what they were asked."""

import json
import shutil
from pathlib import Path

import pytest

from flows.runs.lineage import model_of, open_run
from flows.runs.model_registry import link_promotions, promote
from flows.runs.record import list_runs, read_recipe, warn_once
from flows.upkeep import gc as collecting
from model.checksummed_json import seal, write_sealed
from model.errors import IntegrityError
from tasks.artifacts.manifest import read_manifest, write_manifest
from tasks.artifacts.references import resolve_artifacts
from tasks.artifacts.remote.metadata import read_record
from tests.command import bessemer, invoke

GOOD, DAMAGED = "20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"
TORN = ("", "{", '{"run_id": "x"', "[]", "null", '{"stages": []}', seal({"stages": {}}), seal({"stages": [3]}), b"\xff")


@pytest.fixture
def runs(root: Path) -> Path:
    """The root of three built stages with a good record and one that is still to be damaged."""
    warn_once.cache_clear()
    for run_id in (GOOD, DAMAGED):
        folder = root / "runs" / run_id
        folder.mkdir(parents=True)
        manifests = [json.loads(path.read_text()) for path in root.glob("artifacts/*/*/manifest.json")]
        stages = [
            {
                "stage": one["stage"],
                "identity": one["identity"],
                "content": one["content"],
                "outcome": "built",
                "path": str(root / "artifacts" / one["stage"] / one["identity"]),
            }
            for one in manifests
        ]
        record = {"run_id": run_id, "recipe_name": "foundry", "state": "completed", "stages": stages, "root": str(root)}
        write_sealed(folder / "run.json", record)
        write_sealed(folder / "recipe.json", {"train": {"model": {}}, "evaluate": {}})
    return root


def damage(root: Path, text: str | bytes) -> Path:
    path = root / "runs" / DAMAGED / "run.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("text", TORN)
def test_it_is_named_and_left_out(runs: Path, text: str | bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = damage(runs, text)
    assert [run["run_id"] for run in list_runs(runs)] == [GOOD]
    assert [run["run_id"] for run in list_runs(runs)] == [GOOD]
    (warning,) = caplog.messages
    assert warning.startswith(f"{path} is damaged (")
    assert f"Restore it from a copy, or remove {path.parent}" in warning


def test_commands_about_other_runs_answer_and_name_it_on_stderr(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = damage(runs, "{")
    for words in (
        ("runs", "list", "--json"),
        ("data", "history", "note-01"),
        ("store", "gc"),
        ("data", "peek", "clean"),
        ("model", "current"),
    ):
        warn_once.cache_clear()
        caplog.clear()
        done = invoke(*words, "--root", runs, code=3 if words == ("model", "current") else 0)
        assert "Traceback" not in done.stderr
        assert (f"{path} is damaged" in caplog.text) == (words != ("model", "current")), words
    # pytest keeps what is logged from the stderr of commands that run here.
    listed = bessemer("runs", "list", "--json", "--root", runs)
    assert f"{path} is damaged" in listed.stderr
    assert [run["run_id"] for run in json.loads(listed.stdout)] == [GOOD]


def test_who_asks_for_this_very_run_learns_that_it_is_damaged(runs: Path) -> None:
    path = damage(runs, "{")
    with pytest.raises(IntegrityError, match=r"run\.json is damaged"):
        resolve_artifacts([DAMAGED], runs, "sample", "dedup.against")
    with pytest.raises(IntegrityError, match=r"run\.json is damaged"):
        open_run(runs, DAMAGED)
    with pytest.raises(IntegrityError, match=r"run\.json is damaged"):
        read_record(path)
    with pytest.raises(FileNotFoundError):
        read_record(path.with_name("none.json"))


def test_no_artifact_that_a_damaged_run_made_is_collected(runs: Path) -> None:
    for manifest in runs.glob("artifacts/*/*/manifest.json"):
        write_manifest(manifest.parent, {**read_manifest(manifest.parent), "run": DAMAGED})
    shutil.rmtree(runs / "runs" / GOOD)
    later = 4e9  # long after what is fresh
    assert collecting.plan(runs, keep_last=1, now=later).artifacts == ()
    damage(runs, "{")
    assert collecting.plan(runs, keep_last=1, now=later).artifacts == ()
    shutil.rmtree(runs / "runs" / DAMAGED)
    assert len(collecting.plan(runs, keep_last=1, now=later).artifacts) == 3


def test_a_damaged_recipe_beside_a_record_hides_the_network_alone(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = runs / "runs" / GOOD / "recipe.json"
    path.write_text("{")
    (good, _) = list_runs(runs)
    assert model_of(good, runs) == {"architecture": None, "parameters": None}
    (warning,) = caplog.messages
    assert warning.startswith(f"{path} is damaged (")
    assert warning.endswith("Restore it from a copy, or remove it: the run is then known by its record alone.")
    with pytest.raises(IntegrityError, match=r"recipe\.json is damaged"):
        read_recipe(path.parent)


def test_links_of_a_promotion_wait_for_the_record_of_its_run(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = read_record(runs / "runs" / DAMAGED / "run.json")
    for stage in ("vocab", "train"):
        folder = runs / "artifacts" / stage / "0123"
        folder.mkdir(parents=True)
        record["stages"].append({"stage": stage, "outcome": "built", "path": str(folder)})
    write_sealed(runs / "runs" / DAMAGED / "run.json", record)
    promote(runs, record, "the first")
    (runs / "promotions" / "000001" / "run").unlink()
    damage(runs, "{")
    link_promotions(runs)
    assert "run.json is damaged" in caplog.text
    assert not (runs / "promotions" / "000001" / "run").exists()
