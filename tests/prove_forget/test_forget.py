"""A model that forgets: equal by hash to a training in an empty root, in another process, without the documents.

Of the run before, that training gets the recipe that the removal wrote, and files with the kept aggregates alone.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import s3fs

from flows.removal.carry_out import PENDING
from flows.removal.certificate import FOLDER, commitment
from flows.runs.lineage import open_run, run_artifacts
from flows.runs.record import list_runs
from flows.runs.roots import open_root
from model.checkpoint.weights import load_model
from model.digests import digest_bytes
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.manifest import MANIFEST
from tasks.artifacts.remote.artifacts import manifest_key
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.artifacts.tables.files import read_table
from tasks.tokenizer.open import open_tokenizer

SETTINGS = ("chunk.packing=stable", "train.lasting_checkpoints=9", "train.validation_steps=0")
FROM_THE_START = ("train.lasting_checkpoints=9", "train.validation_steps=0")
OTHERS = {
    "bert": (*FROM_THE_START, "train.model.architecture=bert"),
    "t5": (*FROM_THE_START, "train.model.architecture=t5"),
    "zero-1": (*SETTINGS, "train.engine=deepspeed", "train.zero_stage=1", "train.ranks=2"),
}
"""Only a GPT has a stable order; the others train again from the start."""
AGGREGATES: dict[str, tuple[str, ...] | None] = {
    "sample": (),
    "clean": ("quality",),
    "decontaminate": ("rarity", "heldout_draw"),
    "vocab": None,
    "chunk": ("seats",),
}
"""Tables that are copied of each stage besides its manifest; None for all."""
CLOCKS = ("events", "perf", "COMPLETE", "state.json", "reproduction.json", "packages.lock")
LEARNING = ("budget_tokens=120K", "train.model.width=64", "train.optimizer.kind=muon", "train.schedule.peak_lr=0.015")
"""With which the small network learns a number by heart that it reads 64 times."""
WINDOW = 50
SECONDS = 500.0
KILLS = 8

pytestmark = pytest.mark.prove_forget


def python(*words: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=SECONDS, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def bessemer(*words: str | Path) -> str:
    return python("-m", "flows.cli", *words)


@pytest.fixture(scope="module")
def base(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a run of the small recipe."""
    root = tmp_path_factory.mktemp("base")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    bessemer("run", foundry / "foundry.toml", "--root", root, "--json", *settings)
    return root


def one_document(_: dict[str, Artifact]) -> list[str]:
    return ["note-07"]


def ten_documents(_: dict[str, Artifact]) -> list[str]:
    return ["note-1"]


def a_file(_: dict[str, Artifact]) -> list[str]:
    return ["--file", "note-20.txt"]


def a_source(_: dict[str, Artifact]) -> list[str]:
    return ["--source", "notes"]


def near_duplicates(_: dict[str, Artifact]) -> list[str]:
    return ["near-twin-longer"]


def promoted_near_duplicates(_: dict[str, Artifact]) -> list[str]:
    return ["near-twin-longer", "--promote"]


def a_heldout_document(artifacts: dict[str, Artifact]) -> list[str]:
    return [artifacts["decontaminate"].table("heldout").column("doc_id")[0].as_py().hex()]


def refilled(_: dict[str, Artifact]) -> list[str]:
    return ["note-07", "--refill"]


REQUESTS = [
    one_document,
    ten_documents,
    a_file,
    a_source,
    near_duplicates,
    promoted_near_duplicates,
    a_heldout_document,
    refilled,
]


@pytest.mark.parametrize("request_of", REQUESTS, ids=lambda request_of: request_of.__name__)
def test_the_model_is_as_if_the_documents_had_never_been_there(
    base: Path, tmp_path: Path, request_of: Callable[[dict[str, Artifact]], list[str]]
) -> None:
    root = tmp_path / "root"
    shutil.copytree(base, root)
    _move_records(root, base)
    _forgets(root, request_of(run_artifacts(open_run(root, None))), tmp_path)


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_other_networks_and_engines_forget_a_document(foundry: Path, tmp_path: Path, settings: tuple[str, ...]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    bessemer("run", foundry / "foundry.toml", "--root", tmp_path / "root", "--json", *words)
    _forgets(tmp_path / "root", ["note-07"], tmp_path)


def _forgets(root: Path, words: list[str], tmp_path: Path) -> None:
    """Forget what `words` name, and compare with a training from the start."""
    before = run_artifacts(open_run(root, None))
    texts = {row["doc_id"].hex(): row["text"] for row in before["sample"].table("documents").to_pylist()}
    plan = json.loads(bessemer("data", "forget", *words, "--plan", "--root", root, "--json"))
    leaving = {*plan["leaving"]["requested"], *(plan["leaving"]["duplicates"] if "--promote" not in words else ())}
    said = bessemer("data", "forget", *words, "--root", root, "--json")
    certificate, salt = _certificate_and_salt(said)
    after = open_run(root, None)
    trained = run_artifacts(after)["train"]

    expected = _from_scratch(root, after, tmp_path)
    exact = {record.name for record in trained.records if not any(clock in record.name for clock in CLOCKS)}
    assert {"model.safetensors", "metrics.arrow", "steps.arrow"} <= exact
    assert len({name.partition(".")[0] for name in exact if "optimizer" in name}) == 9
    assert {record.name: record.digest for record in trained.records if record.name in exact} == {
        name: expected[name] for name in exact
    }
    assert _resumed_at(trained) == plan["replay"]["step"]
    assert certificate["model"] == trained.content
    assert set(certificate["commitments"]) == {commitment(salt, texts[one]) for one in leaving}
    # Passages of benchmarks that a document held are in the benchmarks' own files, too.
    items = run_artifacts(after)["decontaminate"].table("items")
    others = [texts[one] for one in texts if one not in leaving] + items.column("match_text").to_pylist()
    assert not _found(root, [texts[one] for one in leaving], others)
    bessemer("store", "verify", "--root", root)


def test_a_source_that_may_leave_costs_a_tenth_of_the_training(foundry: Path, tmp_path: Path) -> None:
    settings = (*SETTINGS, "sources.notes.may_leave=true", "sources.notes.weight=0.05", "sources.code.weight=0.95")
    words = [word for setting in settings for word in ("--set", setting)]
    bessemer("run", foundry / "foundry.toml", "--root", tmp_path, "--json", *words)
    replay = json.loads(bessemer("data", "forget", "--source", "notes", "--plan", "--root", tmp_path, "--json"))[
        "replay"
    ]
    steps = replay["steps"]
    assert replay["step"] >= 0.88 * steps - steps / 9, replay
    bessemer("data", "forget", "--source", "notes", "--root", tmp_path, "--json")
    assert _resumed_at(run_artifacts(open_run(tmp_path, None))["train"]) == replay["step"]
    bessemer("store", "verify", "--root", tmp_path)


def test_nothing_of_planted_secrets_is_left_in_the_model(foundry: Path, tmp_path: Path) -> None:
    """32 secrets, each in 1 to 64 documents: afterwards as likely, to the bit, as to a model that never read them."""
    codes = [f"{one * 7919 % 9973:04d}-{one * 6007 % 9967:04d}" for one in range(32)]
    secrets = [f"The code of vessel {one:02d} is {code}." for one, code in enumerate(codes)]
    others = [f"The code of vessel {one:02d} is {codes[one - 1]}." for one in range(32)]
    copies = [2 ** (one % 7) for one in range(32)]
    recipe, root = _with_secrets(foundry, tmp_path, secrets, copies), tmp_path / "root"
    settings = [word for setting in (*SETTINGS, *LEARNING) for word in ("--set", setting)]
    bessemer("run", recipe, "--root", root, "--json", *settings)
    before = _nats(root, secrets)
    learned = [wrong - right for wrong, right in zip(_nats(root, others), before, strict=True)]
    assert np.mean([nats for nats, count in zip(learned, copies, strict=True) if count == 64]) > 3, "in 64 documents"

    bessemer("data", "forget", "--source", "secrets", "--root", root, "--json")
    after = _nats(root, secrets)
    _from_scratch(root, open_run(root, None), tmp_path)
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


def test_a_removal_that_is_killed_again_and_again_ends_like_another(base: Path, tmp_path: Path) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    for root in (calm, killed):
        shutil.copytree(base, root)
        _move_records(root, base)
    began = time.monotonic()
    bessemer("data", "forget", "note-07", "--root", calm, "--json")
    seconds = time.monotonic() - began
    moments = np.random.Generator(np.random.Philox(7)).uniform(0, seconds, KILLS)
    for moment in sorted(moments.tolist()):
        _kill_after(moment, killed)
    said = bessemer("data", "forget", *_words(killed), "--root", killed, "--json") if _words(killed) is not None else ""
    expected, found = (run_artifacts(open_run(root, None)) for root in (calm, killed))
    assert {stage: one.content for stage, one in found.items()} == {
        stage: one.content for stage, one in expected.items()
    }
    assert len(list((killed / FOLDER).glob("*.json"))) == 1, said
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

    root, settings = machine("a"), [word for setting in SETTINGS for word in ("--set", setting)]
    bessemer("run", foundry / "foundry.toml", "--root", address, "--json", *settings)
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
    command = [sys.executable, "-m", "flows.cli", "data", "forget", "note-07", "--root", address, "--json"]
    store, manifest = ObjectStore(address), manifest_key("clean", before["clean"].identity)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while store.exists(manifest):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert store.exists(f"{FOLDER}/{PENDING}")
    assert store.exists(manifest_key("evaluate", before["evaluate"].identity))

    root = machine("b")
    certificate, salt = _certificate_and_salt(bessemer("data", "forget", "--root", address, "--json"))
    assert certificate["commitments"] == [commitment(salt, row["text"])]
    after = open_run(root, certificate["after"])
    trained, expected = run_artifacts(after)["train"], _from_scratch(root, after, tmp_path)
    assert _resumed_at(trained) == plan["replay"]["step"]
    exact = [record for record in trained.records if not any(clock in record.name for clock in CLOCKS)]
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
    if (root / FOLDER / PENDING).exists():
        return []
    return None if list((root / FOLDER).glob("*.html")) else ["note-07"]


def _kill_after(seconds: float, root: Path) -> None:
    """Begin the removal or go on with it, and kill the process after some time."""
    words = _words(root)
    if words is None:
        return
    command = [sys.executable, "-m", "flows.cli", "data", "forget", *words, "--root", str(root), "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def _folders(root: Path) -> dict[str, int]:
    """Return how many artifacts of each stage are left."""
    return {stage.name: len(list(stage.iterdir())) for stage in sorted((root / "artifacts").iterdir())}


def _move_records(root: Path, old: Path) -> None:
    """Name the artifacts of a copied root in its records."""
    from model.checksummed_json import write_sealed
    from tasks.artifacts.remote.metadata import read_record

    for path in (root / "runs").glob("*/run.json"):
        record = read_record(path)
        moved = json.loads(json.dumps(record).replace(str(old), str(root)))
        write_sealed(path, moved)


def _certificate_and_salt(said: str) -> tuple[dict[str, Any], str]:
    end = json.loads(said[said.rindex("{\n") :])
    return json.loads(Path(end["certificate"]).read_text()), end["salt"]


def _from_scratch(root: Path, after: dict[str, Any], folder: Path) -> dict[str, str]:
    kept = folder / "kept"
    for stage, tables in AGGREGATES.items():
        path = next(Path(entry["path"]) for entry in after["stages"] if entry["stage"] == stage)
        (kept / stage).mkdir(parents=True)
        names = [file.name for file in Artifact.open(path).records if tables is None or file.table in tables]
        for file in (path / MANIFEST, *map(Artifact.open(path).file, names)):
            shutil.copy(file, kept / stage / file.name)
    recipe = shutil.copy(root / "runs" / after["run_id"] / "recipe.json", folder / "recipe.json")
    said = python(Path(__file__).with_name("from_scratch.py"), recipe, kept, folder / "scratch")
    return json.loads(said.splitlines()[-1])


def _resumed_at(trained: Artifact) -> int:
    events = trained.table("events")
    steps = events.filter(pc.equal(events.column("kind"), "resume")).column("step").to_pylist()
    return steps[-1] if steps else 0


def _found(root: Path, gone: list[str], others: list[str]) -> list[str]:
    """Return the passages of removed texts, in no other document, that are still in a file or a row under the root."""
    rest = "\n".join(others).encode()
    probes = {
        text.encode()[begin : begin + WINDOW] for text in gone for begin in range(0, len(text.encode()) - WINDOW, 10)
    }
    own = [probe for probe in probes if probe not in rest]
    everything = b"\n".join(_bytes_of(path) for path in sorted(root.rglob("*")) if path.is_file())
    tokenizer = open_tokenizer(run_artifacts(open_run(root, None))["vocab"])
    for path in (root / "artifacts" / "chunk").glob("*/*sequences*"):
        for row in read_table(path).column("tokens").to_pylist():
            everything += tokenizer.decode_bytes([token for token in row if token not in tokenizer.special])
    return [probe.decode(errors="replace") for probe in own if probe in everything]


def _bytes_of(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".arrow":
        return data
    table = read_table(path)
    return b"\n".join(_texts_of(column.combine_chunks()) for column in table.columns)


def _texts_of(column: pa.Array) -> bytes:
    if pa.types.is_dictionary(column.type):
        return _texts_of(column.dictionary)
    if pa.types.is_struct(column.type):
        return b"\n".join(_texts_of(child) for child in column.flatten())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return "\n".join(text or "" for text in column.to_pylist()).encode()
    return b""
