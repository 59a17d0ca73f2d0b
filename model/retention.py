"""Which checkpoints may go when a new one stands."""

from collections.abc import Collection


def superseded(standing: Collection[int], newest: int, keep: int, healthy: Collection[int] = ()) -> list[int]:
    """Steps of checkpoints that may go, of those `standing`, now that the one after step `newest` stands.

    The newest `keep` stay, and the `healthy` ones (`guard.health.Health.to_keep`): the newest may all come from a
    training that is already on its way to ruin. Those after later steps go: they belong to an attempt that was given
    up, and a run that went on from one would not be this run.
    """
    led_here = sorted(step for step in standing if step <= newest)
    return sorted(set(standing) - {*led_here[-keep:], *(set(led_here) & set(healthy))})
