"""How often a deployment whose runs crash is started again: an automation starts it, and knows no number."""

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import deployment, flow_run

from model.errors import Infra

MOST_CRASHES = 4
"""Runs of a deployment that may crash one behind the other before the next one ends as failed, for a person to look
at."""


def check_crashes() -> None:
    """Raises Infra where the last runs of this run's deployment have all crashed."""
    if deployment.id is None:
        return
    with get_client(sync_client=True) as client:
        earlier = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(id={"not_any_": [flow_run.id]}, start_time={"is_null_": False}),  # pyright: ignore[reportArgumentType]
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            sort=FlowRunSort.START_TIME_DESC,
            limit=MOST_CRASHES,
        )
    if len(earlier) == MOST_CRASHES and all(run.state is not None and run.state.is_crashed() for run in earlier):
        raise Infra(
            f"the last {MOST_CRASHES} runs of this deployment crashed, and it is not started again by itself. Look at"
            f" their logs and at the machine; what is built stands, and the next run goes on from there. Delete these"
            f" runs in the UI, or run once by `bessemer run`, to start anew"
        )
