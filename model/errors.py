"""All errors. A process exits with the code of its error's class.

Every message says what was requested, what was found, and what to do.
"""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class BessemerError(Exception):
    """The base class; a command or trainer exits with `exit_code`, and tasks retry if `retryable`."""

    exit_code = 70
    retryable = False


class RecipeError(BessemerError, ValueError):
    """The recipe is invalid: unknown key, wrong type, bad weight."""

    exit_code = 2


class InputError(BessemerError, ValueError):
    """A file, column or benchmark is missing, empty or broken."""

    exit_code = 3


class GuardError(BessemerError):
    """A safety limit was exceeded: a source almost empty, too many rejects; what was built is not used."""

    exit_code = 4


class IntegrityError(BessemerError):
    """Bytes do not match their digest, so that nothing was computed from them, or two builds of one identity differ."""

    exit_code = 5


class Bug(BessemerError):
    """A bug of this program."""

    exit_code = 70


class Infra(BessemerError):
    """The machine failed: disk, memory, network, a killed process; the same call may succeed later."""

    exit_code = 75
    retryable = True


class Numerics(BessemerError):
    """Training produced non-finite numbers too often to go on, and the guard can do no more."""

    exit_code = 76


class AccessError(BessemerError):
    """A store or server refuses this machine's credentials: expired, unknown, or not allowed; a later run continues
    once they are valid."""

    exit_code = 77


def validation_problems(error: "ValidationError") -> str:
    """Return each wrong value of a configuration: its place, and what is wrong in the words of its check alone."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors()
    )


def json_problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a line of a file of JSON lines, and where.

    The library's own words count lines from that of the record, which reads like a line of the file.
    """
    if not isinstance(error, json.JSONDecodeError):
        return str(error)  # An integer of more than 4,300 digits, or lists within thousands of others.
    end = len(error.doc.rstrip("\r\n"))
    # Some messages of the library end in "at", to which it adds a place itself.
    return f"{error.msg.removesuffix(' at')} at character {min(error.pos, end) + 1} of the line"


def json_type(value: object) -> str:
    """Return what JSON calls a value, with its article; another value by its class in Python."""
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    names |= {type(None): "null", bool: "true or false"}
    return names.get(type(value), f"a {type(value).__name__}")


class Paused(Exception):
    """No error: training paused after `step` of `steps` steps, with a loss of `loss` nats (None where unknown).

    It wrote a checkpoint from which it continues to the same weights, bit for bit. A search of many trainings pauses
    the worse ones early (successive halving, Jamieson and Talwalkar 2016).
    """

    def __init__(self, step: int, steps: int, loss: float | None) -> None:
        super().__init__(step, steps, loss)
        self.step = step
        self.steps = steps
        self.loss = loss

    def __str__(self) -> str:
        return f"paused after step {self.step} of {self.steps}; training continues from the checkpoint that was written"
