"""What `deployments/prefect.yaml` names must exist: entrypoints by module path, parameters, stages, recipes."""

import pkgutil
from pathlib import Path

import pytest
import yaml
from prefect import Flow

from flows.recipe.form import Changes, as_settings, stage_selection
from flows.recipe.load import find_recipe
from flows.recipe.stages import STAGES, select_stages

FILE = Path(__file__).parent.parent / "deployments" / "prefect.yaml"
FILLED_WHEN_DEPLOYED = ("{{ $BESSEMER_RECIPE }}", "{{ $BESSEMER_ROOT }}")
DEPLOYMENTS = {deployment["name"]: deployment for deployment in yaml.safe_load(FILE.read_text())["deployments"]}


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_parameters_that_it_takes(deployment: dict) -> None:
    flow = pkgutil.resolve_name(deployment["entrypoint"])
    assert isinstance(flow, Flow)
    given = {**deployment["parameters"], "recipe": "quickstart", "root": "/root"}
    assert (deployment["parameters"]["recipe"], deployment["parameters"]["root"]) == FILLED_WHEN_DEPLOYED
    parameters = flow.validate_parameters(given)
    assert find_recipe(str(parameters["recipe"])).is_file()
    assert parameters["root"] == Path("/root")
    if deployment["name"] != "10-nightly":
        asked = {name: parameters[name] for name in ("from_stage", "until", "only")}
        assert select_stages(**stage_selection(**asked))
    assert deployment["work_pool"]["name"] == "bessemer"
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_every_stage_has_its_rerun_which_opens_its_settings() -> None:
    assert {name: deployment["parameters"].get("from_stage") for name, deployment in DEPLOYMENTS.items()} == {
        "00-pretrain": None,
        **{f"0{number}-rerun-{stage}": stage for number, stage in enumerate(STAGES, 1)},
        "09-evaluate-again": None,
        "10-nightly": None,
    }
    for name, deployment in DEPLOYMENTS.items():
        opened = deployment["parameters"].get("changes", {})
        stage = {"09-evaluate-again": "evaluate"}.get(name, name.rpartition("-rerun-")[2])
        assert list(opened) == ([stage] if stage in STAGES else [])
        assert as_settings(Changes.model_validate(opened)) == []


def test_deployments_are_in_the_order_in_which_the_uis_sort_them_and_have_tags() -> None:
    """Both sort by name, whatever the file's order is."""
    assert list(DEPLOYMENTS) == sorted(DEPLOYMENTS)
    assert [name for name, deployment in DEPLOYMENTS.items() if not deployment["tags"]] == []


def test_the_night_s_run_waits_until_somebody_switches_it_on() -> None:
    scheduled = {name: deployment["schedules"] for name, deployment in DEPLOYMENTS.items() if "schedules" in deployment}
    assert list(scheduled) == ["00-pretrain", "10-nightly"]
    for (schedule,) in scheduled.values():
        assert (schedule["active"], schedule["timezone"]) == (False, "Etc/UTC")
