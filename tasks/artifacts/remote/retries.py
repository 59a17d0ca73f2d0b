"""Requests to servers that may be busy, down or refuse access: attempts, pauses, deadlines, and errors in words.

Inside of `report_waits` (a build) a request is repeated for minutes while the server is busy or down; elsewhere (a
command that a person waits for, a thread that tries again later by itself) it fails after a few attempts.
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

from model.errors import AccessError, BessemerError, Infra, InputError
from tasks.common.text import without_credentials

log = logging.getLogger(__name__)

ANSWER_SECONDS = float(os.environ.get("BESSEMER_STORE_SECONDS", "60"))
"""Deadline for one request; larger files have more time."""

LEAST_BYTES_PER_SECOND = 200_000

TRIES = 8

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds; pauses double, and half of each is random, so that many readers do not retry at the same time."""

MAX_WAIT_SECONDS = 900.0
"""How long a build waits for a server that is busy or down; as long again in each retry of the stage."""

MAX_RETRY_AFTER_SECONDS = 300.0
"""Longest pause that a Retry-After header can ask for."""

NOTICE_SECONDS = 60.0
"""Time between two notices about the same wait."""

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
"""Error codes of S3 for rejected credentials."""

INVALID = "ParamValidationError"
"""Error of S3's client for a request that it does not send, such as one for a bucket of an impossible name."""

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
"""Errors of client libraries for a server that cannot be reached, in addition to those of Python itself."""

_random = random.Random()

_on_wait: ContextVar[Callable[[str], None] | None] = ContextVar("report_waits", default=None)
"""Receives sentences about waits; None where no wait is allowed."""


@contextmanager
def report_waits(on_wait: Callable[[str], None]) -> Iterator[None]:
    """Let this thread wait for servers that are busy or down, and call `on_wait` with a sentence about each wait."""
    token = _on_wait.set(on_wait)
    try:
        yield
    finally:
        _on_wait.reset(token)


@dataclass(frozen=True)
class Response:
    """The response of a server, as far as the error of a client library contains it."""

    code: str = ""
    status: int = 0
    retry_after: float | None = None
    """Seconds until the server wants the next request."""


def seconds_for(size: int) -> float:
    """Return the deadline, in seconds, of a request with `size` bytes."""
    return ANSWER_SECONDS + size / LEAST_BYTES_PER_SECOND


def with_retries(
    what: str,
    request: Callable[[], Any],
    *,
    of: str = "the object store",
    renew: Callable[[], None] | None = None,
    reason: Callable[[Exception], Exception] = lambda error: error,
) -> Any:
    """Return the result of a request, repeated with growing pauses while the server fails.

    `what` describes the request and its address, `of` names the server. `renew` reads the credentials of this machine
    again, which may have been replaced. `reason` returns the error that explains a given one, if that says too little.
    FileNotFoundError and FileExistsError are results and raised at once. Raises AccessError if access is refused,
    InputError if the client does not even send the request, Infra if every attempt failed.
    """
    attempt, unexplained, began, renewed, notified = 0, 0, time.monotonic(), renew is None, -NOTICE_SECONDS
    while True:
        try:
            return request()
        except (BessemerError, FileExistsError):
            raise
        except Exception as caught:  # errors of different stores share no base class
            error = _underlying_error(caught)
            if isinstance(error, BessemerError):
                raise error from caught
            if isinstance(error, FileNotFoundError):
                raise
            if already_exists(error):
                raise FileExistsError(what) from error
            if type(error).__name__ == INVALID:
                raise InputError(f"{what}: {' '.join(without_credentials(str(error)).split())}") from error
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
            on_wait = _on_wait.get() if _is_transient(error) else None
            # Only failures without a known reason count: a connection may break after minutes of "busy" responses.
            unexplained += on_wait is None
            if waited >= MAX_WAIT_SECONDS if on_wait else unexplained >= TRIES:
                raise Infra(
                    f"{of} failed {attempt} times in {waited:.0f} s: {what} ({_describe(error)}). What is finished is"
                    f" kept: check that it responds, and run again to continue."
                ) from error
            pause = min(FIRST_PAUSE * 2.0 ** min(attempt - 1, 30), LONGEST_PAUSE) * (0.5 + _random.random() / 2)
            if (retry_after := response_of(error).retry_after) is not None:
                pause = max(pause, min(retry_after, MAX_RETRY_AFTER_SECONDS if on_wait else LONGEST_PAUSE))
            if on_wait and pause >= 1 and waited >= notified + NOTICE_SECONDS:
                notified, left = waited, max(0.0, MAX_WAIT_SECONDS - waited) / 60
                on_wait(
                    f"waiting: {what} ({_describe(error)}); next attempt in {pause:.0f} s, for {left:.0f} min at most"
                )
            log.info("%s: %s; next attempt in %.1f s", what, _describe(error), pause)
            time.sleep(pause)


def already_exists(error: BaseException) -> bool:
    """Return whether a store refused to create an object because it exists."""
    if isinstance(error, FileExistsError):
        return True
    answer = response_of(error)
    return answer.code == "PreconditionFailed" or answer.status == 412


def response_of(error: BaseException | None) -> Response:
    """Return the server's response, which client libraries put into an error or its causes: that of botocore, aiohttp,
    httpx or requests, or a bare status."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            metadata = response.get("ResponseMetadata", {})
            headers = metadata.get("HTTPHeaders", {})
            code = str(response.get("Error", {}).get("Code", ""))
            return Response(code, int(metadata.get("HTTPStatusCode", 0)), _retry_after(headers))
        for found in (response, error):
            for name in ("status_code", "status", "code"):
                status = getattr(found, name, None)
                if isinstance(status, int) and 100 <= status < 600:
                    return Response("", status, _retry_after(getattr(found, "headers", None)))
        error = error.__cause__ or error.__context__
    return Response()


def s3_refusal(filesystem: Any, bucket: str, error: Exception) -> Exception:
    """Return the error that explains why S3 refused a request, or the given one.

    S3's response to HEAD has no body and so no code ("400 Bad Request" for an expired token); its response to a listing
    has one.
    """
    answer = response_of(error)
    if answer.status not in (400, 401, 403) or answer.code in REFUSALS or not hasattr(filesystem, "call_s3"):
        return error
    try:
        filesystem.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1)
    except Exception as listing_error:
        return listing_error if _is_refused(listing_error) else error
    return error


def _underlying_error(error: Exception) -> Exception:
    """Return the cause of a FileNotFoundError that `fsspec` raises for any failure to fetch a web page.

    Errors of the Hugging Face hub are returned unchanged: it refuses access to unknown names.
    """
    cause = error.__cause__
    if isinstance(cause, BessemerError):
        return cause
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        of_the_web = type(cause).__module__.startswith("aiohttp") or isinstance(cause, TimeoutError | ConnectionError)
        status = response_of(cause).status
        if status in BUSY or (of_the_web and status not in (404, 410)):
            return cause
    return error


def _is_transient(error: BaseException) -> bool:
    """Return whether a server is busy, or down and may recover; an unknown host name will not."""
    answer = response_of(error)
    if answer.status:
        return answer.status in BUSY
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ClientConnectorDNSError" in names or "Name or service not known" in str(error):
        return False
    return isinstance(error, TimeoutError | ConnectionError) or not names.isdisjoint(_DOWN)


def _is_refused(error: BaseException) -> bool:
    if isinstance(error, PermissionError) or type(error).__name__ in NO_CREDENTIALS:
        return True
    answer = response_of(error)
    return answer.code in REFUSALS or answer.status in (401, 403)


def _refused(of: str, what: str, error: Exception) -> NoReturn:
    code = response_of(error).code
    message = f"{code}: {_describe(error)}" if code and code not in str(error) else _describe(error)
    raise AccessError(
        f"{of} refuses access: {what} ({message}). If the credentials of this machine expired or were revoked, replace"
        f" them where they are: in the environment, or in the store's configuration files (~/.aws/credentials, the"
        f" token of `hf auth login`). Otherwise use credentials with this permission. What is finished is kept: run"
        f" again to continue."
    ) from error


def _retry_after(headers: Any) -> float | None:
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


def _describe(error: BaseException) -> str:
    # Errors of stores may contain signed addresses.
    text = without_credentials(str(error))
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else 'no message'}"
