"""The worker of the service: `python -m flows.service.worker [NAME]` runs the deployments of `deployments/prefect.yaml`
as `bessemer serve start` writes them from the same folder, and refuses every other run of its pool.

Prefect's own worker runs what the server says: a command, an entrypoint, steps before it. Anyone who can write to the
server can thus run code as this machine's owner. Here the server only names a deployment and its parameters; the code
comes from the shipped file, so a change between the check and the start has no effect either.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio.abc
import yaml
from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.runner._flow_run_executor import FlowRunExecutionResult, FlowRunExecutorContext
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.states import Failed
from prefect.utilities.engine import propose_state
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from flows.service.files import POOL, shipped
from model.environment import filter_environment
from model.errors import GuardError

if TYPE_CHECKING:
    from prefect.runner._process_manager import ProcessHandle


@dataclass(frozen=True)
class DeploymentCode:
    """The part of a deployment that decides which code it runs."""

    name: str
    entrypoint: str | None
    pull_steps: list[dict[str, Any]]
    job_variables: dict[str, Any]


def expected_deployments(folder: Path) -> Mapping[str, DeploymentCode]:
    """Return the deployments by name, as `bessemer serve start` writes them when it is called in `folder`."""
    file = yaml.safe_load(shipped("prefect.yaml").read_text(encoding="utf-8"))
    pull = json.loads(json.dumps(file["pull"]).replace("{{ $PWD }}", json.dumps(str(folder))[1:-1]))
    return {one["name"]: DeploymentCode(one["name"], one["entrypoint"], pull, {}) for one in file["deployments"]}


def refusal_reason(
    ours: Mapping[str, DeploymentCode], theirs: DeploymentCode | None, job_variables: Mapping[str, Any]
) -> str | None:
    """Return why a run of the deployment `theirs` with `job_variables` is refused; None where it may start."""
    if theirs is None:
        return "it belongs to no deployment"
    if theirs.name not in ours:
        return f"`bessemer serve start` wrote no deployment {theirs.name!r}"
    if job_variables:
        return f"it brings job variables of its own: {', '.join(sorted(job_variables))}"
    written = ours[theirs.name]
    if theirs != written:
        parts = ("entrypoint", "pull_steps", "job_variables")
        changed = [part for part in parts if getattr(theirs, part) != getattr(written, part)]
        return (
            f"the deployment {theirs.name!r} is not as `bessemer serve start` wrote it: {', '.join(changed)} changed."
            f" `bessemer serve stop` and `bessemer serve start` write it again"
        )
    return None


class OwnConfiguration(ProcessJobConfiguration):
    """How a run is started: nothing comes from the server, neither from the pool's template nor from variables."""

    @classmethod
    async def resolve_for_flow_run(
        cls,
        flow_run: FlowRun,
        *,
        client: PrefectClient,
        work_pool: WorkPool,
        worker_name: str,
        worker_id: UUID | None = None,
        deployment: DeploymentResponse | None = None,
    ) -> "OwnConfiguration":
        flow = await client.read_flow(flow_run.flow_id)
        configuration = cls()
        configuration.prepare_for_flow_run(flow_run, deployment, flow, work_pool, worker_name, worker_id=worker_id)
        return configuration


class OwnWorker(ProcessWorker):
    """Runs the deployments that `bessemer serve start` wrote; others fail with `GuardError`, which says why."""

    job_configuration = OwnConfiguration

    @classmethod
    def __dispatch_key__(cls) -> str:
        """Differ from the key of Prefect's worker of the same type."""
        return "bessemer"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._folder = Path.cwd()
        self._ours = expected_deployments(self._folder)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        status = task_status or anyio.TASK_STATUS_IGNORED
        theirs = None
        if flow_run.deployment_id is not None:
            found = await self.client.read_deployment(flow_run.deployment_id)
            theirs = DeploymentCode(found.name, found.entrypoint, found.pull_steps or [], found.job_variables or {})
        why = refusal_reason(self._ours, theirs, flow_run.job_variables or {})
        if why is not None or theirs is None:
            message = f"refused: {why}"
            self._logger.error("flow run '%s' %s", flow_run.id, message)
            self.get_flow_run_logger(flow_run).error(message)
            # Not Crashed, which an automation would restart.
            await propose_state(self.client, Failed(name=GuardError.__name__, message=message), flow_run_id=flow_run.id)
            status.started(0)
            return ProcessWorkerResult(status_code=0, identifier="refused")
        done = await self._execute(flow_run, configuration, self._ours[theirs.name].entrypoint, status)
        if done is None or done.status_code is None:
            raise RuntimeError("the process of the run did not start")
        return ProcessWorkerResult(status_code=done.status_code, identifier=str(done.handle.pid))

    async def _execute(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        entrypoint: str | None,
        status: anyio.abc.TaskStatus[int],
    ) -> FlowRunExecutionResult | None:
        """Do what Prefect's worker does, but with our own entrypoint and without hooks, which it would load in this
        process from what the server names."""
        done: FlowRunExecutionResult | None = None
        async with FlowRunExecutorContext() as context:
            starter = EngineCommandStarter(
                entrypoint=entrypoint,
                cwd=self._folder,
                env=configuration.env,
                control_channel=context.control_channel,
                isolate_process_group=True,
                env_overrides_settings=True,
            )
            executor = context.create_executor(flow_run, starter, _without_hooks, propose_submitting=False)

            async def execute(*, task_status: "anyio.abc.TaskStatus[ProcessHandle]") -> None:
                nonlocal done
                done = await executor.submit(task_status=task_status)

            async with anyio.create_task_group() as group:
                handle = await group.start(execute)
                status.started(handle.pid)
        return done


async def _without_hooks(flow_run: FlowRun) -> Flow[..., Any]:
    del flow_run
    return Flow(lambda: None, name="without-hooks")


async def main(name: str | None) -> None:
    """Run until a signal: the first lets running runs end, the second ends them."""
    # The event loop has installed its own handler by now; these come before it.
    setup_signal_handlers_worker(os.getpid(), "the worker", print)
    worker = OwnWorker(work_pool_name=POOL, name=name, create_pool_if_not_found=False)
    with suppress(asyncio.CancelledError):
        await worker.start(printer=print)


if __name__ == "__main__":
    filter_environment()
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
