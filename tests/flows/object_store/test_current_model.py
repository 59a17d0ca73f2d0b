"""The current model and the nights of a root that several machines share."""

import json
import secrets
from pathlib import Path

import pytest

from flows.nightly.history import PROMOTED, Night, list_nights
from flows.nightly.start import AnotherNightError, exclusive_nightly
from flows.runs.lineage import open_run
from flows.runs.model_registry import current_run, history, needed_runs, promote, undo
from flows.runs.roots import open_root
from model.checksummed_json import write_sealed
from model.errors import InputError
from tasks.artifacts.identity import FORMAT, identity_key
from tasks.artifacts.manifest import content_digest
from tasks.artifacts.remote.artifacts import create_stub, put_artifact
from tasks.artifacts.remote.attach import attached_root, store_of
from tasks.artifacts.remote.metadata import create_promotion, put_run


def a_run(root: Path, name: str) -> str:
    """A run of `root` with a model and a tokenizer that are in its store; its id."""
    run_id = f"20261122T0200{name}"
    store = store_of(root)
    assert store is not None
    entries: list[dict[str, str]] = []
    for stage in ("vocab", "train"):
        parts = {"stage": stage, "run": name}
        identity = identity_key(parts)
        manifest = {"format": FORMAT, "stage": stage, "identity": identity, "identity_parts": parts}
        manifest |= {"content": content_digest([]), "files": [], "rows": {}, "bytes": 0}
        put_artifact(store, manifest, lambda _: root)
        create_stub(root, manifest)
        path = root / "artifacts" / stage / identity
        entries.append({"stage": stage, "identity": identity, "path": str(path)})
    record = {"run_id": run_id, "recipe_name": "r", "state": "completed", "root": str(root), "stages": entries}
    (root / "runs" / run_id).mkdir(parents=True)
    write_sealed(root / "runs" / run_id / "run.json", record)
    put_run(root, store, run_id)
    return run_id


class Machines:
    """Machines before one store, each with a cache of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address = f"s3://bessemer/{secrets.token_hex(6)}"
        self._folder, self._monkeypatch = folder, monkeypatch

    def root(self, name: str) -> Path:
        """The root as a command of this machine opens it."""
        self._monkeypatch.setenv("BESSEMER_CACHE", str(self._folder / name))
        return open_root(self.address)

    def cache(self, name: str) -> Path:
        """The same, without a look at the store."""
        self._monkeypatch.setenv("BESSEMER_CACHE", str(self._folder / name))
        return attached_root(self.address)


@pytest.fixture
def machines(object_store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machines:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return Machines(tmp_path, monkeypatch)


def test_what_one_machine_promotes_is_the_current_model_of_all(machines: Machines) -> None:
    first, second = (a_run(machines.root("a"), name) for name in ("1", "2"))
    promote(machines.root("a"), open_run(machines.root("a"), first), "the first")
    there = machines.root("b")
    assert current_run(there) == first
    assert (there / "current" / "model" / "manifest.json").is_file()
    assert json.loads((there / "current" / "run" / "run.json").read_text())["run_id"] == first

    promote(there, open_run(there, second), "better")
    here = machines.root("a")
    assert current_run(here) == second
    assert needed_runs(here) == {first, second}
    undo(here, "worse")
    assert [(one.number, one.run_id, one.restores) for one in history(machines.root("b"))] == [
        (1, first, None),
        (2, second, None),
        (3, first, 1),
    ]


def test_of_two_machines_that_promote_at_once_the_second_sees_the_first(machines: Machines) -> None:
    """Machine B has not looked since A promoted: the number that it wants is taken."""
    first, second = (a_run(machines.root("a"), name) for name in ("1", "2"))
    machines.root("b")
    promote(machines.root("a"), open_run(machines.root("a"), first), "mine")
    late = machines.cache("b")
    assert history(late) == []
    with pytest.raises(InputError, match="is the current model already"):
        promote(late, open_run(late, first), "mine too")
    made = promote(late, open_run(late, second), "and then mine")
    assert (made.number, made.replaced) == (2, 1)


def test_a_promotion_that_a_kill_kept_from_this_machine_is_found_again(machines: Machines) -> None:
    """The store has it, the folder does not: killed between the two."""
    root = machines.root("a")
    run_id = a_run(root, "1")
    store = store_of(root)
    assert store is not None
    reported = {
        "number": 1,
        "run_id": run_id,
        "who": "a@b",
        "when": "now",
        "why": "w",
        "replaced": None,
        "restores": None,
    }
    assert create_promotion(store, 1, reported)
    assert not create_promotion(store, 1, {**reported, "who": "another"})
    assert current_run(machines.root("a")) == run_id


def test_nights_are_known_on_all_machines_and_one_is_spent_at_a_time(machines: Machines) -> None:
    night = Night("20261122T020000Z-aaaaaa", "r", files={"notes": {"a.txt": "0" * 32}})
    night.save(machines.root("a"))
    assert list_nights(machines.root("b")) == [night]
    night.state, night.ended = PROMOTED, 2.0
    night.save(machines.cache("a"))
    assert list_nights(machines.root("b")) == [night]
    with (
        exclusive_nightly(machines.root("a")),
        pytest.raises(AnotherNightError, match="another nightly run is under way"),
        exclusive_nightly(machines.root("b")),
    ):
        pass
    with exclusive_nightly(machines.root("b")):
        pass
