"""Questions to the API of a service that runs."""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECONDS = 600.0
"""How long an answer may take on a busy machine, where several processes of Prefect wait for one SQLite file."""


def _ask(root: Path, port: int, path: str, body: Any, method: str = "POST") -> Any:
    token = base64.b64encode((root / "service" / "password").read_bytes().strip()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
    url = f"http://127.0.0.1:{port}/api{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    for _ in range(10):
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            # A busy machine's SQLite: Prefect's own clients ask again, too.
            if error.code != 503:
                raise
            time.sleep(1)
    raise AssertionError(f"{url}: 503 ten times")


@pytest.fixture(scope="session")
def ask() -> Callable[..., Any]:
    """`ask(root, port, path, body, method="POST")`: the answer of the server of `root` to one with its password."""
    return _ask
