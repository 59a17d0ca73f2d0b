"""How often and how long a store or server is asked before it is given up, and what its refusals mean.

Where waits are reported (`heard_waits`, within a build), a server that is busy or down is waited for; elsewhere (a
question that a person waits for, a thread that tries again later by itself) it is given up after a few tries.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

from model.errors import AccessError, BessemerError, Infra
from tasks.credentials import without_credentials

log = logging.getLogger(__name__)

ANSWER_SECONDS = float(os.environ.get("BESSEMER_STORE_SECONDS", "60"))
"""Within which one request must be answered whole; larger files have longer."""
LEAST_BYTES_PER_SECOND = 200_000
TRIES = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds; pauses double, and half of each is chance, so that many readers do not come back together."""
PATIENCE_SECONDS = 900.0
"""How long a server that is busy or down is waited for within a build; as long again in each retry of the stage."""
LONGEST_ASKED_PAUSE = 300.0
"""Most seconds of a Retry-After that are waited before the next try."""
TOLD_SECONDS = 60.0
"""Between two sentences about the same wait."""
NO_CREDENTIALS = frozenset(
    {
        "LocalTokenNotFoundError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
REFUSALS = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
"""Codes of S3 for credentials that it does not take."""
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""
_DOWN = (
    "ClientConnectorError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "EndpointConnectionError",
    "PoolTimeout",
    "ReadTimeout",
    "ReadTimeoutError",
)
"""Errors of client libraries for a server that is not reached now; beside those of Python itself."""
_chance = random.Random()
_heard: ContextVar[Callable[[str], None] | None] = ContextVar("heard_waits", default=None)


@dataclass(frozen=True)
class Answer:
    """What a server answered, as far as an error of a client library says."""

    code: str = ""
    status: int = 0
    retry_after: float | None = None
    """Seconds that it asks to be left alone."""


@contextmanager
def heard_waits(hear: Callable[[str], None]) -> Iterator[None]:
    """Within the block this thread waits for servers that are busy or down, and `hear` gets a sentence a wait."""
    token = _heard.set(hear)
    try:
        yield
    finally:
        _heard.reset(token)


def seconds_for(size: int) -> float:
    """The deadline of a request that carries `size` bytes."""
    return ANSWER_SECONDS + size / LEAST_BYTES_PER_SECOND


def ask(
    what: str,
    request: Callable[[], Any],
    *,
    of: str = "the object store",
    renew: Callable[[], None] | None = None,
    reason: Callable[[Exception], Exception] = lambda error: error,
) -> Any:
    """What the request gives, asked again with growing pauses while the server fails.

    `what` names the request and its address, `of` the server. `renew` reads the credentials of this machine again,
    which may have been replaced since they were read. `reason` gives the error that says why, where the one that was
    raised says too little. FileNotFoundError and FileExistsError are answers and passed on. Raises AccessError where
    access is refused, Infra where no try was answered.
    """
    attempt, unexplained, began, renewed, told = 0, 0, time.monotonic(), renew is None, -TOLD_SECONDS
    while True:
        try:
            return request()
        except (BessemerError, FileExistsError):
            raise
        except Exception as caught:  # Every store has errors of its own that share no class.
            error = _behind(caught)
            if isinstance(error, BessemerError):
                raise error from caught
            if isinstance(error, FileNotFoundError):
                raise
            if stands_already(error):
                raise FileExistsError(what) from error
            error = reason(error)
            if _is_refused(error):
                if renewed:
                    _refused(of, what, error)
                assert renew is not None
                renew()
                renewed = True
                continue
            attempt += 1
            waited = time.monotonic() - began
            hear = _heard.get() if _may_pass(error) else None
            # A connection that breaks after minutes of being told to wait is the first of its kind.
            unexplained += hear is None
            if waited >= PATIENCE_SECONDS if hear else unexplained >= TRIES:
                raise Infra(
                    f"{of} failed {attempt} times in {waited:.0f} s: {what} ({_words(error)}). What is finished is"
                    f" kept: look whether it answers, and run again to go on."
                ) from error
            pause = min(FIRST_PAUSE * 2.0 ** min(attempt - 1, 30), LONGEST_PAUSE) * (0.5 + _chance.random() / 2)
            if (asked := answer_of(error).retry_after) is not None:
                pause = max(pause, min(asked, LONGEST_ASKED_PAUSE if hear else LONGEST_PAUSE))
            if hear and pause >= 1 and waited >= told + TOLD_SECONDS:
                told, left = waited, max(0.0, PATIENCE_SECONDS - waited) / 60
                hear(f"waiting: {what} ({_words(error)}); asked again in {pause:.0f} s, and for {left:.0f} min at most")
            log.info("%s: %s; asked again in %.1f s", what, _words(error), pause)
            time.sleep(pause)


def stands_already(error: BaseException) -> bool:
    """Whether a store refused to create an object because one stands there."""
    if isinstance(error, FileExistsError):
        return True
    answer = answer_of(error)
    return answer.code == "PreconditionFailed" or answer.status == 412


def answer_of(error: BaseException | None) -> Answer:
    """What a server answered, which client libraries hide in an error's cause: a response of botocore, aiohttp, httpx
    or requests, or a bare status."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            told = response.get("ResponseMetadata", {})
            headers = told.get("HTTPHeaders", {})
            code = str(response.get("Error", {}).get("Code", ""))
            return Answer(code, int(told.get("HTTPStatusCode", 0)), _seconds_asked(headers))
        for found in (response, error):
            for name in ("status_code", "status", "code"):
                status = getattr(found, name, None)
                if isinstance(status, int) and 100 <= status < 600:
                    return Answer("", status, _seconds_asked(getattr(found, "headers", None)))
        error = error.__cause__ or error.__context__
    return Answer()


def reason_on_s3(filesystem: Any, bucket: str, error: Exception) -> Exception:
    """Why S3 refused: its answer to HEAD has no body and so no code ("400 Bad Request" for an expired token), and its
    answer to a listing has. The error itself where it says enough, or where the listing is answered."""
    answer = answer_of(error)
    if answer.status not in (400, 401, 403) or answer.code in REFUSALS or not hasattr(filesystem, "call_s3"):
        return error
    try:
        filesystem.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1)
    except Exception as told:
        return told if _is_refused(told) else error
    return error


def _behind(error: Exception) -> Exception:
    """What is behind a FileNotFoundError that `fsspec` makes of any failure to reach a page; the hub's, of which an
    unknown name is one of those that it refuses, stays what it is."""
    cause = error.__cause__
    if isinstance(cause, BessemerError):
        return cause
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        of_the_web = type(cause).__module__.startswith("aiohttp") or isinstance(cause, TimeoutError | ConnectionError)
        status = answer_of(cause).status
        if status in BUSY or (of_the_web and status not in (404, 410)):
            return cause
    return error


def _may_pass(error: BaseException) -> bool:
    """Whether the server is there and busy, or down and may come back; a host name that is not known will not be."""
    answer = answer_of(error)
    if answer.status:
        return answer.status in BUSY
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ClientConnectorDNSError" in names or "Name or service not known" in str(error):
        return False
    return isinstance(error, TimeoutError | ConnectionError) or not names.isdisjoint(_DOWN)


def _is_refused(error: BaseException) -> bool:
    if isinstance(error, PermissionError) or type(error).__name__ in NO_CREDENTIALS:
        return True
    answer = answer_of(error)
    return answer.code in REFUSALS or answer.status in (401, 403)


def _refused(of: str, what: str, error: Exception) -> NoReturn:
    code = answer_of(error).code
    told = f"{code}: {_words(error)}" if code and code not in str(error) else _words(error)
    raise AccessError(
        f"{of} refuses access: {what} ({told}). If the credentials of this machine expired or were withdrawn, put new"
        f" ones where the old ones are: the environment, or the store's configuration files (~/.aws/credentials, the"
        f" token of `hf auth login`). Else give it some that may do this there. What is finished is kept: run again to"
        f" go on."
    ) from error


def _seconds_asked(headers: Any) -> float | None:
    value = None
    if headers is not None:
        with contextlib.suppress(AttributeError):
            value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, float(value)) if float(value) < float("inf") else None
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _words(error: BaseException) -> str:
    # Stores hand out signed addresses, and their errors name them.
    told = without_credentials(str(error))
    return f"{type(error).__name__}: {told.splitlines()[0][:200] if told else 'no more is known'}"
