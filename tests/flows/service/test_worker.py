"""What the worker compares: a deployment is run as `bessemer serve start` wrote it, or not at all."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from prefect.client.schemas.objects import WorkPool
from prefect.workers.process import ProcessWorker

from flows.service.files import shipped
from flows.service.worker import OwnWorker, expected_deployments, refusal_reason

FOLDER = Path('/a folder with "quotes"')
OURS = expected_deployments(FOLDER)


def test_each_deployment_of_the_file_is_known_with_its_folder() -> None:
    named = yaml.safe_load(shipped("prefect.yaml").read_text())["deployments"]
    assert list(OURS) == [one["name"] for one in named]
    assert OURS["10-nightly"].entrypoint == "flows.nightly.flow.nightly"
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(FOLDER)}}
    assert all(one.pull_steps == [step] and one.job_variables == {} for one in OURS.values())
    assert all(refusal_reason(OURS, one, {}) is None for one in OURS.values())


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"entrypoint": "evil.py:main"}, "entrypoint changed"),
        ({"entrypoint": None}, "entrypoint changed"),
        ({"pull_steps": []}, "pull_steps changed"),
        ({"pull_steps": expected_deployments(Path("/elsewhere"))["00-pretrain"].pull_steps}, "pull_steps changed"),
        ({"job_variables": {"env": {}}}, "job_variables changed"),
        ({"name": "evil"}, "wrote no deployment 'evil'"),
        ({"name": "10-nightly"}, "entrypoint changed"),
    ],
)
def test_a_changed_deployment_is_refused(changed: dict, reported: str) -> None:
    theirs = replace(OURS["00-pretrain"], **changed)
    assert reported in str(refusal_reason(OURS, theirs, {}))


def test_a_run_with_job_variables_or_without_a_deployment_is_refused() -> None:
    assert (
        refusal_reason(OURS, OURS["00-pretrain"], {"command": "touch evil"})
        == "it brings job variables of its own: command"
    )
    assert refusal_reason(OURS, None, {}) == "it belongs to no deployment"


def test_the_pool_has_no_variables_and_prefects_own_worker_is_left_as_it_is() -> None:
    template = json.loads(shipped("work_pool.json").read_text())
    assert (
        WorkPool(
            name="bessemer", type="process", base_job_template=template, default_queue_id=uuid4()
        ).base_job_template
        == template
    )
    assert template["variables"]["properties"] == {}
    assert "{{" not in json.dumps(template)
    assert OwnWorker.type == ProcessWorker.type
    assert ProcessWorker.get_worker_class_from_type("process") is ProcessWorker
