"""Choose what trains next: settings of a new trial by Optuna's samplers, and promotions by successive halving.

A suggestion is a function of the search's seed, the trial's number and the trials before it, so that a killed and
resumed search suggests what an uninterrupted one would have.

Asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning") compares
trials at rungs, a geometric series of shares of the training. A trial continues as soon as it is among the best 1/eta
of those that reached its rung so far, without waiting for the rung to fill. Each trial trains with the schedule of the
whole training, so that pauses do not change it.
"""

import json
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from flows.experiments.search_config import Choices, Range, SearchConfig
from flows.experiments.studies import Value
from flows.experiments.trial_log import Trial
from tasks.common.numeric import seed64

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

GOOD_SHARE = 0.25
"""Share of the trials that the sampler treats as good. Optuna's tenth is two of twenty trials: from a rate 30 times
wrong, suggestions 11 to 20 lay .76 decades from the best rate, and .44 with a quarter (12 seeds; at random 1.45)."""


def suggest(config: SearchConfig, trials: Sequence[Trial]) -> dict[str, Value]:
    """Return the settings of the trial that follows `trials`."""
    import optuna

    seed = seed64(config.seed, "search", config.sampler, str(len(trials))) % 2**32
    if config.sampler == "tpe":
        with warnings.catch_warnings():
            # Optuna 5 deprecates `gamma` for version 6, which pyproject.toml excludes.
            warnings.simplefilter("ignore", FutureWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup_trials, gamma=_good_trials)
    else:
        sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna_study(config, trials, sampler)
    suggested = study.ask({key: distribution(axis) for key, axis in config.space.items()}).params
    # Choices are suggested as JSON.
    return {key: json.loads(seen) if isinstance(seen := suggested[key], str) else seen for key in config.space}


def _good_trials(trials: int) -> int:
    return max(1, math.ceil(GOOD_SHARE * trials))


def optuna_study(
    config: SearchConfig, trials: Sequence[Trial], sampler: "optuna.samplers.BaseSampler | None" = None
) -> "optuna.Study":
    """Return an Optuna study of the trials whose settings are in the space.

    A paused trial counts as pruned, with its losses at rungs: the sampler prefers one that reached a higher rung, and
    of equals the one with the lower loss. A diverged trial is the worst; one that failed otherwise is left out.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler, direction=config.objective.direction)
    sign = 1.0 if config.objective.direction == "minimize" else -1.0
    space, states = config.space, optuna.trial.TrialState
    for trial in trials:
        known = all(key in trial.settings and _contains(axis, trial.settings[key]) for key, axis in space.items())
        if trial.state in ("failed", "waiting") or not known:
            continue
        ends = {
            "complete": (states.COMPLETE, trial.value),
            "diverged": (states.COMPLETE, sign * math.inf),
            "paused": (states.PRUNED, None),
        }
        state, value = ends.get(trial.state, (states.RUNNING, None))
        seen = {
            key: json.dumps(trial.settings[key]) if isinstance(axis, Choices) else trial.settings[key]
            for key, axis in space.items()
        }
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=value,
                params=seen,
                distributions={key: distribution(axis) for key, axis in space.items()},
                intermediate_values={stop.rung: sign * stop.loss for stop in trial.stops if stop.loss is not None},
                user_attrs={"trial": trial.number},
            )
        )
    return study


def distribution(axis: Range | Choices) -> "BaseDistribution":
    """Return the values of a key as an Optuna distribution; choices as JSON, so that they can be of any type."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, Choices):
        return CategoricalDistribution([json.dumps(value) for value in axis.choices])
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log)


def _contains(axis: Range | Choices, value: Value) -> bool:
    if isinstance(axis, Choices):
        return json.dumps(value) in map(json.dumps, axis.choices)
    if isinstance(value, bool | str) or (axis.is_whole and not isinstance(value, int)):
        return False
    return axis.low <= value <= axis.high


def format_value(value: Value) -> str:
    """Return `0.00312`, `true`, `cosine`."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_settings(settings: Mapping[str, Value]) -> str:
    """Return `train.schedule.peak_lr=0.00312, train.batch_rows=8`."""
    return ", ".join(f"{key}={format_value(value)}" for key, value in settings.items())


def rung_shares(rungs: int, eta: int) -> tuple[float, ...]:
    """Return the shares of the training at which trials are compared; the last is its end. (3, 3) -> (1/9, 1/3, 1)."""
    return tuple(float(eta) ** -(rungs - 1 - rung) for rung in range(rungs))


def next_promotion(
    losses: Sequence[Mapping[int, float]], began: Sequence[Collection[int]], eta: int
) -> tuple[int, int] | None:
    """Return the trial to continue and the rung to train it to; None where no trial qualifies.

    `losses[k]` are those of the trials that reached rung k, `began[k]` the trials that reached it or are trained to it.
    The highest rung comes first: its trials are nearest to a result.
    """
    for rung in reversed(range(1, len(began))):
        trial = best_to_promote(losses[rung - 1], began[rung], eta)
        if trial is not None:
            return trial, rung
    return None


def best_to_promote(losses: Mapping[int, float], continued: Collection[int], eta: int) -> int | None:
    """Return the best trial among the best 1/eta of a rung that has not continued from it yet, or None.

    Diverged trials never continue. Of equal losses the earlier trial's counts as better.
    """
    ranked = sorted((loss, trial) for trial, loss in losses.items() if math.isfinite(loss))
    best = ranked[: len(losses) // eta]
    return next((trial for _, trial in best if trial not in continued), None)
