"""A service that `bessemer serve start` started, and a real browser that is logged in from the address that `up`
printed.

Screenshots go to the folder that BESSEMER_SCREENSHOTS names, else to pytest's temporary folder.
"""

import base64
import json
import os
import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import bessemer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
COUNT_CLICKS = """
addEventListener("click", event => {
    if (event.isTrusted) sessionStorage.clicks = Number(sessionStorage.clicks || 0) + 1
}, true)
"""
"""Of the mouse, over all pages of a tab; keys and scripts make none that are trusted."""
SECONDS = 900.0
"""After which something hangs; busy machines are slow."""
BUSY = 503
"""What the server answers while another of its tasks holds its SQLite; Prefect's own clients ask again, too."""


class Service:
    """A service that is up, and what its API says."""

    def __init__(self, root: Path, printed: str) -> None:
        self.root = root
        self.printed = printed
        """The address of the UI that `up` printed."""
        self.ui = printed.removesuffix("/deployments")

    def password(self) -> str:
        return (self.root / "service" / "password").read_text().strip()

    def ask(self, path: str, body: Any) -> Any:
        secret = base64.b64encode(self.password().encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {secret}"}
        request = urllib.request.Request(f"{self.ui}/api{path}", json.dumps(body).encode(), headers)
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def pid(self, name: str) -> int:
        """Of `server`, `worker` or `keeper`."""
        return json.loads((self.root / "service" / f"{name}.json").read_text())["pid"]

    def deployment(self, name: str) -> dict[str, Any]:
        (found,) = self.ask("/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return found

    def runs(self, deployment: str) -> list[dict[str, Any]]:
        chosen = {"deployments": {"name": {"any_": [deployment]}}}
        return self.ask("/flow_runs/filter", {**chosen, "sort": "EXPECTED_START_TIME_ASC"})

    def stages(self, run: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Name -> state of a run's task runs, which the server writes down a little later than they end."""
        tasks = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
        return {task["name"]: task["state"] for task in tasks}

    def wait_until_ended(self, deployment: str, run_id: str | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            ended = [run for run in self.runs(deployment) if run["end_time"] and run_id in (None, run["id"])]
            if ended:
                return ended[0]
            time.sleep(0.5)
        raise AssertionError(f"no run of {deployment} ended: {(self.root / 'service' / 'worker.log').read_text()}")


@pytest.fixture(scope="module")
def recipe(foundry: Path) -> Path:
    return foundry / "foundry.toml"


@pytest.fixture(scope="module")
def service(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("root")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        reported = bessemer("serve", "start", "--root", root, "--recipe", recipe, "--port", str(port)).stdout
        printed = re.search(rf"http://127\.0\.0\.1:{port}/deployments", reported)
        assert printed, reported
        bessemer("run", recipe, "--root", root, "--json")
        yield Service(root, printed.group())
    finally:
        bessemer("serve", "stop", "--root", root, code=None)


@pytest.fixture(scope="module")
def page(service: Service) -> Iterator[Any]:
    """A tab of a browser, in which both UIs know the password."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; on Debian: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(120_000)
        page.add_init_script(COUNT_CLICKS)
        page.goto(service.printed)
        page.locator("input[type=password]").fill(service.password())
        page.get_by_role("button", name="Login").click()
        page.get_by_text("Items per page").wait_for()
        yield page
        browser.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("BESSEMER_SCREENSHOTS")
    if folder is None:
        return tmp_path_factory.mktemp("screenshots")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
