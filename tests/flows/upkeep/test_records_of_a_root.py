"""Records of a root: each is verified, a damaged one is named, set aside, and made again where something records it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.experiments.mixture import write_mixture
from flows.runs.record import RunRecord, list_runs, stage_entry, warn_once
from flows.service.files import Known, ServiceFiles
from flows.upkeep.root_records import record_problem, records_under
from model.checkpoint.complete_marker import complete
from model.checksummed_json import seal, write_sealed
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener
from tasks.artifacts.lease import build_lease, ignore
from tasks.artifacts.remote.metadata import read_record
from tasks.artifacts.reuse import Alias, read_alias, write_alias
from tasks.artifacts.workspace import Workspace
from tasks.common.digests import InputDigests

RUN = "run"
"""The id under which the fixture's artifacts were built."""


MIXTURE = {
    "sources": ["code", "notes"],
    "prior": {"code": 0.5, "notes": 0.5},
    "weights": {"code": 0.25, "notes": 0.75},
    "most": {"code": 1.0, "notes": 1.0},
    "metric": "bits_per_byte",
    "proxies": 8,
    "kept_back": 2,
    "r_squared": 0.9,
    "rank_correlation": 0.9,
    "predicted": 3.0,
    "predicted_prior": 3.1,
    "gain": {"low": 0.05, "value": 0.1, "high": 0.15},
    "seeds": {"low": 3.0, "value": 3.1, "high": 3.2},
    "scatter": 0.05,
}
"""What `bessemer study mix` found."""


@pytest.fixture
def kept(root: Path, foundry: Path) -> Path:
    """The three stages with a record of each kind that a person, a run, a lease and an unfinished build leave."""
    warn_once.cache_clear()
    recipe = foundry / "foundry.toml"
    record = RunRecord(
        root / "runs" / RUN, {"run_id": RUN, "recipe_name": "foundry", "root": str(root)}, ProgressListener()
    )
    for stage in ("sample", "clean", "dedup"):
        (path,) = root.glob(f"artifacts/{stage}/*")
        record.data["stages"].append(stage_entry(stage, Artifact.open(path), 1.0))
    record.data["state"] = "completed"
    record.save()
    write_sealed(root / "runs" / RUN / "recipe.json", {"name": "foundry"})
    write_alias(root, Alias("clean", "ab" * 16, "cd" * 16, "ef" * 16, ("code.x: a -> b",), "me", "today", "a comment"))
    with build_lease(root / "locks" / "held", ignore):
        pass
    workspace = Workspace(root / "work" / "ab.000001-cd")
    workspace.folder.mkdir(parents=True)
    with workspace.unit("00000") as unit:
        unit.path("a.txt").write_text("iron")
        unit.add_file("a.txt")
    out = workspace.scratch("train")
    for folder in ("checkpoints/step-000000010", "attempts/0001", "result"):
        (out / folder).mkdir(parents=True)
        (out / folder / "weights").write_text("iron")
        complete(out / folder)
    (out / "restarts.jsonl").write_bytes(seal({"kind": "restart"}, indent=None) * 2)
    write_sealed(root / "promotions" / "000001" / "promotion.json", {"number": 1})
    ServiceFiles(root).remember(Known("here", 4200))
    write_mixture(MIXTURE, recipe, (), root / "mixtures" / "foundry")
    return root


def places(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in records_under(root)}


def test_every_record_is_known_and_whole(kept: Path) -> None:
    training = "work/ab.000001-cd/scratch/train"
    assert {
        "inputs.json",
        f"aliases/clean/{'ab' * 16}.json",
        "locks/held/1.lease",
        "mixtures/foundry/weights.json",
        "promotions/000001/promotion.json",
        "runs/run/recipe.json",
        "runs/run/run.json",
        "service/address.json",
        "work/ab.000001-cd/units/00000.json",
        f"{training}/attempts/0001",
        f"{training}/checkpoints/step-000000010",
        f"{training}/restarts.jsonl",
        f"{training}/result",
    } <= places(kept)
    assert [path for path in records_under(kept) if record_problem(path)] == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_each_damaged_record_is_named_set_aside_and_no_longer_there(kept: Path) -> None:
    files = [path / "weights" if path.is_dir() else path for path in records_under(kept)]
    for path in [*files, kept / "work" / "ab.000001-cd" / "files" / "a.txt"]:
        flip(path)
    said = CliRunner().invoke(app, ["store", "verify", "--root", str(kept)])
    assert said.exit_code == 5
    named = [path for path in records_under(kept) if str(path) in said.stdout]
    assert named == records_under(kept)
    aside = json.loads(
        CliRunner().invoke(app, ["store", "verify", "--set-aside", "--root", str(kept), "--json"]).stdout
    )
    assert len(aside["set_aside"]) == len(named)
    again = CliRunner().invoke(app, ["store", "verify", "--root", str(kept)])
    assert again.exit_code == 0, again.stdout


def test_the_record_of_a_run_is_made_again_from_manifests(kept: Path) -> None:
    path = kept / "runs" / RUN / "run.json"
    before = read_record(path)
    flip(path)
    assert list_runs(kept) == []
    said = CliRunner().invoke(app, ["store", "verify", "--set-aside", "--root", str(kept)])
    assert "rebuilt from manifests (sample, clean, dedup)" in " ".join(said.stdout.split())
    (after,) = list_runs(kept)
    assert (after["run_id"], after["recipe_name"], after["state"]) == (RUN, "foundry", "interrupted")
    for old, new in zip(before["stages"], after["stages"], strict=True):
        assert {key: new[key] for key in ("stage", "identity", "content", "path")} == {
            key: old[key] for key in ("stage", "identity", "content", "path")
        }


def test_damaged_digests_of_inputs_are_named_and_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "input.txt", tmp_path / "inputs.json"
    path.write_text("iron")
    monkeypatch.setattr("tasks.common.digests.SETTLING_SECONDS", -1.0)
    inputs = InputDigests(cache)
    right = inputs.digest(path)
    inputs.save()
    cache.write_bytes(cache.read_bytes().replace(b'"length": 4', b'"length": 3'))
    again = InputDigests(cache)
    assert f"{cache} is damaged" in caplog.text
    assert again.digest(path) == right
    again.save()
    assert record_problem(cache) is None


@pytest.mark.parametrize("read", [lambda root: read_alias(root, "clean", "ab" * 16)])
def test_an_alias_with_another_word_is_no_word(kept: Path, read: Callable[[Path], object]) -> None:
    (path,) = kept.glob("aliases/clean/*.json")
    path.write_bytes(path.read_bytes().replace(b'"me"', b'"we"'))
    with pytest.raises(Exception, match=r"is damaged .* Remove the file: then the stage is built"):
        read(kept)
