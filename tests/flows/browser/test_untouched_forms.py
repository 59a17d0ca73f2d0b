"""The forms of all deployments in both of Prefect's UIs, in a real browser, from the address that `bessemer serve
start` prints.

What nobody touched changes nothing; what was chosen arrives.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.prove

UIS = ("classic", "V2")
FILE = Path(__file__).parents[3] / "deployments" / "prefect.yaml"
DEPLOYMENTS = [deployment["name"] for deployment in yaml.safe_load(FILE.read_text())["deployments"]]
ENDS = {
    "09-evaluate-again": "7 reused, 1 reproduced",
    "10-nightly": "",
}
"""What the runs say that do not reuse everything."""
SETTLED = 2000
"""Milliseconds in which the fields of a form have set their defaults; people do not click sooner."""
SECONDS = 900.0
BUSY = 503
AS_IN_THE_RECIPE = "as in the recipe"


def open_deployments(page: Any, service: Any, ui: str) -> None:
    page.goto(service.printed)
    if ui == "V2":
        page.get_by_text("Switch to V2 UI").click()
        page.get_by_role("link", name="Deployments").click()
    page.get_by_text("Items per page").wait_for()


def open_form(page: Any, service: Any, ui: str, deployment: str) -> None:
    open_deployments(page, service, ui)
    page.get_by_placeholder("Search deployments").fill(deployment)
    page.get_by_text("Page 1 of 1", exact=True).wait_for()
    page.get_by_text(deployment, exact=True).click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    page.get_by_text("Folder of all artifacts").wait_for()
    page.wait_for_timeout(SETTLED)


def whole(page: Any, path: Path) -> None:
    """A picture of the whole form, which scrolls within the page."""
    page.set_viewport_size({"width": 1400, "height": 3400})
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    page.set_viewport_size({"width": 1400, "height": 1000})


def submit(page: Any, fill: Callable[[], None]) -> tuple[dict[str, Any], str]:
    """What the form submits when `fill` has opened and filled it, and the id of the run that it starts.

    A server whose SQLite is held by another of its tasks starts nothing and says so; people submit again.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        fill()
        with page.expect_response(re.compile("/create_flow_run$")) as answered:
            page.get_by_role("button", name="Submit").click()
        answer = answered.value
        if answer.status != BUSY or time.monotonic() > deadline:
            assert answer.status == 201, answer.text()
            return json.loads(answer.request.post_data)["parameters"], answer.json()["id"]


def choose(page: Any, ui: str, name: str, choice: str) -> None:
    """Choose in the list of a setting, as with the mouse."""
    label = page.get_by_text(f"{name} (Optional)", exact=True)
    if ui == "V2":
        page.get_by_label(f"Select {name}", exact=True).click()
        page.get_by_role("option", name=choice, exact=True).click()
    else:
        field = page.locator(".schema-form-property").filter(has=label).last
        # In Chromium 156 a click on the words opens the list and closes it at once, as on all of Prefect's pages.
        field.locator(".p-select-button__icon").click()
        page.locator(".p-select-option").get_by_text(choice, exact=True).click()


@pytest.mark.parametrize("ui", UIS)
def test_deployments_are_listed_in_the_order_of_the_pipeline(service: Any, page: Any, pictures: Path, ui: str) -> None:
    open_deployments(page, service, ui)
    page.get_by_text(DEPLOYMENTS[0], exact=True).wait_for()
    shown = page.get_by_text(re.compile(r"^\d\d-[a-z-]+$")).all_inner_texts()
    assert shown == DEPLOYMENTS[:10]  # a page of the list
    page.screenshot(path=pictures / f"deployments-{ui}.png")


@pytest.mark.parametrize("ui", UIS)
def test_untouched_forms_change_nothing_and_reuse_everything(
    service: Any, page: Any, pictures: Path, ui: str, untouched_form: Callable[..., dict[str, Any]]
) -> None:
    started = {}
    for name in DEPLOYMENTS:

        def untouched(name: str = name) -> None:
            open_form(page, service, ui, name)
            whole(page, pictures / f"untouched-{ui}-{name}.png")

        submitted, started[name] = submit(page, untouched)
        deployment = service.deployment(name)
        schema = deployment["parameter_openapi_schema"]
        assert submitted == untouched_form(schema, deployment["parameters"], ui), name
    for name, run_id in started.items():
        run = service.wait_until_ended(name, run_id)
        print(f"{ui} {name}: {run['state']['name']}: {run['state']['message']}")
        assert run["state"]["type"] == "COMPLETED", run["state"]
        assert run["state"]["message"].startswith(ENDS.get(name, "8 reused"))
        page.goto(f"{service.ui}{'/v2/runs' if ui == 'V2' else '/runs'}/flow-run/{run_id}")
        page.get_by_text("Completed" if name != "10-nightly" else run["state"]["name"]).first.wait_for()
        page.screenshot(path=pictures / f"run-of-untouched-{ui}-{name}.png")


@pytest.mark.parametrize("ui", UIS)
def test_an_untouched_schedule_or_edit_of_a_deployment_changes_nothing(
    service: Any, page: Any, pictures: Path, ui: str, untouched_form: Callable[..., dict[str, Any]]
) -> None:
    deployment = service.deployment("03-rerun-dedup")
    address = f"{service.ui}{'/v2' if ui == 'V2' else ''}/deployments/deployment/{deployment['id']}"
    page.goto(address)
    page.get_by_role("button", name="Schedule", exact=True).click()
    page.wait_for_timeout(SETTLED)
    page.screenshot(path=pictures / f"schedule-{ui}.png")
    with page.expect_response(re.compile("/schedules$")) as answered:
        page.locator("[role=dialog] button, .p-modal button").filter(has_text="Save").last.click()
    (schedule,) = json.loads(answered.value.request.post_data)
    assert schedule.get("parameters", {}) == {}

    page.goto(f"{address}/edit")
    page.get_by_text("Folder of all artifacts").wait_for()
    page.wait_for_timeout(SETTLED)
    with page.expect_request(lambda request: request.method == "PATCH") as sent:
        page.get_by_role("button", name="Save").click()
    edited = json.loads(sent.value.post_data)["parameters"]
    assert edited == untouched_form(deployment["parameter_openapi_schema"], deployment["parameters"], ui)


@pytest.mark.parametrize("ui", UIS)
@pytest.mark.parametrize(("choice", "arrives"), [("off", False), ("on", True), (AS_IN_THE_RECIPE, True)])
def test_each_choice_arrives(service: Any, page: Any, pictures: Path, ui: str, choice: str, arrives: bool) -> None:
    def chosen() -> None:
        open_form(page, service, ui, "07-rerun-train")
        if ui == "V2":
            page.get_by_role("tab", name="train.guard", exact=True).click()
        else:
            page.get_by_text("train.guard", exact=True).click()
        choose(page, ui, "enabled", "off" if choice == "on" else "on")
        choose(page, ui, "enabled", choice)
        whole(page, pictures / f"chosen-{ui}-{choice}.png")

    submitted, run_id = submit(page, chosen)
    assert submitted["changes"]["train"]["guard"] == {"enabled": choice}
    run = service.wait_until_ended("07-rerun-train", run_id)
    assert run["state"]["type"] == "COMPLETED", run["state"]
    recipe = json.loads((service.root / "runs" / run["name"].split()[1] / "recipe.json").read_text())
    assert recipe["train"]["guard"]["enabled"] is arrives
