"""A server that is busy is asked again; one that refuses is not."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.service import api
from flows.service.files import ServiceFiles
from flows.service.local_server import prefect_server
from flows.service.server import write_deployments
from model.environment import reach_this_machine_directly
from model.errors import AccessError, Infra


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[str, list[bytes]]]]:
    """Start a server that answers with these codes, one after the other; gives its address and what it was asked."""
    servers: list[HTTPServer] = []

    def start(codes: list[int], host: str = "127.0.0.1") -> tuple[str, list[bytes]]:
        asked: list[bytes] = []

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                self.send_response(codes[len(asked) - 1])
                self.end_headers()
                self.wfile.write(b'{"asked": "enough"}')

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        class Server(HTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        servers.append(Server((host, 0), Answers))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://{f'[{host}]' if ':' in host else host}:{servers[-1].server_port}/", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_busy_server_is_asked_again(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "BUSY_PAUSE", 0.0)
    url, asked = serve([503, 503, 200])
    assert api.post(url, {"a": 1}) == {"asked": "enough"}
    assert [json.loads(body) for body in asked] == [{"a": 1}] * 3


def test_one_that_stays_busy_is_reported(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "BUSY_SECONDS", 0.0)
    url, _ = serve([503])
    with pytest.raises(Infra, match=r"the server refused POST .* 503"):
        api.post(url, {})


def test_a_refusal_is_reported_at_once(serve) -> None:
    url, asked = serve([409])
    with pytest.raises(Infra, match="409"):
        api.post(url, {})
    assert len(asked) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_a_run_whose_password_is_refused_says_which_one(
    serve, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import SyncPrefectClient

    monkeypatch.setenv("PREFECT_API_URL", f"{serve([code])[0]}api")
    with (
        pytest.raises(AccessError, match="PREFECT_API_URL in the environment names, refuses the password"),
        prefect_server(tmp_path) as url,
        SyncPrefectClient(url) as client,
    ):
        client.request("GET", "/admin/version")


def test_all_pages_of_a_server_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prefect gives 200 at once."""
    things = [{"id": str(number), "name": f"thing-{number}", "status": "ONLINE"} for number in range(450)]
    asked: list[dict[str, Any]] = []

    def post(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(body)
        return things[body.get("offset", 0) :][:200]

    monkeypatch.setattr(api, "post", post)
    assert api.filtered("/flow_runs/filter", {"flow_runs": {}}) == things
    assert all(body["flow_runs"] == {} for body in asked)
    assert api.is_worker_online("", "pool", "thing-449")
    files = ServiceFiles(tmp_path)
    files.folder.mkdir()
    things[-1]["name"] = "00-pretrain"
    written = yaml.safe_load(write_deployments(files).read_text())["deployments"]
    assert "schedules" not in next(one for one in written if one["name"] == "00-pretrain")


def test_a_server_at_the_ipv6_loopback_address_is_asked_without_a_proxy(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    reach_this_machine_directly()
    try:
        url, asked = serve([200, 200], "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert api.post(url, {"a": 1}) == {"asked": "enough"}
    assert api.is_healthy(url)
    assert len(asked) == 2


def test_runs_ask_a_server_whose_database_is_away_again(serve, tmp_path: Path) -> None:
    """Prefect's own client as worker and runs have it; such a server answers 500."""
    url, asked = serve([500, 200])
    ask = "from prefect.client.orchestration import get_client; get_client(sync_client=True).hello()"
    quick = {"PREFECT_API_URL": url, "PREFECT_CLIENT_RETRY_JITTER_FACTOR": "0"}
    environment = {**ServiceFiles(tmp_path).environment(), **quick}
    subprocess.run([sys.executable, "-c", ask], env=environment, check=True, timeout=60)
    assert len(asked) == 2
