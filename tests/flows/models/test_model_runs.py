"""Fine-tuning and export have runs: a record, a line in the list, a page, and a Prefect task that is retried."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.upkeep.gc import plan
from flows.upkeep.root_records import rebuild_run_record
from model.errors import Infra, InputError
from tests.tasks.models.test_finetune_stage import TASK, home

__all__ = ["home"]


@pytest.fixture
def bessemer(tmp_path: Path) -> Callable[..., Result]:
    def call(*words: object) -> Result:
        return CliRunner().invoke(app, [*map(str, words), "--root", str(tmp_path / "root")])

    return call


def test_both_are_runs_that_are_listed_shown_and_reused(
    home: Path, bessemer: Callable[..., Result], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    made = bessemer("model", "finetune", home / "bert", "--task", home / "task.toml")
    assert made.exit_code == 0, made.stderr
    exported = bessemer("model", "export", home / "bert", tmp_path / "out")
    assert exported.exit_code == 0, exported.stderr
    assert "\nexport         built " in exported.stderr
    runs = json.loads(bessemer("runs", "list", "--json").stdout)
    assert [(run["recipe_name"], run["state"]) for run in runs] == [
        ("finetune task", "completed"),
        ("export bert", "completed"),
    ]
    assert [[(entry["stage"], entry["outcome"]) for entry in run["stages"]] for run in runs] == [
        [("finetune", "built")],
        [("export", "built")],
    ]
    assert "finetune task" in bessemer("runs", "list").stdout
    for run, words in zip(
        runs, ("metals, held-out examples", "transformers loads it as BertForPreTraining"), strict=True
    ):
        page = Path(run["page"]).read_text()
        assert "section of this page could not be made" not in page
        assert words in page
        shown = bessemer("runs", "report", run["run_id"])
        assert shown.exit_code == 0, shown.output
        assert words in " ".join(shown.output.split())
    assert rebuild_run_record(root / "runs" / runs[0]["run_id"])["stages"][0]["stage"] == "finetune"  # pyright: ignore[reportOptionalSubscript]
    again = bessemer("model", "finetune", home / "bert", "--task", home / "task.toml", "--out", tmp_path / "copy")
    assert again.exit_code == 0, again.stderr
    assert (tmp_path / "copy/model.json").read_bytes() == (root / "finetuned/task/model.json").read_bytes()
    assert len(list((root / "artifacts/finetune").iterdir())) == 1
    asked = bessemer("model", "predict", runs[0]["run_id"], "--field", "text=we smelt tin")
    assert json.loads(asked.stdout)["label"] in ("0", "1")
    kept = plan(root, keep_last=0, now=4e9)
    assert [one.stage for one in kept.artifacts] == ["export"]
    assert [one.stage for one in kept.kept_models] == ["finetune"]


def test_a_failure_of_the_machine_is_retried_and_another_is_not(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.models.flow import finetune
    from tasks import prefect_tasks

    real, failures = prefect_tasks.build_finetune, [Infra("the disk is away")]

    def flaky(*words: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*words)

    monkeypatch.setattr(prefect_tasks, "build_finetune", flaky)
    monkeypatch.setattr(prefect_tasks.finetune, "retry_delay_seconds", 0)
    record = finetune(str(home / "bert"), home / "task.toml", root=tmp_path / "root")
    assert [entry["outcome"] for entry in record["stages"]] == ["built"]
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs()
    (task,) = [run for run in runs if run.name == "finetune" and run.run_count == 2]
    assert task.state is not None
    assert task.state.name == "Built"
    assert "after 1 retry" in str(task.state.message)
    failures.append(InputError("the examples say nothing"))
    with pytest.raises(Exception, match="say nothing"):
        finetune(str(home / "bert"), home / "task.toml", root=tmp_path / "another")
    assert not failures


def test_invalid_examples_are_named_before_a_run_begins(
    home: Path, bessemer: Callable[..., Result], tmp_path: Path
) -> None:
    lines = (home / "train.jsonl").read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join([*lines[:2], '{"text": "tin', *lines[2:]]))
    (tmp_path / "task.toml").write_text(TASK)
    refused = bessemer("model", "finetune", home / "bert", "--task", tmp_path / "task.toml")
    assert refused.exit_code == 3
    assert "train.jsonl, line 3" in refused.stderr
    assert json.loads(bessemer("runs", "list", "--json").stdout) == []
