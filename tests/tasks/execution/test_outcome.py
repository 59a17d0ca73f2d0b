"""States of stages: named after what happened, with the reason as message."""

from pathlib import Path

import pytest

from model.errors import Paused, RecipeError
from tasks.artifacts.artifact import ACCEPTED, BUILT, REPRODUCED, REUSED, Artifact
from tasks.execution.outcome import final_state


def artifact(outcome: str, cause: str = "") -> Artifact:
    return Artifact(Path("/nowhere"), "dedup", "0123456789abcdef", "content", outcome, cause)


@pytest.mark.parametrize(
    ("attempt", "found", "message"),
    [
        (1, artifact(BUILT, "params.threshold: 0.8 -> 0.9"), "params.threshold: 0.8 -> 0.9"),
        (1, artifact(REUSED), "nothing that decides 0123456789ab changed"),
        (1, artifact(ACCEPTED, "accepted by Ada"), "accepted by Ada"),
        (1, artifact(REPRODUCED, "forced"), "forced"),
        (2, artifact(BUILT, "code changed"), "after 1 retry: code changed"),
        (4, artifact(BUILT, "code changed"), "after 3 retries: code changed"),
    ],
)
def test_an_artifact_gives_a_state_named_after_its_outcome(attempt: int, found: Artifact, message: str) -> None:
    state = final_state(attempt, lambda config: found, "config")
    assert state == {"type": "COMPLETED", "name": found.outcome.capitalize(), "message": message, "data": found}


def test_an_error_of_the_tree_gives_a_state_named_after_its_class_with_one_line() -> None:
    error = RecipeError("foundry.toml:\n  dedup.bnads: unknown key")

    def build() -> Artifact:
        raise error

    message = "foundry.toml: dedup.bnads: unknown key"
    assert final_state(1, build) == {"type": "FAILED", "name": "RecipeError", "message": message, "data": error}
    assert final_state(3, build)["message"] == f"after 2 retries: {message}"


def test_a_pause_is_no_failure_and_its_state_says_so() -> None:
    pause = Paused(6, 12, 2.5)

    def build() -> Artifact:
        raise pause

    message = "paused after step 6 of 12; training continues from the checkpoint that was written"
    assert final_state(1, build) == {"type": "COMPLETED", "name": "Paused", "message": message, "data": pause}


def test_a_stranger_is_raised_with_its_traceback() -> None:
    def build() -> Artifact:
        raise KeyError("what is this")

    with pytest.raises(KeyError):
        final_state(1, build)
