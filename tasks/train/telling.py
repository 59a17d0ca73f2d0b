"""The trainer's messages in words for a log: every start, event and end, and a step every twentieth of the way."""

from collections.abc import Iterator
from typing import Any

STEPS_TOLD = 20
FOR_THE_TERMINAL = ("rollback", "recovered")
"""Events that the terminal of a run shows, besides the log."""


class MessageTeller:
    """Remembers how far the log has got, so that ten thousand steps do not become ten thousand lines."""

    def __init__(self) -> None:
        self._told = -1

    def sentences(self, message: dict[str, Any]) -> Iterator[str]:
        """No sentence or one for each message of the trainer."""
        kind = message.get("kind")
        if kind == "start":
            yield f"training {message['parameters']:,} parameters, step {message['step']} of {message['steps']}"
        elif kind == "step":
            reached = message["step"] * STEPS_TOLD // max(message["steps"], 1)
            if reached > self._told:
                self._told = reached
                yield (
                    f"step {message['step']} of {message['steps']}: loss {message['loss']:.4f},"
                    f" {message['tokens_s']:,} tokens/s, learning rate {message['lr']:.2e}"
                )
        elif kind == "paused":
            yield f"paused after step {message['step']} of {message['steps']}, with a checkpoint to go on from"
        elif message.get("event") == "base_model":
            yield _beginning(message)
        elif message.get("event") == "restart":
            yield _restart(message)
        elif message.get("event") == "rollback":
            yield _rollback(message)
        elif message.get("event") == "recovered":
            yield (
                f"recovered by step {message['step']}: what began at step {message['onset']} ({message['cause']}) has"
                f" not come back"
            )
        elif kind in ("event", "done"):
            rest = ", ".join(f"{key} {value}" for key, value in message.items() if key not in ("kind", "event"))
            yield f"{message.get('event', kind)}: {rest}"


def _restart(message: dict[str, Any]) -> str:
    return (
        f"restart {message['number']} after step {message['step']}: {message['words'].rstrip('.')}; training goes on"
        f" from step {message['checkpoint']}, {message['seconds_lost']:.0f} seconds are lost"
    )


def _rollback(message: dict[str, Any]) -> str:
    settings = message["settings"].items()
    named = (f"{path} to {value:g}" if isinstance(value, float) else f"{path} to {value}" for path, value in settings)
    changes = ", ".join(named) or "nothing else"
    place = f"the checkpoint after step {message['to_step']}" if message["to_step"] else "its start"
    begin, end = message["skipped"]
    return (
        f"rollback at step {message['step']}: {message['cause']}; it began at step {message['onset']}, training goes"
        f" back to {place}, leaves out positions {begin:,} to {end:,} of ORDER"
        f" ({end - begin:,} rows) and changes {changes}"
    )


def _beginning(message: dict[str, Any]) -> str:
    told = f"starting from the trained weights {message['weights']}"
    rows = message.get("new_rows")
    if rows is None:
        return told
    lost = message["without_meaning"]
    besides = f"; for {lost:,} the base's ids say nothing, so that they start near the mean of all" if lost else ""
    return f"{told}, with {rows:,} new rows that start as {message['start']}{besides}"
