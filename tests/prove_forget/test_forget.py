"""What thirty requests (`test_requests.py`) do not show: secrets, kills, an object store, and the time of a replay."""

import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs

from flows.removal.certificate import commitment
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import list_runs
from flows.runs.roots import open_root
from model.checkpoint.weights import load_model
from model.digests import digest_bytes
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from tasks.artifacts.remote.artifacts import manifest_key
from tasks.artifacts.remote.metadata import FORGOTTEN, PENDING
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.tokenizer.open import open_tokenizer
from tests.prove_forget.conftest import STABLE
from tests.prove_forget.removals import (
    Cost,
    bessemer,
    certificate_and_salt,
    first_reads,
    forget,
    from_scratch,
    is_of_clocks,
    resumed_at,
    run,
)

LEARNING = ("budget_tokens=120K", "train.model.width=64", "train.optimizer.kind=muon", "train.schedule.peak_lr=0.015")
"""With which the small network learns a number by heart that it reads 64 times."""
KILLS = 8

LONGER = ("budget_tokens=200K", "train.model.width=320", "train.model.layers=4", "train.model.heads=5")
"""A training of about two minutes, of which the start of a process is a small part."""

pytestmark = pytest.mark.prove_forget


def test_a_longer_replay_takes_as_long_as_the_plan_says(
    archive: Path, tmp_path: Path, record_cost: Callable[[str, Cost], None]
) -> None:
    run(archive, tmp_path, *STABLE, *LONGER)
    artifacts = run_artifacts(open_run(tmp_path, None))
    third = artifacts["chunk"].rows("order") // 3
    document = min((abs(position - third), one) for one, position in first_reads(artifacts).items())[1]
    cost = forget(tmp_path, [document]).cost
    record_cost("a document, longer training", cost)
    assert cost.seconds == pytest.approx(cost.predicted, rel=0.15)


def test_nothing_of_planted_secrets_is_left_in_the_model(foundry: Path, tmp_path: Path) -> None:
    """32 secrets, each in 1 to 64 documents: afterwards as likely, to the bit, as to a model that never read them."""
    codes = [f"{one * 7919 % 9973:04d}-{one * 6007 % 9967:04d}" for one in range(32)]
    secrets = [f"The code of vessel {one:02d} is {code}." for one, code in enumerate(codes)]
    others = [f"The code of vessel {one:02d} is {codes[one - 1]}." for one in range(32)]
    copies = [2 ** (one % 7) for one in range(32)]
    recipe, root = _with_secrets(foundry, tmp_path, secrets, copies), tmp_path / "root"
    run(recipe, root, *STABLE, *LEARNING)
    before = _nats(root, secrets)
    learned = [wrong - right for wrong, right in zip(_nats(root, others), before, strict=True)]
    assert np.mean([nats for nats, count in zip(learned, copies, strict=True) if count == 64]) > 3, "in 64 documents"

    bessemer("data", "forget", "--source", "secrets", "--root", root, "--yes", "--json")
    after = _nats(root, secrets)
    from_scratch(root, open_run(root, None), tmp_path)
    (scratch,) = (tmp_path / "scratch" / "artifacts" / "train").iterdir()
    assert after == _nats(root, secrets, scratch)


def _with_secrets(foundry: Path, folder: Path, secrets: list[str], copies: list[int]) -> Path:
    """Write a recipe with a source more, whose documents hold a secret each amid words of their own."""
    shutil.copytree(foundry, folder / "foundry")
    place = folder / "foundry" / "secrets"
    place.mkdir()
    words = (foundry / "notes" / "note-00.txt").read_text().lower().replace(".", "").split()
    draw = np.random.Generator(np.random.Philox(11))
    for number, (secret, count) in enumerate(zip(secrets, copies, strict=True)):
        for copy in range(count):
            before, after = (" ".join(draw.choice(words, 30)).capitalize() + "." for _ in range(2))
            (place / f"secret-{number:02d}-{copy:02d}.txt").write_text(f"{before} {secret} {after}\n")
    recipe = folder / "foundry" / "foundry.toml"
    source = '[[sources]]\nname = "secrets"\npaths = ["{recipe}/secrets"]\nformat = "text"\nweight = 0.5\n\n[sample]\n'
    recipe.write_text(recipe.read_text().replace("weight = 0.5", "weight = 0.25").replace("[sample]\n", source, 1))
    return recipe


def _nats(root: Path, texts: list[str], trained: Path | None = None) -> list[float]:
    """Return the nats of each text under the root's newest model, or under another one with its vocabulary."""
    artifacts = run_artifacts(open_run(root, None))
    network, tokenizer = load_model(trained or artifacts["train"].path), open_tokenizer(artifacts["vocab"])
    assert isinstance(network, GPT)
    return text_nats(network, [tokenizer.encode(text) for text in texts], tokenizer.eos)


def test_a_removal_that_is_killed_again_and_again_ends_like_another(
    base: Callable[[str], Path], copy_root: Callable[..., Path]
) -> None:
    calm, killed = (copy_root(base("gpt"), name) for name in ("calm", "killed"))
    before = run_artifacts(open_run(calm, None))
    assert len(json.loads(bessemer("data", "forget", "note-07", "--root", calm, "--json"))["leaving"]["requested"]) == 1
    assert all(artifact.path.exists() for artifact in before.values()), "what is only shown deletes nothing"
    assert not (calm / FORGOTTEN).exists()
    began = time.monotonic()
    bessemer("data", "forget", "note-07", "--root", calm, "--yes", "--json")
    seconds = time.monotonic() - began
    moments = np.random.Generator(np.random.Philox(7)).uniform(0, seconds, KILLS)
    for moment in sorted(moments.tolist()):
        _kill_after(moment, killed)
    words = _words(killed)
    said = "" if words is None else bessemer("data", "forget", *words, "--root", killed, "--yes", "--json")
    expected, found = (run_artifacts(open_run(root, None)) for root in (calm, killed))
    assert {stage: one.content for stage, one in found.items()} == {
        stage: one.content for stage, one in expected.items()
    }
    assert len(list((killed / FORGOTTEN).glob("*.json"))) == 1, said
    assert _folders(killed) == _folders(calm)
    bessemer("store", "verify", "--root", killed)


def test_a_document_leaves_the_bucket_and_the_machines_of_a_root_in_an_object_store(
    foundry: Path, object_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine A is killed in the middle of the deletion, machine B ends it, in a bucket that keeps versions."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"versions-{secrets.token_hex(4)}"
    s3fs.S3FileSystem().call_s3("create_bucket", Bucket=bucket)
    s3fs.S3FileSystem().call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    address = f"s3://{bucket}/root"

    def machine(name: str) -> Path:
        monkeypatch.setenv("BESSEMER_CACHE", str(tmp_path / name))
        return open_root(address)

    root = machine("a")
    run(foundry / "foundry.toml", address, *STABLE)
    before = run_artifacts(open_run(root, None))
    row = next(row for row in before["sample"].table("documents").to_pylist() if "note-07" in row["origin"]["path"])
    traces = {"id": row["doc_id"], "digits": row["doc_id"].hex().encode()}
    traces |= {"digest": bytes.fromhex(digest_bytes(row["text"].encode()))}
    traces |= {"digest in digits": traces["digest"].hex().encode()}
    traces |= {f"line {number}": line.encode() for number, line in enumerate(row["text"].splitlines())}
    assert _traces(traces, object_store.objects(address)) == {*traces} - {"digits", "digest in digits"}
    machine("b")
    bessemer("data", "peek", "sample", "--root", address)
    machine("a")
    plan = json.loads(bessemer("data", "forget", "note-07", "--plan", "--root", address, "--json"))
    assert any("keeps earlier versions" in sentence for sentence in plan["retention"])
    command = [sys.executable, "-m", "flows.cli", "data", "forget", "note-07", "--root", address, "--yes", "--json"]
    store, manifest = ObjectStore(address), manifest_key("clean", before["clean"].identity)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while store.exists(manifest):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert store.exists(f"{FORGOTTEN}/{PENDING}")
    assert store.exists(manifest_key("evaluate", before["evaluate"].identity))

    root = machine("b")
    certificate, salt = certificate_and_salt(bessemer("data", "forget", "--root", address, "--yes", "--json"))
    assert certificate["commitments"] == [commitment(salt, row["text"])]
    after = open_run(root, certificate["after"])
    trained, expected = run_artifacts(after)["train"], from_scratch(root, after, tmp_path)
    assert resumed_at(trained) == plan["replay"]["step"]
    exact = [record for record in trained.records if not is_of_clocks(record.name)]
    assert {record.name: record.digest for record in exact} == {record.name: expected[record.name] for record in exact}
    for name in ("b", "a"):
        machine(name)
        bessemer("store", "verify", "--root", address)
    # What a certificate names: the recipe lists ids, Prefect's database has the recipe, `inputs.json` files of sources.
    new = [run["run_id"] for run in list_runs(root) if run["run_id"] != certificate["before"]]
    named = (run_artifacts(after)["sample"].identity, "/service/prefect/", "/inputs.json", *new)
    places = object_store.objects(address)
    for name in ("b", "a"):
        places |= object_store.files(tmp_path / name)
    assert _traces({"salt": salt.encode()}, places) == set()
    assert _traces(traces, places) == {"digits", "digest in digits"}
    unnamed = {place: data for place, data in places.items() if not any(one in place for one in named)}
    assert _traces(traces, unnamed) == set()


def _traces(traces: dict[str, bytes], places: dict[str, bytes]) -> set[str]:
    """Return the names of the traces that some place holds."""
    return {name for name, trace in traces.items() if any(trace in data for data in places.values())}


def _words(root: Path) -> list[str] | None:
    """Return the arguments of the next call: none where a removal has begun; None where it has ended."""
    if (root / FORGOTTEN / PENDING).exists():
        return []
    return None if list((root / FORGOTTEN).glob("*.html")) else ["note-07"]


def _kill_after(seconds: float, root: Path) -> None:
    """Begin the removal or go on with it, and kill the process after some time."""
    words = _words(root)
    if words is None:
        return
    command = [sys.executable, "-m", "flows.cli", "data", "forget", *words, "--root", str(root), "--yes", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def _folders(root: Path) -> dict[str, int]:
    """Return how many artifacts of each stage are left."""
    return {stage.name: len(list(stage.iterdir())) for stage in sorted((root / "artifacts").iterdir())}
