"""A chain of nights by the command, through a real Prefect server: promoted, blocked, undone, made again elsewhere.

The text is source code of the standard library, cut into folders that come night by night; poison is the same text
written backwards.
"""

import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from flows.metrics.accounting import conservation
from flows.metrics.stage_lines import open_artifacts
from flows.runs.lineage import open_run
from model.digests import digest_bytes
from tasks.artifacts.artifact import Artifact
from tests.command import bessemer, words

pytestmark = pytest.mark.prove

SECONDS = 3600.0
STDLIB = Path(sysconfig.get_paths()["stdlib"])
RECIPE = """
format = 1
name = "chain"
seed = 7
budget_tokens = "100K"

[[sources]]
name = "library"
paths = ["{recipe}/library"]
format = "code"
weight = 0.7

[[sources]]
name = "packages"
paths = ["{recipe}/packages"]
format = "code"
weight = 0.3

[sample]
part_bytes = 200_000
slack = 20.0

[clean]
preset = "minimal"

[decontaminate]
heldout_share = 0.15

[vocab]
vocab_size = 512

[train]
batch_rows = 8
micro_batch_rows = 8
checkpoint_steps = 20

[train.model]
context = 64
layers = 2
heads = 2
width = 64

[train.schedule]
peak_lr = 4e-3

[evaluate]
heldout_max_bytes = 120_000
checked_texts = 0
sample_tokens = 4

[nightly]
spare_gigabytes = 0.1

[nightly.later]
budget_tokens = "40K"
"train.schedule.peak_lr" = 1e-3

[notify]
on = ["failed", "blocked", "promoted", "nothing"]
"""
Change = Callable[[str], str]


def backwards(text: str) -> str:
    return "\n".join(line[::-1].swapcase() for line in text.splitlines())


class Inputs:
    """The folder that nights find their files in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "chain.toml").write_text(RECIPE)
        library = [path for path in STDLIB.glob("*.py") if 2000 < path.stat().st_size < 30_000]
        packages = [path for path in STDLIB.glob("[a-hu-x]*/*.py") if 1500 < path.stat().st_size < 30_000]
        self.library, self.packages = sorted(library), sorted(packages)

    def come(self, source: str, first: int, last: int, change: Change = str, prefix: str = "") -> list[Path]:
        """Files `first` to `last` of a source come; returns them."""
        came: list[Path] = []
        for path in (self.library if source == "library" else self.packages)[first:last]:
            came.append(self.folder / source / f"{prefix}{path.parent.name}-{path.name}")
            came[-1].parent.mkdir(exist_ok=True)
            came[-1].write_text(change(path.read_text()))
        return came

    def first_night(self) -> None:
        self.come("library", 0, 45)
        self.come("packages", 0, 30)

    def second_night(self) -> None:
        """New text, copies of the first night's under other names, and a file that grew."""
        self.come("library", 45, 60)
        self.come("library", 0, 45, prefix="copy-of-")
        grown = self.come("packages", 3, 4)[0]
        grown.write_text(f"{grown.read_text()}\n# {'one more line of words that were not there ' * 3}\n")


class Nights:
    """A root, and nights under it by the command."""

    def __init__(self, root: Path, inputs: Inputs, webhook: str) -> None:
        self.root, self.inputs = root, inputs
        self.environment = {**os.environ, "BESSEMER_WEBHOOK": webhook, "BESSEMER_WEBHOOK_TOKEN": "s3cret-token"}

    def call(self, *more: str, code: int = 0) -> str:
        done = bessemer(*more, "--root", self.root, code=code, environment=self.environment)
        return done.stdout if code == 0 else done.stderr

    def spend(self, *more: str, code: int = 0) -> str:
        return self.call("nightly", str(self.inputs.folder / "chain.toml"), *more, code=code)

    def listed(self) -> list[dict[str, Any]]:
        return json.loads(self.call("nightly", "--list", "--json"))["nights"]

    def current(self) -> str:
        return json.loads(self.call("model", "current", "--json"))["run_id"]

    def artifacts(self, run_id: str) -> dict[str, Artifact]:
        return open_artifacts(open_run(self.root, run_id))

    def contents(self, run_id: str) -> dict[str, str]:
        return {stage: artifact.content for stage, artifact in self.artifacts(run_id).items()}


@pytest.fixture
def heard(webhook: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with webhook() as served:
        yield served


def texts(artifact: Artifact, table: str) -> list[str]:
    return artifact.table(table).column("text").to_pylist()


def test_a_chain_of_nights(tmp_path: Path, heard: Any) -> None:
    address, reported = heard
    inputs = Inputs(tmp_path / "inputs")
    nights = Nights(tmp_path / "root", inputs, address)

    inputs.first_night()
    nights.spend()
    first = nights.current()
    assert (reported[-1]["json"]["event"], reported[-1]["json"]["run_id"]) == ("promoted", first)
    existing = sorted(path.name for path in (nights.root / "artifacts").glob("*/*"))

    # A night run twice finds nothing new, builds nothing, and ends well.
    assert "no new data" in nights.spend()
    assert reported[-1]["json"]["event"] == "nothing new"
    assert sorted(path.name for path in (nights.root / "artifacts").glob("*/*")) == existing
    assert nights.current() == first

    inputs.second_night()
    nights.spend()
    second = nights.current()
    assert second != first
    _check_second_night(nights, first, second)

    # Poison: the promotion is blocked, the webhook is called, the exit code says so, and the current model stays.
    inputs.come("library", 60, 80, backwards)
    error = nights.spend(code=4)
    assert "was not promoted" in error
    blocked = nights.listed()[-1]
    assert (blocked["state"], blocked["base"]) == ("blocked", second)
    assert (reported[-1]["json"]["event"], reported[-1]["json"]["run_id"]) == ("blocked", blocked["run_id"])
    assert reported[-1]["headers"]["Authorization"] == "Bearer s3cret-token"
    assert "all sources: bits_per_byte" in reported[-1]["json"]["worse"]
    assert blocked["bits_after"] > blocked["bits_before"]
    assert nights.current() == second

    # The next night goes on from the current model, without the poison.
    inputs.come("packages", 30, 45)
    inputs.come("library", 80, 95)
    nights.spend()
    fourth = nights.listed()[-1]
    assert (fourth["state"], fourth["base"], set(fourth["files"])) == ("promoted", second, {"library", "packages"})
    assert not {path for path in fourth["files"]["library"] if path in blocked["files"]["library"]}
    assert fourth["chain"] == [first, second]
    assert nights.artifacts(fourth["run_id"])["evaluate"].rows("document_scores") == _scored_documents(nights, first)

    _check_epochs(nights, first, second, fourth["run_id"])
    _check_undo_and_collection(nights, second, fourth["run_id"])
    _check_secrets(nights)
    print(nights.call("nightly", "--list"))
    print(nights.call("model", "current", "--history"))

    # The same nights in a fresh root give the same bytes, stage by stage.
    again = Inputs(tmp_path / "again")
    elsewhere = Nights(tmp_path / "elsewhere", again, address)
    again.first_night()
    elsewhere.spend()
    assert elsewhere.contents(elsewhere.current()) == nights.contents(first)
    again.second_night()
    elsewhere.spend()
    assert elsewhere.contents(elsewhere.current()) == nights.contents(second)


def _scored_documents(nights: Nights, first: str) -> int:
    """Documents that the first night set aside, as far as they are scored."""
    return nights.artifacts(first)["evaluate"].rows("document_scores")


def _check_second_night(nights: Nights, first: str, second: str) -> None:
    before, after = nights.artifacts(first), nights.artifacts(second)
    night = nights.listed()[-1]
    assert sorted(night["files"]) == ["library", "packages"]
    assert len(night["files"]["packages"]) == 1
    # Copies go by the rule of earlier text, and the grown file as a near copy; nothing vanishes.
    dropped = after["dedup"].report.total().dropped
    assert dropped["exact_duplicate_of_earlier"] >= 40
    assert dropped["near_duplicate_of_earlier"] == 1
    for artifacts in (before, after):
        assert conservation(artifacts, {stage: artifact.report for stage, artifact in artifacts.items()})["balanced"]
    # What the first night set aside is what the second is scored on, and neither trains on it.
    held = set(texts(before["decontaminate"], "heldout"))
    assert held
    assert after["decontaminate"].rows("heldout") == 0
    for artifacts in (before, after):
        assert not held & set(texts(artifacts["decontaminate"], "documents"))
    assert _scored(after) == _scored(before)
    assert after["vocab"].file("tokenizer.model").read_bytes() == before["vocab"].file("tokenizer.model").read_bytes()
    assert after["train"].manifest["parents"].keys() >= {"sequences", "vocab"}
    # A source of which nothing was left has no weight, and the run's recipe says so.
    recipe = json.loads((nights.root / "runs" / second / "recipe.json").read_text())
    assert recipe["chunk"]["weights"] == {"library": 0.7, "packages": 0.0}


def _scored(artifacts: dict[str, Artifact]) -> list[tuple[bytes, int]]:
    table = artifacts["evaluate"].table("document_scores")
    return sorted(zip(table.column("doc_id").to_pylist(), table.column("bytes").to_pylist(), strict=True))


def _check_epochs(nights: Nights, *chain: str) -> None:
    """No text is in the rows of two nightly runs, and none was read more often than `max_epochs` allows."""
    seen: set[str] = set()
    for run_id in chain:
        artifacts = nights.artifacts(run_id)
        mine = {digest_bytes(text.encode()) for text in texts(artifacts["decontaminate"], "documents")}
        assert not seen & mine
        seen |= mine
        assert pc.max(artifacts["chunk"].table("order").column("epoch")).as_py() < 4
    reported = json.loads(nights.call("nightly", "--list", "--json"))["epochs_of_chain"]
    assert set(reported) == {"library", "packages"}
    assert all(0 < epochs <= 4 for epochs in reported.values())


def _check_undo_and_collection(nights: Nights, second: str, fourth: str) -> None:
    """What is current, and what undoing leads to, stays whatever is collected; the next night goes on from there."""
    nights.call("model", "promote", "--undo", "--because", "for the proof")
    assert nights.current() == second
    text = json.loads(nights.call("model", "generate", "current", "--prompt", "import ", "--tokens", "4", "--json"))[
        "text"
    ]
    assert isinstance(text, str)
    nights.call("model", "promote", fourth, "--because", "it was good")
    for manifest in (nights.root / "artifacts").glob("*/*/manifest.json"):
        os.utime(manifest, (time.time() - 10**6,) * 2)
    nights.call("store", "gc", "--keep-last", "0", "--models", "--yes")
    assert nights.call("store", "verify") is not None
    assert set(nights.artifacts(fourth)) == set(nights.artifacts(second)) == {
        "sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate"
    }  # fmt: skip
    blocked = next(night for night in nights.listed() if night["state"] == "blocked")
    assert "train" not in nights.artifacts(blocked["run_id"])


def _check_secrets(nights: Nights) -> None:
    """Neither the address nor the token of the webhook is in anything that nightly runs wrote."""
    secrets = (nights.environment["BESSEMER_WEBHOOK"].encode(), b"s3cret-token")
    for path in nights.root.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".html", ".log", ".toml"):
            assert not any(secret in path.read_bytes() for secret in secrets), path


def test_a_night_that_is_killed_is_made_up_for_by_the_next(tmp_path: Path, heard: Any) -> None:
    address, reported = heard
    inputs = Inputs(tmp_path / "inputs")
    nights = Nights(tmp_path / "root", inputs, address)
    inputs.come("library", 0, 30)
    inputs.come("packages", 0, 20)
    command = words("nightly", inputs.folder / "chain.toml", "--root", nights.root)
    with (tmp_path / "log").open("wb") as log:
        killed = subprocess.Popen(command, stdout=log, stderr=log, env=nights.environment, start_new_session=True)
        deadline = time.monotonic() + SECONDS
        while not list(nights.root.glob("artifacts/clean/*/manifest.json")):
            assert killed.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(1.0)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert [night["state"] for night in nights.listed()] == ["under way"]
    inputs.come("library", 30, 40)
    nights.spend()
    lost, made = nights.listed()
    assert (lost["state"], made["state"]) == ("interrupted", "promoted")
    assert len(made["files"]["library"]) == 40
    assert [one["json"]["event"] for one in reported] == ["interrupted", "promoted"]
