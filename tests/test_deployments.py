"""What `deployments/prefect.yaml` names must exist: entrypoints by module path, parameters, stages, recipes."""

import pkgutil
from pathlib import Path

import pytest
import yaml
from prefect import Flow

from flows.form import chosen_stretch
from flows.recipe import find_recipe
from flows.road import STAGES, stretch

FILE = Path(__file__).parent.parent / "deployments" / "prefect.yaml"
FILLED = {"{{ $BESSEMER_RECIPE }}": "quickstart", "{{ $BESSEMER_ROOT }}": "/root"}
DEPLOYMENTS = {deployment["name"]: deployment for deployment in yaml.safe_load(FILE.read_text())["deployments"]}


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_parameters_that_it_takes(deployment: dict) -> None:
    flow = pkgutil.resolve_name(deployment["entrypoint"])
    assert isinstance(flow, Flow)
    given = {name: FILLED.get(value, value) for name, value in deployment["parameters"].items()}
    parameters = flow.validate_parameters(given)
    assert find_recipe(str(parameters["recipe"])).is_file()
    assert parameters["root"] == Path("/root")
    if deployment["name"] != "nightly":
        asked = {name: parameters[name] for name in ("from_stage", "until", "only")}
        assert stretch(**chosen_stretch(**asked))
    assert deployment["work_pool"]["name"] == "bessemer"
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_every_stage_has_its_rerun() -> None:
    assert {name: deployment["parameters"].get("from_stage") for name, deployment in DEPLOYMENTS.items()} == {
        "pretrain": None,
        "nightly": None,
        **{f"rerun-{stage}": stage for stage in STAGES},
        "evaluate-again": None,
    }


def test_the_night_s_run_waits_until_somebody_switches_it_on() -> None:
    scheduled = {name: deployment["schedules"] for name, deployment in DEPLOYMENTS.items() if "schedules" in deployment}
    assert list(scheduled) == ["pretrain", "nightly"]
    for (schedule,) in scheduled.values():
        assert (schedule["active"], schedule["timezone"]) == (False, "Etc/UTC")
