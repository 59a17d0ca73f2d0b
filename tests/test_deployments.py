"""What `deployments/prefect.yaml` names must exist: entrypoints by module path, parameters, stages, recipes."""

import pkgutil
from pathlib import Path

import pytest
import yaml
from prefect import Flow

from flows.recipe import find_recipe
from flows.road import stretch

FILE = Path(__file__).parent.parent / "deployments" / "prefect.yaml"
DEPLOYMENTS = yaml.safe_load(FILE.read_text())["deployments"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_parameters_that_it_takes(deployment: dict) -> None:
    flow = pkgutil.resolve_name(deployment["entrypoint"])
    assert isinstance(flow, Flow)
    parameters = flow.validate_parameters(deployment["parameters"])
    assert find_recipe(str(parameters["recipe"])).is_file()
    assert stretch(parameters.get("from_stage"), parameters.get("only"))
    assert deployment["work_pool"]["name"] == "bessemer"
