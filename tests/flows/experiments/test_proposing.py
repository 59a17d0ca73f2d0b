"""Proposals: within the space, a function of what is known, and better with it than without."""

import math
from typing import Any

import pytest

from flows.experiments.samplers import format_settings, optuna_study, suggest
from flows.experiments.search_config import SearchConfig, Value
from flows.experiments.trial_log import Stop, Trial

SPACE = {
    "train.schedule.peak_lr": {"low": 1e-5, "high": 1.0, "log": True},
    "train.batch_rows": {"choices": [4, 8, 16]},
    "train.model.layers": {"low": 1, "high": 4},
    "train.guard.enabled": {"choices": [True, False]},
}


def config(**settings: Any) -> SearchConfig:
    return SearchConfig.model_validate({"space": SPACE, **settings})


def trial(number: int, settings: dict[str, Value], **reported: Any) -> Trial:
    return Trial(number, "tpe", settings, f"run-{number}", **reported)


def settings(lr: float, rows: int = 8, layers: int = 2, guard: bool = True) -> dict[str, Value]:
    return {
        "train.schedule.peak_lr": lr,
        "train.batch_rows": rows,
        "train.model.layers": layers,
        "train.guard.enabled": guard,
    }


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_proposals_lie_in_the_space_with_its_types(sampler: str) -> None:
    trials: list[Trial] = []
    for number in range(12):
        found = suggest(config(sampler=sampler, startup_trials=4), trials)
        assert 1e-5 <= found["train.schedule.peak_lr"] <= 1.0
        assert found["train.batch_rows"] in (4, 8, 16)
        assert isinstance(found["train.batch_rows"], int)
        assert found["train.model.layers"] in (1, 2, 3, 4)
        assert isinstance(found["train.guard.enabled"], bool)
        trials.append(trial(number, found, state="complete", value=float(number)))


def test_a_proposal_depends_on_seed_number_and_what_is_known_alone() -> None:
    known = [trial(n, settings(10.0**-n), state="complete", value=float(n)) for n in range(1, 4)]
    assert suggest(config(), known) == suggest(config(), known)
    assert suggest(config(), known) != suggest(config(), known[:2])
    assert suggest(config(seed=2), known) != suggest(config(), known)


def test_the_sampler_sees_paused_running_and_diverged_trials_and_none_that_failed() -> None:
    paused = trial(0, settings(0.1), state="paused", rung=0, stops=[Stop(0, 10, 90, 2.5, 1.0, ())])
    running = trial(1, settings(0.2), state="running", rung=1, stops=[Stop(0, 10, 90, 2.0, 1.0, ())])
    diverged = trial(2, settings(0.3), state="diverged", rung=0)
    failed = trial(3, settings(0.4), state="failed")
    outside = trial(4, settings(7.0), state="complete", value=1.0)
    seen = optuna_study(config(), [paused, running, diverged, failed, outside]).get_trials()
    assert [one.user_attrs["trial"] for one in seen] == [0, 1, 2]
    assert [one.state.name for one in seen] == ["PRUNED", "RUNNING", "COMPLETE"]
    assert seen[0].intermediate_values == {0: 2.5}
    assert seen[2].value == math.inf


def test_where_more_is_better_lower_losses_at_rungs_still_are() -> None:
    objective = {"task": "cloze", "metric": "acc", "direction": "maximize"}
    paused = trial(0, settings(0.1), state="paused", rung=0, stops=[Stop(0, 10, 90, 2.5, 1.0, ())])
    (seen,) = optuna_study(config(objective=objective), [paused]).get_trials()
    assert seen.intermediate_values == {0: -2.5}


def test_it_comes_back_to_a_good_rate_where_chance_does_not() -> None:
    """The best rate is 1e-2; what is proposed after twenty trials lies nearer to it than what chance proposes."""

    def distance(sampler: str) -> float:
        trials: list[Trial] = []
        for number in range(30):
            found = suggest(config(sampler=sampler), trials)
            off = abs(math.log10(found["train.schedule.peak_lr"]) + 2)  # type: ignore[arg-type]
            trials.append(trial(number, found, state="complete", value=off))
        return sum(one.value or 0.0 for one in trials[20:]) / 10

    assert distance("tpe") < 0.6 < 0.9 < distance("random")


def test_settings_are_reported_briefly() -> None:
    assert format_settings({"a.b": 0.0123456, "c": True, "d": "cosine", "e": 8}) == "a.b=0.01235, c=true, d=cosine, e=8"
