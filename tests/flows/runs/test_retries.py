"""The class of an error decides whether Prefect tries again: on a real server, with a real task."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os
from pathlib import Path
from flows.service.local_server import prefect_server
with prefect_server(Path(os.environ["PREFECT_HOME"])) as url:
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from model.errors import BessemerError, Infra, InputError
    from tasks.execution.outcome import is_retryable
    attempts = {"infra": 0, "input": 0, "stranger": 0}

    @task(retries=3, retry_delay_seconds=0.1, retry_condition_fn=is_retryable, cache_policy=NO_CACHE)
    def stage(name, error, failures):
        attempts[name] += 1
        if attempts[name] <= failures:
            raise error
        return name

    @flow
    def pipeline():
        ends = [stage("infra", Infra("the disk was full for a moment"), 2)]
        for name, error in (("input", InputError("no such file")), ("stranger", ValueError("what is this"))):
            try:
                stage(name, error, 2)
            except ValueError as raised:
                ends.append(type(raised).__name__)
        return ends

    ends = pipeline()
    server = url.removesuffix("/api")
print(json.dumps({"attempts": attempts, "ends": ends, "url": os.environ.get("PREFECT_API_URL")}))
"""


def test_infrastructure_is_tried_again_and_nothing_else(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "PREFECT_HOME": str(tmp_path), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"},
        check=True,
    )
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["attempts"] == {"infra": 3, "input": 1, "stranger": 1}
    assert reported["ends"] == ["infra", "InputError", "ValueError"]
    assert reported["url"] is None
