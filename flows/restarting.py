"""How often a deployment whose runs crash is started again: an automation starts it, and knows no number."""

import errno

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import deployment, flow_run

from model.durable import DISK_FULL
from model.errors import BessemerError, GuardError, Infra

MOST_CRASHES = 4
"""Runs of a deployment that may crash, or fail for the machine's sake, one behind the other before the next one ends
as failed, for a person to look at."""


def check_crashes() -> None:
    """Raises GuardError, after which nothing is started again, where the last runs of this run's deployment have all
    crashed or failed for the machine's sake."""
    if deployment.id is None:
        return
    with get_client(sync_client=True) as client:
        earlier = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(id={"not_any_": [flow_run.id]}, start_time={"is_null_": False}),  # pyright: ignore[reportArgumentType]
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            sort=FlowRunSort.START_TIME_DESC,
            limit=MOST_CRASHES,
        )
    if len(earlier) == MOST_CRASHES and all(machine_failed(run.state) for run in earlier):
        raise GuardError(
            f"the last {MOST_CRASHES} runs of this deployment crashed or failed for the machine's sake, and it is not"
            f" started again by itself. Look at their logs and at the machine; what is built stands, and the next run"
            f" goes on from there: run once more, or by `bessemer run`"
        )


def worth_another_run(error: BessemerError | OSError) -> BessemerError:
    """The error that a run ends with: what its record or page met outside of any stage, a full disk say, is the
    machine's failure as it is within one. Other errors of the operating system are raised as they are."""
    if isinstance(error, BessemerError):
        return error
    if error.errno not in (*DISK_FULL, errno.EIO, errno.ESTALE):
        raise error
    where = error.filename or "a file under the root"
    return Infra(f"{where}: {error.strerror}; what is built is kept: free some space if that is it, and run again")


def machine_failed(state: State | None) -> bool:
    """Whether a run ended in a way after which it is started again."""
    return state is not None and (state.is_crashed() or (state.is_failed() and state.name == Infra.__name__))
