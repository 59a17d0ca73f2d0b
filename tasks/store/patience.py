"""How often and how long a store is asked before it is given up."""

import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any, NoReturn

from model.errors import BessemerError, Infra, InputError

log = logging.getLogger(__name__)

ANSWER_SECONDS = float(os.environ.get("BESSEMER_STORE_SECONDS", "60"))
"""Within which one request must be answered whole; larger files have longer."""
LEAST_BYTES_PER_SECOND = 200_000
TRIES = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds; pauses double, and half of each is chance, so that many readers do not come back together."""
_chance = random.Random()
NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"})


def seconds_for(size: int) -> float:
    """The deadline of a request that carries `size` bytes."""
    return ANSWER_SECONDS + size / LEAST_BYTES_PER_SECOND


def ask(what: str, request: Callable[[], Any]) -> Any:
    """What the request gives, asked again with growing pauses while the store fails.

    FileNotFoundError and FileExistsError are answers and passed on. Raises InputError where access is refused, Infra
    where no try was answered; `what` names the request and its address.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return request()
        except (BessemerError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # Every store has errors of its own that share no class.
            if stands_already(error):
                raise FileExistsError(what) from error
            if _is_refused(error):
                _refused(what, error)
            if attempt == TRIES:
                raise Infra(
                    f"the object store failed {TRIES} times: {what} ({_words(error)}). What is finished is kept: look"
                    f" whether the store answers, and run again to go on."
                ) from error
            pause = min(FIRST_PAUSE * 2.0 ** (attempt - 1), LONGEST_PAUSE)
            log.info("%s: %s; asked again in %.1f s", what, _words(error), pause)
            time.sleep(pause * (0.5 + _chance.random() / 2))
    raise AssertionError("the last try raises")


def stands_already(error: BaseException) -> bool:
    """Whether a store refused to create an object because one stands there."""
    if isinstance(error, FileExistsError):
        return True
    code, status = _answer(error)
    return code == "PreconditionFailed" or status == 412


def _is_refused(error: Exception) -> bool:
    return isinstance(error, PermissionError) or type(error).__name__ in NO_CREDENTIALS


def _refused(what: str, error: Exception) -> NoReturn:
    raise InputError(
        f"the object store refuses access: {what} ({_words(error)}). Give this machine credentials that may list, read,"
        f" write and delete there, in the environment or the store's configuration files."
    ) from error


def _answer(error: BaseException | None) -> tuple[str, int]:
    """The code and HTTP status that a store gave, which client libraries hide in an error's cause."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            code = str(response.get("Error", {}).get("Code", ""))
            return code, int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        error = error.__cause__
    return "", 0


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no more is known'}"
