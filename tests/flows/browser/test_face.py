"""The service and its UI as people meet them: `bessemer serve start`, a schedule, a form in a real browser, `bessemer
serve stop`."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.command import bessemer

pytestmark = pytest.mark.prove

MOST_CLICKS = 3
SECONDS = 900.0
"""After which something hangs; busy machines are slow."""
PUNCTUAL_SECONDS = 30.0
"""A worker polls every 10 to 15 s for runs due soon, and the machine may be busy."""


def clicks(page: Any) -> int:
    """How often the mouse was clicked since the form of a deployment was asked for."""
    return page.evaluate("Number(sessionStorage.clicks || 0)")


def open_form(page: Any, service: Any, deployment: str) -> None:
    """From the deployment's page by two clicks: Run, Custom run."""
    page.goto(f"{service.ui}/v2/deployments/deployment/{service.deployment(deployment)['id']}")
    page.evaluate("sessionStorage.clicks = 0")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    page.get_by_text("True Jaccard similarity of the shingle sets").first.wait_for()


def test_a_run_of_the_command_shows_in_the_ui_of_its_root(service: Any) -> None:
    (run,) = [run for run in service.ask("/flow_runs/filter", {}) if run["deployment_id"] is None]
    assert run["name"].startswith("foundry 2")
    assert (run["tags"], run["state"]["message"]) == (["foundry"], "8 built")


def test_up_again_and_status_say_that_it_runs(service: Any) -> None:
    assert "the service is already running" in bessemer("serve", "start", "--root", service.root).stdout
    assert json.loads(bessemer("serve", "status", "--root", service.root, "--json").stdout)["up"]


def test_a_port_in_use_is_reported(service: Any, tmp_path: Path) -> None:
    port = service.ui.rpartition(":")[2]
    done = bessemer("serve", "start", "--root", tmp_path, "--port", port, code=3)
    assert "choose one with --port" in done.stderr


def test_an_unchanged_run_starts_nothing_and_adds_a_line_to_the_history(service: Any, recipe: Path) -> None:
    history = service.root / "runs" / "history.jsonl"
    before = len(history.read_text().splitlines()) if history.exists() else 0
    runs = service.ask("/flow_runs/count", {})
    spent = os.times()
    bessemer("run", recipe, "--root", service.root, "--json")
    seconds = sum(os.times()[2:4]) - sum(spent[2:4])
    print(f"unchanged run: {seconds:.2f} s of processor time")
    assert len(history.read_text().splitlines()) == before + 1
    assert service.ask("/flow_runs/count", {}) == runs
    assert seconds <= 1.5


def test_a_schedule_is_kept(service: Any, page: Any, pictures: Path) -> None:
    deployment = service.deployment("08-rerun-evaluate")
    due = datetime.now(UTC) + timedelta(seconds=25)
    schedule = {"interval": 3600, "anchor_date": due.isoformat(), "timezone": "UTC"}
    service.ask(f"/deployments/{deployment['id']}/schedules", [{"schedule": schedule, "active": True}])
    page.goto(f"{service.ui}/v2/deployments/deployment/{deployment['id']}?tab=Upcoming")
    page.get_by_text("Every").first.wait_for()
    page.screenshot(path=pictures / "schedule.png")
    run = service.wait_until_ended("08-rerun-evaluate")
    late = (datetime.fromisoformat(run["start_time"]) - due).total_seconds()
    print(f"scheduled for {due:%H:%M:%S}, begun {late:.1f} s later: {run['state']['message']}")
    assert run["auto_scheduled"]
    assert abs(late) <= PUNCTUAL_SECONDS  # a worker may begin a quarter of a second early
    assert run["state"]["message"] == "8 reused"


def test_a_stage_is_rerun_from_the_form(service: Any, page: Any, pictures: Path) -> None:
    open_form(page, service, "03-rerun-dedup")
    page.get_by_label("dedup.threshold (Optional)").fill("0.999")
    page.screenshot(path=pictures / "form.png")
    page.get_by_role("button", name="Submit").click()
    assert clicks(page) == MOST_CLICKS
    run = service.wait_until_ended("03-rerun-dedup")
    assert run["state"]["message"] == "2 reused, 6 built", run["state"]
    assert run["name"].startswith("foundry 2")
    states = service.stages(run)
    assert {name: state["name"] for name, state in states.items()} == {
        **dict.fromkeys(("sample", "clean"), "Reused"),
        **dict.fromkeys(("dedup", "decontaminate", "vocab", "chunk", "train", "evaluate"), "Built"),
    }
    assert states["dedup"]["message"] == "params.threshold: 0.8 -> 0.999"

    page.goto(f"{service.ui}/v2/runs/flow-run/{run['id']}")
    page.get_by_role("tab", name="Logs").click()
    page.get_by_text("training").first.wait_for()
    page.screenshot(path=pictures / "flow-run-logs.png")
    page.get_by_role("tab", name="Task Runs").click()
    page.get_by_text("6 Built, 2 Reused").wait_for()
    page.screenshot(path=pictures / "flow-run.png")
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("dedup: params.threshold: 0.8").first.wait_for()
    page.screenshot(path=pictures / "flow-run-artifacts.png")
    artifacts = service.ask("/artifacts/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    keys = {artifact["key"]: artifact["id"] for artifact in artifacts if artifact["key"]}
    built = ("dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")
    assert set(keys) == {"foundry-run", *(f"foundry-{stage}" for stage in built)}
    for key, artifact in keys.items():
        page.goto(f"{service.ui}/v2/artifacts/artifact/{artifact}")
        page.locator("main table, table").first.wait_for()
        page.get_by_text("Run page, on the machine of the run").first.wait_for()
        page.screenshot(path=pictures / f"{key}.png", full_page=True)
    page.goto(f"{service.ui}/v2/artifacts/artifact/{keys['foundry-run']}")
    page.get_by_text("params.threshold: 0.8").first.wait_for()


def test_a_wrong_value_is_refused_by_the_form_where_it_is(service: Any, page: Any, pictures: Path) -> None:
    before = len(service.runs("03-rerun-dedup"))
    open_form(page, service, "03-rerun-dedup")
    for label, wrong, reported in (("dedup.threshold", "1.5", "less than or equal to 1"), ("bands", "2.5", "2 and 3")):
        field = page.get_by_label(f"{label} (Optional)", exact=True)
        field.fill(wrong)
        page.get_by_role("button", name="Submit").click()
        page.screenshot(path=pictures / f"refused-{label}.png")
        assert reported in field.evaluate("field => field.validationMessage")
        assert field.evaluate("field => field === document.activeElement"), "the form goes to what is wrong"
        field.fill("")
    assert "/run?" in page.url
    assert len(service.runs("03-rerun-dedup")) == before


def test_a_wrong_value_is_refused_by_the_server_with_its_place(service: Any) -> None:
    deployment = service.deployment("03-rerun-dedup")
    parameters = {**deployment["parameters"], "changes": {"dedup": {"threshold": "high"}}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        service.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
    assert refused.value.code == 409
    assert "Validation failed for field 'changes.dedup.threshold'" in json.load(refused.value)["detail"]


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({"recipe": "quikstart"}, "Did you mean `quickstart`?"),
        ({"changes": {"budget_tokens": "many"}}, "budget_tokens is 'many'; write a positive count"),
    ],
)
def test_what_only_the_recipe_knows_fails_at_once_with_the_name_of_its_error(
    service: Any, wrong: dict[str, Any], reported: str
) -> None:
    deployment = service.deployment("01-rerun-sample")
    parameters = {**deployment["parameters"], **wrong}
    run = service.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
    state = service.wait_until_ended("01-rerun-sample", run["id"])["state"]
    assert (state["type"], state["name"]) == ("FAILED", "RecipeError")
    assert reported in state["message"]


def test_down_lets_a_run_keep_its_checkpoint_and_up_cleans_up_after_a_kill(service: Any, recipe: Path) -> None:
    deployment = service.deployment("00-pretrain")
    bigger = {"checkpoint_steps": 5, "model": {"width": 192, "layers": 6}}
    changes = {"budget_tokens": "600K", "chunk": {"max_epochs": 16.0}, "train": bigger}
    parameters = {**deployment["parameters"], "changes": changes}
    service.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
    deadline = time.monotonic() + SECONDS
    while not list(service.root.glob("work/*/scratch/train/checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    reported = bessemer("serve", "stop", "--root", service.root).stdout
    assert "1 run under way: keeping finished parts and the last checkpoint" in reported
    record = json.loads(bessemer("runs", "list", "--root", service.root, "--json").stdout)[-1]
    assert record["state"] == "interrupted"
    assert list(service.root.glob("work/*/scratch/train/checkpoints/step-*"))
    assert "no service runs under" in bessemer("serve", "stop", "--root", service.root).stdout
    bessemer("serve", "status", "--root", service.root, code=1)

    bessemer("serve", "start", "--root", service.root, "--recipe", recipe, "--port", service.ui.rpartition(":")[2])
    for name in ("server", "worker"):
        killed = service.pid(name)
        os.kill(killed, signal.SIGKILL)
        while service.pid(name) == killed:
            assert time.monotonic() < deadline + SECONDS, f"the keeper did not start the {name} again"
            time.sleep(0.5)
    os.kill(service.pid("keeper"), signal.SIGKILL)
    again = bessemer(
        "serve", "start", "--root", service.root, "--recipe", recipe, "--port", service.ui.rpartition(":")[2]
    ).stdout
    assert "the keeper of an earlier `bessemer serve start` ended unexpectedly; starting another" in again
    assert json.loads(bessemer("serve", "status", "--root", service.root, "--json").stdout)["up"]
