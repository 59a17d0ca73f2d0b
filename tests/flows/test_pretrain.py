"""The whole pipeline on the small corpus, through the command and a real Prefect server."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from flows.recipe.stages import STAGES
from flows.runs.lineage import run_artifacts
from tasks.artifacts.artifact import Artifact
from tests.command import SECONDS, bessemer, invoke, words
from tests.model.forked_trainers import stages_fork_trainers

# All runs but the first: a server of its own takes as long as a whole run.
pytestmark = pytest.mark.usefixtures("shared_server")

SECRET = "planted-c0ffee-and-nobody-s"
SECRETS = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PREFECT_API_KEY", "WANDB_API_KEY"), SECRET)
"""What the environment of a run keeps secret."""

NO_DATA_READ = """
import sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
from flows.cli import main
try:
    main()
finally:
    with open({log!r}, "w") as stream:
        stream.write("\\n".join(opened))
"""


def run(recipe: Path, root: Path, *arguments: str) -> dict[str, Any]:
    """The record of a run within this process: a process of its own imports for longer than such a run takes."""
    return json.loads(invoke("run", recipe, "--root", root, "--json", *arguments).stdout)


def outcomes(record: dict[str, Any]) -> list[str]:
    return [f"{entry['stage']} {entry['outcome']}" for entry in record["stages"]]


@pytest.fixture(scope="module")
def recipe(foundry: Path) -> Path:
    """The small recipe for trainers that may be forks: the supervisor and the imports of one take 2 s."""
    path = foundry / "one_thread.toml"
    path.write_text(f"{(foundry / 'foundry.toml').read_text()}threads = 1\n")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def first(recipe: Path, root: Path) -> dict[str, Any]:
    """A run by a command of its own, with a private server, whose environment has secrets."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")} | SECRETS
    command = words("run", recipe, "--root", root, "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def artifacts(first: dict[str, Any]) -> dict[str, Artifact]:
    return run_artifacts(first)


def document_named(artifacts: dict[str, Artifact], name: str) -> str:
    documents = artifacts["sample"].table("documents")
    paths = pc.struct_field(documents.column("origin"), "path").to_pylist()
    return documents.column("doc_id")[paths.index(name)].as_py().hex()


def why(artifacts: dict[str, Artifact], root: Path, first: dict[str, Any], name: str) -> dict[str, Any]:
    asked = ("data", "history", document_named(artifacts, name), "--root", root, "--run", first["run_id"], "--json")
    reported = json.loads(invoke(*asked).stdout)
    (life,) = reported["documents"]
    return life


def test_no_file_of_a_run_holds_what_the_environment_keeps_secret(first: dict[str, Any], root: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert Path(first["page"]) in files
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_every_stage_leaves_an_artifact_and_the_run_a_page(
    first: dict[str, Any], artifacts: dict[str, Artifact]
) -> None:
    assert outcomes(first) == [f"{stage} built" for stage in STAGES]
    assert first["state"] == "completed"
    assert all(artifact.verify() == [] for artifact in artifacts.values())
    assert "<html" in Path(first["page"]).read_text()


def test_again_reuses_every_stage_and_reads_no_data(
    first: dict[str, Any], recipe: Path, root: Path, tmp_path: Path
) -> None:
    log = tmp_path / "opened"
    script = NO_DATA_READ.format(log=str(log))
    command = [sys.executable, "-c", script, "run", str(recipe), "--root", str(root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert outcomes(json.loads(done.stdout)) == [f"{stage} reused" for stage in STAGES]
    opened = log.read_text().splitlines()
    assert any(path.endswith("manifest.json") for path in opened)
    data = [path for path in opened if str(root / "artifacts") in path and not path.endswith("manifest.json")]
    sources = [path for path in opened if str(recipe.parent) in path and not path.endswith(".toml")]
    assert (data, sources) == ([], [])


@pytest.mark.usefixtures("forked_trainers")
def test_one_dedup_setting_runs_dedup_and_what_truly_changed_after_it(
    first: dict[str, Any], recipe: Path, root: Path
) -> None:
    changed = run(recipe, root, "--set", "dedup.threshold=0.999")
    assert outcomes(changed)[:2] == ["sample reused", "clean reused"]
    assert outcomes(changed)[2:] == [f"{stage} built" for stage in STAGES[2:]]
    (cause,) = [entry["cause"] for entry in changed["stages"] if entry["stage"] == "dedup"]
    assert cause == "params.threshold: 0.8 -> 0.999"


def test_a_setting_without_effect_stops_the_wave_at_its_own_stage(
    first: dict[str, Any], recipe: Path, root: Path
) -> None:
    changed = run(recipe, root, "--set", "clean.limits.gopher_words_max=99999")
    assert outcomes(changed) == ["sample reused", "clean built", *(f"{stage} reused" for stage in STAGES[2:])]


def test_only_and_from_and_force(first: dict[str, Any], recipe: Path, root: Path) -> None:
    assert outcomes(run(recipe, root, "--only", "dedup", "--force")) == [
        "sample reused",
        "clean reused",
        "dedup reproduced",
    ]
    assert outcomes(run(recipe, root, "--until", "clean")) == ["sample reused", "clean reused"]
    reported = " ".join(invoke("data", "history", "note-05.txt", "--root", root).stdout.split())
    assert "this run did not train; the latest that did: bessemer data history note-05.txt --run 20" in reported
    missing = invoke("run", recipe, "--root", root, "--from", "vocab", "--set", "seed=8", code=3)
    assert "sample: this run may only build" in missing.stderr
    assert "params.seed: 7 -> 8" in missing.stderr


def test_a_run_is_among_the_bases(recipe: Path, root: Path, first: dict[str, Any]) -> None:
    folder = root / "runs" / first["run_id"]
    reported = invoke("data", "tokenizers", recipe, folder, "--score-bytes", "500", "--json")
    (line,) = json.loads(reported.stdout)
    assert line["path"] == str(folder)
    assert line["scored_bytes"] in range(497, 501)
    assert 0 < line["bits_per_byte"] < 16


def test_why_says_a_dropped_a_duplicate_a_cut_and_a_trained_document(
    artifacts: dict[str, Artifact], root: Path, first: dict[str, Any]
) -> None:
    assert why(artifacts, root, first, "short.txt")["outcome"] == "dropped in clean by rule `kind_words`"

    twins = [why(artifacts, root, first, "original.txt"), why(artifacts, root, first, "twin.txt")]
    (dropped,) = [life for life in twins if life["outcome"] == "dropped in dedup by rule `exact_duplicate`"]
    (kept,) = [life for life in twins if life is not dropped]
    assert dropped["events"][-1]["evidence"]["survivor"] == kept["doc_id"]

    near = why(artifacts, root, first, "near-twin.txt")
    assert near["outcome"] == "dropped in dedup by rule `near_duplicate`"
    assert near["events"][-1]["evidence"]["survivor"] == document_named(artifacts, "near-twin-longer.txt")
    assert 0.8 <= near["events"][-1]["value"] < 1.0

    cut = why(artifacts, root, first, "leak.txt")
    (leak,) = [event for event in cut["events"] if event["what"] == "leak"]
    assert (leak["benchmark"], leak["item_id"]) == ("cloze", "leaked")
    assert any(event["what"] == "cut" for event in cut["events"])

    trained = [event for event in cut["events"] if event["what"] == "trained"]
    assert trained
    assert trained[0]["steps"]
    assert cut["outcome"].startswith("trained in ")


def test_leaks_names_every_item(artifacts: dict[str, Artifact], root: Path, first: dict[str, Any]) -> None:
    at = ("--root", root, "--run", first["run_id"])
    reported = json.loads(invoke("data", "leaks", *at, "--json").stdout)
    (counts,) = reported["benchmarks"]
    assert (counts["benchmark"], counts["items"], counts["leaked"]) == ("cloze", 3, 1)
    assert {item["item_id"]: item["state"] for item in reported["items"]} == {
        "leaked": "leaked",
        "clean": "clean",
        "clean-too": "clean",
    }
    (leak,) = next(item["leaks"] for item in reported["items"] if item["state"] == "leaked")
    assert (leak["path"], leak["doc_id"]) == ("leak.txt", document_named(artifacts, "leak.txt"))
    one_by_one = invoke("data", "leaks", "cloze", "--state", "clean", *at).stdout
    assert one_by_one.split() == ["clean", "cloze", "clean", "clean", "cloze", "clean-too", "2", "clean"]
    assert "cloze" in invoke("data", "leaks", *at).stdout
    unknown = invoke("data", "leaks", "mmlu", *at, code=None)
    assert unknown.exit_code == 3
    assert "the run checked no benchmark of this name; it checked cloze" in unknown.stderr
    assert invoke("data", "leaks", "--state", "dirty", *at, code=None).exit_code == 2


def test_why_takes_the_name_that_step_and_leaks_give_a_piece(
    artifacts: dict[str, Artifact], root: Path, first: dict[str, Any]
) -> None:
    piece = document_named(artifacts, "leak.txt")[:12] + "/1"
    reported = json.loads(invoke("data", "history", piece, "--root", root, "--run", first["run_id"], "--json").stdout)
    assert [life["path"] for life in reported["documents"]] == ["leak.txt"]


def test_why_says_a_reject_and_an_unknown_document(root: Path, first: dict[str, Any]) -> None:
    (reject,) = json.loads(
        invoke("data", "history", "broken.txt", "--root", root, "--run", first["run_id"], "--json").stdout
    )["rejects"]
    assert reject["byte"] == len(b"A cast of ")
    unknown = invoke("data", "history", "nobody.txt", "--root", root, code=None)
    assert unknown.exit_code == 3
    assert "sampled no document of this id or path" in unknown.stderr


def test_step_names_documents_whose_texts_agree_with_the_tokens(
    artifacts: dict[str, Artifact], root: Path, first: dict[str, Any]
) -> None:
    reported = json.loads(invoke("data", "step", first["run_id"], "3", "--root", root, "--json").stdout)
    assert reported["rows"] == 8
    assert {"notes", "code"} >= {document["source"] for document in reported["documents"]}
    assert all(document["text"] and document["tokens"] > 0 for document in reported["documents"])
    # A trained document's own list of steps and the step's list of documents must agree.
    doc_id = reported["documents"][0]["doc_id"]
    life = json.loads(invoke("data", "history", doc_id, "--root", root, "--run", first["run_id"], "--json").stdout)[
        "documents"
    ][0]
    assert 3 in life["events"][-1]["steps"]


def test_conservation_recounted_from_the_tables(artifacts: dict[str, Artifact], first: dict[str, Any]) -> None:
    """read = rejected + not selected + dropped + held out + packed; trained = sum over STEPS."""
    sample = artifacts["sample"].report.total()
    read = sample.documents_in
    rejected = artifacts["sample"].rows("rejects")
    ledgers = [artifacts[stage].table("ledger").to_pylist() for stage in ("clean", "dedup", "decontaminate")]
    dropped = {row["doc_id"] for rows in ledgers for row in rows if row["action"] == "drop" and row["piece"] == 0}
    held_out = set(artifacts["decontaminate"].table("heldout").column("doc_id").to_pylist())
    packed = set(artifacts["chunk"].table("spans").column("doc_id").to_pylist())
    assert dropped.isdisjoint(packed)
    assert held_out.isdisjoint(packed)
    assert read == rejected + sample.not_selected + len(dropped) + len(held_out) + len(packed)

    order = artifacts["chunk"].rows("order")
    steps = artifacts["train"].table("steps").to_pylist()
    assert sum(step["pos_end"] - step["pos_start"] for step in steps) == order
    assert all(step["applied"] for step in steps)
    reported = artifacts["train"].table("metrics").column("tokens").to_pylist()
    assert reported[-1] == artifacts["chunk"].report.facts["order"]["tokens"]


def test_every_item_has_a_leak_state(artifacts: dict[str, Artifact], first: dict[str, Any]) -> None:
    leaks = artifacts["decontaminate"].table("leaks").to_pylist()
    states = Counter((leak["item_id"], leak["state"]) for leak in leaks)
    assert set(states) == {("leaked", "leaked"), ("clean", "clean"), ("clean-too", "clean")}
    texts = "\n".join(artifacts["decontaminate"].table("documents").column("text").to_pylist())
    leaked = artifacts["decontaminate"].table("items").filter(pc.field("item_id") == "leaked").to_pylist()[0]
    assert " ".join(leaked["match_text"].split()[20:40]) not in " ".join(texts.split())


def test_generate_writes_the_same_text_for_the_same_seed(root: Path, first: dict[str, Any]) -> None:
    asked = ("model", "generate", "latest", "--root", root, "--prompt", "The blast", "--tokens", "12", "--seed", "3")
    text = invoke(*asked).stdout
    assert text.startswith("The blast")
    assert bessemer(*asked).stdout == text
    (folder,) = [entry["path"] for entry in first["stages"] if entry["stage"] == "train"]
    assert invoke("model", "generate", folder, *asked[3:]).stdout == text
    other = invoke("model", "generate", Path(folder).parents[1] / "vocab", "--root", root, code=None)
    assert other.exit_code == 3


def test_ls_and_report(root: Path, first: dict[str, Any]) -> None:
    listed = json.loads(invoke("runs", "list", "--root", root, "--json").stdout)
    assert listed[0]["run_id"] == first["run_id"]
    page = Path(json.loads(invoke("runs", "report", first["run_id"], "--root", root, "--json").stdout)["page"])
    assert page.exists()


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (("dedup.bnads=3",), 2, "dedup.bnads: unknown key; did you mean `bands`?"),
        (("sources.notes.weight=-1",), 2, "weight"),
        (("sources.notes.paths=/no/such/folder",), 3, "/no/such/folder"),
        (("vocab.vocab_size=200000", "train.model.vocab_size=200000"), 3, "vocab_size"),
    ],
)
def test_bad_input_ends_with_its_exit_code_and_a_clear_message(
    recipe: Path, root: Path, first: dict[str, Any], settings: tuple[str, ...], code: int, message: str
) -> None:
    changed = [word for setting in settings for word in ("--set", setting)]
    done = invoke("run", recipe, "--root", root, *changed, code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_text_of_which_nothing_is_left_is_reported_by_the_stage_that_dropped_it(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(5):
        (tmp_path / "texts" / f"{number}.txt").write_text("Too short.\n")
    recipe = tmp_path / "five.toml"
    recipe.write_text(
        'name = "five"\nbudget_tokens = "10K"\n[[sources]]\nname = "texts"\npaths = ["{recipe}/texts"]\nweight = 1.0\n'
    )
    done = invoke("run", recipe, "--root", tmp_path / "root", code=4)
    assert "clean: all 5 documents would be dropped, most by `kind_words` (5)" in done.stderr


def test_an_interrupted_run_says_so_and_the_next_one_goes_on(
    recipe: Path, artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    for stage in STAGES[: STAGES.index("train")]:
        build = artifacts[stage].path
        shutil.copytree(build, tmp_path / "artifacts" / stage / build.name)
    command = words("run", recipe, "--root", tmp_path, "--json")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0)
    deadline = time.monotonic() + SECONDS
    while not list(tmp_path.glob("work/*/scratch/train/checkpoints/step-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does
    _, reported = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, reported
    assert "finished parts and checkpoints are kept" in reported
    (record,) = json.loads(invoke("runs", "list", "--root", tmp_path, "--json").stdout)
    assert record["state"] == "interrupted"
    assert outcomes(record)[-1] == "train interrupted"
    with stages_fork_trainers():
        again = run(recipe, tmp_path)
    assert outcomes(again)[-2:] == ["train built", "evaluate built"]
    (entry,) = [entry for entry in again["stages"] if entry["stage"] == "train"]
    assert json.loads((Path(entry["path"]) / "manifest.json").read_text())["timings"]["resumed"]


def test_a_root_that_cannot_be_written_is_reported(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = invoke("run", recipe, "--root", tmp_path / "file" / "root", code=3)
    assert "choose a folder of yours with --root" in done.stderr


def test_a_fault_of_the_program_shows_where_it_is_and_exits_as_help_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.runs.record.list_runs", lambda root: 1 / 0)
    assert "Traceback" in invoke("runs", "list", "--root", tmp_path, code=70).stderr
    assert "70 a bug." in " ".join(invoke("run", "--help").stdout.split())


def test_help_answers_at_once_and_teaches() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "flows.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ("run", "plan", "runs", "data", "model", "demo"))
    assert not re.search(r"\|\s+(torch|prefect|numba|pyarrow|pydantic)$", done.stderr, re.MULTILINE)
