"""The class of an error decides whether Prefect tries again: on a real server, with a real task."""

from collections import Counter

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from model.errors import Infra, InputError
from tasks.execution.outcome import is_retryable

pytestmark = pytest.mark.usefixtures("shared_server")


def test_infrastructure_is_tried_again_and_nothing_else() -> None:
    attempts: Counter[str] = Counter()

    @task(retries=3, retry_delay_seconds=0.1, retry_condition_fn=is_retryable, cache_policy=NO_CACHE)
    def stage(name: str, error: Exception, failures: int) -> str:
        attempts[name] += 1
        if attempts[name] <= failures:
            raise error
        return name

    @flow
    def pipeline() -> list[str]:
        ends = [stage("infra", Infra("the disk was full for a moment"), 2)]
        for name, error in (("input", InputError("no such file")), ("stranger", ValueError("what is this"))):
            try:
                stage(name, error, 2)
            except ValueError as raised:
                ends.append(type(raised).__name__)
        return ends

    assert pipeline() == ["infra", "InputError", "ValueError"]
    assert attempts == {"infra": 3, "input": 1, "stranger": 1}
