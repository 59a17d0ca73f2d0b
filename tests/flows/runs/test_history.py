"""A run with nothing to build: answered without a server, as a line of the history that belongs to an earlier run."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.runs.lineage import open_run
from flows.runs.record import HISTORY, RECORD, list_history, list_runs, warn_once
from flows.upkeep.gc import plan as plan_collection
from flows.upkeep.root_records import record_problem
from model.checksummed_json import append_sealed_line, write_sealed
from model.errors import IntegrityError
from tests.command import invoke

PROGRAM = """
import sys
from flows.cli import main
try:
    main()
finally:
    print([name for name in HEAVY if name in sys.modules], file=sys.stderr)
"""
HEAVY = ("prefect", "torch", "numba", "pandas")
MOST_SECONDS = 2.5
"""Processor time of an answer: 1.2 s when the machine is idle."""


def bessemer(*words: object, loaded: str = "[]", heavy: tuple[str, ...] = HEAVY) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"HEAVY = {heavy}{PROGRAM}", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == loaded, done.stderr
    return done


@pytest.fixture(scope="module")
def again(foundry: Path, three_stages_built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A root whose first three artifacts exist, and the records of three runs of them."""
    root = tmp_path_factory.mktemp("again") / "root"
    shutil.copytree(three_stages_built, root)
    words = ("run", foundry / "foundry.toml", "--root", root, "--until", "dedup", "--json")
    bessemer(*words, loaded="['numba', 'pandas']")  # Writes a page, and fingerprints the code of all stages.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    second = json.loads(bessemer(*words).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    third = json.loads(bessemer(*words).stdout)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"root": root, "second": second, "third": third, "seconds": seconds, "words": words}


def test_the_first_run_without_work_has_a_folder_and_the_next_ones_a_line_each(again: dict[str, Any]) -> None:
    root, second, third = again["root"], again["second"], again["third"]
    (folder,) = (path.parent for path in (root / "runs").glob(f"*/{RECORD}"))
    (first,) = list_runs(root)
    assert first["run_id"] == folder.name
    assert Path(first["page"]).is_file()
    assert [line["run_id"] for line in list_history(root)] == [second["run_id"], third["run_id"]]
    for line in list_history(root):
        assert (line["same_as"], line["page"], line["state"]) == (first["run_id"], first["page"], "completed")
        assert [entry["outcome"] for entry in line["stages"]] == ["reused"] * 3
        assert [entry["content"] for entry in line["stages"]] == [entry["content"] for entry in first["stages"]]
    assert second["findings"]["funnel"]


def test_it_takes_little_processor_time(again: dict[str, Any]) -> None:
    assert again["seconds"] < MOST_SECONDS


def test_it_says_so_and_which_run_it_is_the_same_as(again: dict[str, Any]) -> None:
    done = bessemer(*again["words"][:-1])
    (first,) = list_runs(again["root"])
    assert f"nothing needed building: every stage is as in run {first['run_id']}" in done.stderr
    assert first["page"] in done.stdout


def test_a_price_of_an_hour_gives_a_run_without_work_a_page_with_its_cost(two_runs: Path, foundry: Path) -> None:
    words = ("run", foundry / "foundry.toml", "--root", two_runs, "--until", "dedup", "--json", "--hour-price", 7200)
    priced = json.loads(invoke(*words).stdout)
    assert priced["findings"]["cost"]["money"] == pytest.approx(2 * priced["findings"]["cost"]["seconds"])
    assert "at 7200 an hour" in Path(priced["page"]).read_text()
    assert json.loads(invoke(*words).stdout)["same_as"] == priced["run_id"], "its page has this price"


def test_runs_list_shows_the_lines_and_their_ids_open_the_earlier_run(again: dict[str, Any]) -> None:
    root, second = again["root"], again["second"]
    listed = json.loads(bessemer("runs", "list", "--root", root, "--json").stdout)
    (first,) = list_runs(root)
    assert [run["run_id"] for run in listed][:2] == [first["run_id"], second["run_id"]]
    assert [run["run_id"] for run in listed] == sorted(run["run_id"] for run in listed)
    assert f"3 reused, as {first['run_id'].partition('-')[0]}" in bessemer("runs", "list", "--root", root).stdout
    for named in (None, "latest", second["run_id"]):
        assert open_run(root, named)["run_id"] == first["run_id"]


SEVERAL = """
import json, sys
from typer.testing import CliRunner
from flows.cli import app
for words, allowed in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    loaded = {name for name in HEAVY if name in sys.modules}
    assert loaded <= {*allowed}, (words, loaded)
"""


def test_commands_about_data_load_no_torch_and_no_prefect(again: dict[str, Any], foundry: Path, tmp_path: Path) -> None:
    """One after the other in one process, where what one has loaded stays."""
    recipe, root = str(foundry / "foundry.toml"), ["--root", str(again["root"])]
    commands = [
        (["runs", "list", *root], []),
        (["data", "history", "note-01", *root], []),
        (["plan", recipe, *root], []),
        (["init", str(foundry / "notes"), "--force", "--output", str(tmp_path / "recipe.toml")], []),
        (["data", "peek", "clean", "-n", "1", *root], ["numba"]),
        (["check", recipe, *root], ["numba", "pandas"]),  # pyarrow may load pandas to make arrays
    ]
    program = [sys.executable, "-c", f"HEAVY = {HEAVY}{SEVERAL}", json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_list_of_runs_loads_no_arrays_and_a_history_pyarrow_alone(again: dict[str, Any]) -> None:
    heavy = (*HEAVY, "pyarrow", "numpy")
    bessemer("runs", "list", "--root", again["root"], heavy=heavy)
    heavy = (*HEAVY, "pyarrow.dataset", "pyarrow.parquet", "tasks.sample.discovery", "flows.recipe.schema")
    bessemer("data", "history", "note-01", "--root", again["root"], heavy=heavy)


@pytest.fixture
def two_runs(again: dict[str, Any], tmp_path: Path) -> Path:
    """A root in which an older run was repeated after a newer one."""
    root = tmp_path / "root"
    shutil.copytree(again["root"], root)
    (first,) = list_runs(root)
    (root / "runs" / HISTORY).unlink()
    newer = "2999" + first["run_id"][4:]
    (root / "runs" / newer).mkdir()
    write_sealed(root / "runs" / newer / RECORD, {**first, "run_id": newer})
    append_sealed_line(root / "runs" / HISTORY, {**again["second"], "run_id": "3000", "same_as": first["run_id"]})
    return root


def test_the_latest_run_and_those_that_gc_keeps_are_the_ones_that_were_used_last(two_runs: Path) -> None:
    older, newer = (run["run_id"] for run in list_runs(two_runs))
    assert open_run(two_runs, "latest")["run_id"] == older
    kept = plan_collection(two_runs, keep_last=1).kept_runs
    assert (kept, newer in kept) == ((older,), False)


def test_a_changed_byte_of_the_history_is_noticed_and_loses_no_run(two_runs: Path) -> None:
    file = two_runs / "runs" / HISTORY
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(bytes(data))
    assert "line 1" in (record_problem(file) or "")
    warn_once.cache_clear()
    assert list_history(two_runs) == []
    assert len(list_runs(two_runs)) == 2


def test_a_line_cut_off_by_a_kill_is_overwritten_and_a_damaged_end_is_not(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    append_sealed_line(file, {"n": 1})
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"n": 2, "dig')
    append_sealed_line(file, {"n": 3})
    assert file.read_bytes().startswith(whole)
    assert file.read_bytes().count(b"\n") == 2
    assert b'"n": 2' not in file.read_bytes()
    file.write_bytes(whole[:-1] + b"!")
    with pytest.raises(IntegrityError, match="Nothing was appended"):
        append_sealed_line(file, {"n": 4})
    assert file.read_bytes() == whole[:-1] + b"!"
