"""A small client of the Prefect server for starting and stopping the service, without importing Prefect.

It also writes the automations of `deployments/automations.yaml` to the server.
"""

import base64
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import yaml

from flows.service.files import CLIENT_AUTH, shipped
from model.errors import Infra

ACTIVE_STATES = ["PENDING", "RUNNING", "CANCELLING"]

OWN_AUTHORITY = "PREFECT_API_SSL_CERT_FILE"
"""File of the certificate authority that Prefect's clients trust instead of the system's."""

START_SECONDS = 300.0

BUSY = 503
"""Prefect's answer where another of its tasks held the database too long; the request had no effect. Measured on a
loaded machine: a server on SQLite refuses so for seconds after it was killed and restarted."""

BUSY_SECONDS = 60.0

BUSY_PAUSE = 1.0


def is_healthy(api: str) -> bool:
    """Return whether the server answers; Infra where its certificate is not trusted, which waiting cannot change."""
    try:
        with _open(urllib.request.Request(f"{api}/health"), seconds=2):
            return True
    except (urllib.error.URLError, OSError) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise Infra(
                f"the certificate of {api} is not trusted ({error}). If an authority of your own has signed it, name"
                f" its certificate: {OWN_AUTHORITY}=FILE in the environment of `serve start` and of every client"
            ) from error
        return False


def wait_until_healthy(api: str, is_running: Callable[[], bool], advice: Callable[[], str]) -> None:
    """Wait until the server answers; Infra, ending in the `advice`, where it ends or does not answer."""
    deadline = time.monotonic() + START_SECONDS
    while is_running() and time.monotonic() < deadline:
        if is_healthy(api):
            return
        time.sleep(0.1)
    state = f"did not answer within {START_SECONDS:.0f} s" if is_running() else "ended at start"
    raise Infra(f"the Prefect server at {api} {state}; {advice()}")


def is_worker_online(api: str, pool: str, name: str) -> bool:
    """Return whether the pool's worker of this name has reported to the server."""
    workers = filtered(f"{api}/work_pools/{pool}/workers/filter", {})
    return any(worker["name"] == name and worker["status"] == "ONLINE" for worker in workers)


def crash_lost_runs(api: str, *, deployed: bool) -> int:
    """Set runs whose process has died to Crashed, with their child runs and tasks, and return how many.

    Call it only while no worker runs (`deployed`), or no process with runs without a deployment. A run that was killed
    together with its worker or private server would stay `Running` for ever, and hold its deployment's only slot.
    """
    own = {"deployment_id": {"is_null_": True}, "parent_task_run_id": {"is_null_": True}}
    lost = _deployed_runs(api) if deployed else _runs(api, own)
    why = "the service ended under this run" if deployed else "the process of this run has died"
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
    """Cancel all runs of the worker, and return how many there are."""
    runs = _deployed_runs(api)
    why = "`bessemer serve stop`: finished parts and checkpoints are kept"
    for run in runs:
        _set_state(api, "flow_runs", run, "CANCELLING", why)
    return len(runs)


def wait_for_runs(api: str, seconds: float) -> bool:
    """Wait until no run of the worker is active; return False where one still is after `seconds`."""
    deadline = time.monotonic() + seconds
    while _deployed_runs(api):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _deployed_runs(api: str) -> list[str]:
    return _runs(api, {"deployment_id": {"is_null_": False}})


def _runs(api: str, chosen: dict[str, Any]) -> list[str]:
    """Return the ids of the active flow runs among the chosen ones."""
    under_way = {"flow_runs": {"state": {"type": {"any_": ACTIVE_STATES}}, **chosen}}
    return [run["id"] for run in filtered(f"{api}/flow_runs/filter", under_way)]


def _set_state(api: str, of: str, run: str, kind: str, message: str) -> None:
    state = {"type": kind, "name": kind.capitalize(), "message": message}
    post(f"{api}/{of}/{run}/set_state", {"state": state, "force": kind == "CRASHED"})


def post(url: str, body: dict[str, Any]) -> Any:
    """Send a POST request and return the answer; Infra where there is none."""
    return json.loads(_request("POST", url, body))


def filtered(url: str, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all chosen objects, which the server gives page by page; Infra where it does not answer."""
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    while page := post(url, {**chosen, "offset": offset}):
        offset += len(page)
        # By id: objects added or removed meanwhile shift others from page to page.
        found |= {one["id"]: one for one in page}
    return list(found.values())


def _open(request: urllib.request.Request, seconds: float) -> Any:
    """Open a request with the trusted authority and without a proxy for `::1`."""
    url, own = request.full_url, os.environ.get(OWN_AUTHORITY)
    trusted = ssl.create_default_context(cafile=own) if url.startswith("https://") else None
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=trusted)]
    if urlsplit(url).hostname == "::1":
        # `urllib` does not find "[::1]" in the "::1" of `no_proxy`.
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers).open(request, timeout=seconds)


def _request(method: str, url: str, body: dict[str, Any] | None = None) -> bytes:
    headers = {"Content-Type": "application/json"}
    if CLIENT_AUTH in os.environ:
        headers["Authorization"] = f"Basic {base64.b64encode(os.environ[CLIENT_AUTH].encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with _open(request, seconds=30) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")
            if error.code != BUSY or time.monotonic() > deadline:
                raise Infra(f"the server refused {method} {url}: {error}: {detail}") from error
        except (urllib.error.URLError, OSError) as error:
            raise Infra(f"the server did not answer {method} {url}: {error}") from error
        time.sleep(BUSY_PAUSE)


def read_automations() -> list[dict[str, Any]]:
    """Return the automations as the server's API takes them."""
    return yaml.safe_load(shipped("automations.yaml").read_text(encoding="utf-8"))["automations"]


def write_automations(api: str) -> int:
    """Write each automation to the server once, and return how many there are.

    Existing ones are updated in place: a server with PostgreSQL learns of new ones by a notification, and would miss
    what happens until then, for example to runs of a machine that died.
    """
    ours = read_automations()
    names = [automation["name"] for automation in ours]
    known: dict[str, list[str]] = {}
    for one in filtered(f"{api}/automations/filter", {"automations": {"name": {"any_": names}}}):
        known.setdefault(one["name"], []).append(one["id"])
    for automation in ours:
        first, *duplicates = known.get(automation["name"], [None])
        if first is None:
            post(f"{api}/automations/", automation)
        else:
            _request("PUT", f"{api}/automations/{first}", automation)
        for duplicate in duplicates:
            _request("DELETE", f"{api}/automations/{duplicate}")
    return len(ours)
