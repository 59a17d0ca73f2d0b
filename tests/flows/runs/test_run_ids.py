"""A run id is the name of a folder under `runs/`, whichever way it is given."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.models.load import find_source
from flows.recipe.load import load_recipe
from flows.runs.lineage import open_run
from flows.runs.record import check_run_id, list_runs, new_run_id
from flows.runs.run import Run
from model.checksummed_json import write_sealed
from model.errors import InputError


@pytest.mark.parametrize(
    "run_id", ["../../elsewhere", "/tmp/elsewhere", "..", ".hidden", "a/b", "a\\b", "-x", "a\n", "x" * 81]
)
def test_a_run_id_that_leads_elsewhere_makes_nothing(foundry: Path, tmp_path: Path, run_id: str) -> None:
    root = tmp_path / "deep" / "root"
    with pytest.raises(InputError, match="run id"):
        Run(load_recipe(foundry / "foundry.toml", root), root, run_id=run_id)
    assert list(tmp_path.iterdir()) == []


@given(st.text(min_size=1, max_size=30))
def test_a_run_id_that_is_taken_lies_under_the_runs(run_id: str) -> None:
    try:
        check_run_id(run_id)
    except InputError:
        return
    assert (Path("/root/runs") / run_id).resolve().parent == Path("/root/runs")


def test_what_is_made_from_the_time_is_taken() -> None:
    check_run_id(new_run_id())


def test_ids_of_the_same_second_differ_and_sort_by_time() -> None:
    made = [new_run_id() for _ in range(100)]
    assert made == sorted(set(made))


def test_the_latest_run_is_the_one_that_began_last_whatever_it_is_called(tmp_path: Path) -> None:
    for run_id, began in (("mine", 1.8e9), ("20271101T000000Z-abcdef", 1.825e9), ("early", 1.7e9)):
        entry = {"stage": "sample", "identity": "s", "path": "s"}
        record = {"run_id": run_id, "state": "completed", "started": began, "stages": [entry]}
        write_sealed(tmp_path / "runs" / run_id / "run.json", record)
    assert [run["run_id"] for run in list_runs(tmp_path)] == ["early", "mine", "20271101T000000Z-abcdef"]
    assert open_run(tmp_path, "latest")["run_id"] == "20271101T000000Z-abcdef"


def test_a_run_is_opened_by_its_id_though_another_id_begins_with_it(tmp_path: Path) -> None:
    for run_id in ("big", "bigger"):
        folder = tmp_path / "runs" / run_id
        folder.mkdir(parents=True)
        write_sealed(folder / "run.json", {"run_id": run_id, "state": "completed", "stages": []})
    assert [open_run(tmp_path, name)["run_id"] for name in ("big", "bigg")] == ["big", "bigger"]
    with pytest.raises(InputError, match="2 runs"):
        open_run(tmp_path, "bi")


def test_runs_that_have_what_is_asked_for_are_named_where_none_is_found(tmp_path: Path) -> None:
    made = {"1-sampled": ["sample"], "2-trained": ["sample", "train"], "3-tuned": ["finetune"], "4-failed": []}
    for run_id, stages in made.items():
        entries = [{"stage": stage, "identity": "s", "path": "s"} for stage in stages]
        record = {"run_id": run_id, "state": "completed", "started": float(run_id[0]), "stages": entries}
        write_sealed(tmp_path / "runs" / run_id / "run.json", record)
    with pytest.raises(InputError, match=r"no run .* `none`; the latest are 2-trained, 3-tuned$"):
        open_run(tmp_path, "none", needs="train")
    with pytest.raises(InputError, match=r"no run .* `none`; the latest are 1-sampled, 2-trained$"):
        open_run(tmp_path, "none")
    with pytest.raises(InputError, match=r"`none`; the latest are 1-sampled, 2-trained, 3-tuned, 4-failed$"):
        open_run(tmp_path, "none", needs="evaluate")


def test_a_folder_that_holds_no_model_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    with pytest.raises(InputError, match=r"base is no folder of a model, since it has neither config\.json nor"):
        find_source(tmp_path / "root", "base")
    with pytest.raises(InputError, match=r"^there is no folder none, and no run: .*root holds no run"):
        find_source(tmp_path / "root", "none")


def test_a_run_whose_model_is_gone_is_not_called_absent(tmp_path: Path) -> None:
    entry = {"stage": "train", "identity": "t", "path": str(tmp_path / "artifacts" / "train" / "t")}
    record = {"run_id": "mine", "state": "completed", "started": 1.8e9, "stages": [entry]}
    write_sealed(tmp_path / "runs" / "mine" / "run.json", record)
    with pytest.raises(InputError, match=rf"^{tmp_path}/artifacts/train/t no longer exists"):
        find_source(tmp_path, "mine")


def test_the_runs_that_are_counted_are_those_that_are_named(tmp_path: Path) -> None:
    for run_id, stages in {"2026-a": ["sample"], "2026-b": ["sample", "train"], "2026-c": []}.items():
        entries = [{"stage": stage, "identity": "s", "path": "s"} for stage in stages]
        record = {"run_id": run_id, "state": "completed", "started": 1.0, "stages": entries}
        write_sealed(tmp_path / "runs" / run_id / "run.json", record)
    with pytest.raises(InputError, match=r"^3 runs under .* begins `2026`: 2026-a, 2026-b, 2026-c$"):
        open_run(tmp_path, "2026", needs="train")
    with pytest.raises(
        InputError, match=r"^no run under .* begins `foo`; the only one with the stage `train` is 2026-b$"
    ):
        open_run(tmp_path, "foo", needs="train")
