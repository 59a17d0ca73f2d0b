"""The few questions and orders that starting and stopping have for the server, without importing Prefect.

The automations of `deployments/automations.yaml`, written to a server as they stand there.
"""

import base64
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from flows.service.files import CLIENT_AUTH, shipped
from model.errors import Infra

ACTIVE_STATES = ["PENDING", "RUNNING", "CANCELLING"]

OWN_AUTHORITY = "PREFECT_API_SSL_CERT_FILE"
"""Prefect's clients believe the authority in this file, instead of those that everybody believes."""

BUSY = 503
"""What Prefect answers where its database was held by another of its own tasks too long. Nothing was done then: a
server on SQLite that has just come up after a kill was seen to refuse so for seconds, on a loaded machine."""

BUSY_SECONDS = 60.0

BUSY_PAUSE = 1.0


def reach_this_machine_directly() -> None:
    """Have this process, and those that it starts, reach servers of this machine without a proxy (`http_proxy`), which
    cannot reach them and would be sent their password."""
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if named != "*":
        all_named = dict.fromkeys([*filter(None, named.split(",")), "localhost", "127.0.0.1", "::1"])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(all_named)


def is_healthy(api: str) -> bool:
    """Whether the server answers. Infra where its certificate is not believed, which no waiting changes."""
    try:
        with _open(urllib.request.Request(f"{api}/health"), seconds=2):
            return True
    except (urllib.error.URLError, OSError) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise Infra(
                f"the certificate of {api} is not believed ({error}). Where an authority of your own has signed it,"
                f" name that one's certificate: {OWN_AUTHORITY}=FILE in the environment of `up` and of every client"
            ) from error
        return False


def is_worker_online(api: str, pool: str, name: str) -> bool:
    """Whether the pool's worker of this name has reported to the server."""
    workers = filtered(f"{api}/work_pools/{pool}/workers/filter", {})
    return any(worker["name"] == name and worker["status"] == "ONLINE" for worker in workers)


def crash_lost_runs(api: str, *, deployed: bool) -> int:
    """Call runs crashed whose process is gone, and the runs and tasks within them; returns how many.

    Must be called while no worker runs (`deployed`), or no process that has runs without a deployment. A run that was
    killed together with its worker or private server stays `Running` for ever, and holds its deployment's only slot.
    """
    lost = _deployed_runs(api) if deployed else _own_runs(api)
    why = "the service ended under this run" if deployed else "the process of this run is gone"
    within = lost
    while within:
        for run in within:
            _set_state(api, "flow_runs", run, "CRASHED", why)
        of_these = {"flow_runs": {"id": {"any_": within}}, "task_runs": {"state": {"type": {"any_": ACTIVE_STATES}}}}
        for task in filtered(f"{api}/task_runs/filter", of_these):
            _set_state(api, "task_runs", task["id"], "CRASHED", why)
        within = _runs(api, {"parent_flow_run_id": {"any_": within}})
    return len(lost)


def cancel_runs(api: str) -> int:
    """Ask all runs of the worker to end; returns how many there are."""
    runs = _deployed_runs(api)
    for run in runs:
        _set_state(api, "flow_runs", run, "CANCELLING", "`bessemer down`: finished parts and checkpoints are kept")
    return len(runs)


def wait_for_runs(api: str, seconds: float) -> bool:
    """Wait until no run of the worker is under way; False where one still is after `seconds`."""
    deadline = time.monotonic() + seconds
    while _deployed_runs(api):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _deployed_runs(api: str) -> list[str]:
    return _runs(api, {"deployment_id": {"is_null_": False}})


def _own_runs(api: str) -> list[str]:
    return _runs(api, {"deployment_id": {"is_null_": True}, "parent_task_run_id": {"is_null_": True}})


def _runs(api: str, chosen: dict[str, Any]) -> list[str]:
    """Ids of the flow runs under way among the chosen ones."""
    under_way = {"flow_runs": {"state": {"type": {"any_": ACTIVE_STATES}}, **chosen}}
    return [run["id"] for run in filtered(f"{api}/flow_runs/filter", under_way)]


def _set_state(api: str, of: str, run: str, kind: str, message: str) -> None:
    state = {"type": kind, "name": kind.capitalize(), "message": message}
    post(f"{api}/{of}/{run}/set_state", {"state": state, "force": kind == "CRASHED"})


def post(url: str, body: dict[str, Any]) -> Any:
    """What the server answers; Infra where it does not."""
    return json.loads(_ask("POST", url, json.dumps(body).encode()))


def filtered(url: str, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all of the chosen ones, which the server gives page by page; Infra where it does not answer."""
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    while page := post(url, {**chosen, "offset": offset}):
        offset += len(page)
        # By id: what comes or goes meanwhile moves others from page to page.
        found |= {one["id"]: one for one in page}
    return list(found.values())


def put(url: str, body: dict[str, Any]) -> None:
    """Have the server change a thing; Infra where it does not."""
    _ask("PUT", url, json.dumps(body).encode())


def delete(url: str) -> None:
    """Have the server remove a thing; Infra where it does not."""
    _ask("DELETE", url)


def _open(request: urllib.request.Request, seconds: float) -> Any:
    """Answer of the server."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=_trust(request.full_url))]
    if urlsplit(request.full_url).hostname == "::1":
        # `urllib` does not find "[::1]" in the "::1" of `no_proxy`.
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers).open(request, timeout=seconds)


def _trust(url: str) -> ssl.SSLContext | None:
    own = os.environ.get(OWN_AUTHORITY)
    return ssl.create_default_context(cafile=own) if url.startswith("https://") else None


def _ask(method: str, url: str, body: bytes | None = None) -> bytes:
    headers = {"Content-Type": "application/json"}
    if CLIENT_AUTH in os.environ:
        headers["Authorization"] = f"Basic {base64.b64encode(os.environ[CLIENT_AUTH].encode()).decode()}"
    request = urllib.request.Request(url, body, headers, method=method)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with _open(request, seconds=30) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")
            if error.code != BUSY or time.monotonic() > deadline:
                raise Infra(f"the server refused {method} {url}: {error}: {told}") from error
        except (urllib.error.URLError, OSError) as error:
            raise Infra(f"the server did not answer {method} {url}: {error}") from error
        time.sleep(BUSY_PAUSE)


def automations_file() -> Path:
    """`deployments/automations.yaml`, which travels in the wheel beside this module."""
    return shipped("automations.yaml")


def read_automations() -> list[dict[str, Any]]:
    """What the file says, as the server's API takes it."""
    return yaml.safe_load(automations_file().read_text(encoding="utf-8"))["automations"]


def write_automations(api: str) -> int:
    """Have the server know each automation once, as the file says it; returns how many.

    One that it knows is changed in its place: a server with PostgreSQL hears of new ones by a notification, and what
    happens until then, to runs that a lost machine left behind say, would meet none.
    """
    ours = read_automations()
    names = [automation["name"] for automation in ours]
    known: dict[str, list[str]] = {}
    for one in filtered(f"{api}/automations/filter", {"automations": {"name": {"any_": names}}}):
        known.setdefault(one["name"], []).append(one["id"])
    for automation in ours:
        first, *twins = known.get(automation["name"], [None])
        if first is None:
            post(f"{api}/automations/", automation)
        else:
            put(f"{api}/automations/{first}", automation)
        for twin in twins:
            delete(f"{api}/automations/{twin}")
    return len(ours)
