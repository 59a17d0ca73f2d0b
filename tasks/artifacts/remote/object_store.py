"""An object store through fsspec: read, list, put, create if absent and delete objects, with retries and deadlines.

Inside of `report_waits` (a build) a request is repeated for minutes while the server is busy or down; elsewhere (a
command that a person waits for, a thread that tries again later by itself) it fails after a few attempts.
"""

import contextlib
import contextvars
import functools
import json
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

import blake3

from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import DIGEST_BYTES, digest_bytes, digest_file
from model.errors import AccessError, BessemerError, Infra, InputError, IntegrityError, RecipeError
from tasks.common.text import without_credentials

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 * 1024**2
"""Files are read in blocks, each with retries and a deadline of its own."""

AT_ONCE = 8
"""Simultaneous requests."""

FETCHES = 4
"""Times that an object is fetched before its bytes in the store count as damaged."""

KEYS_PER_REQUEST = 1000

CONNECT_SECONDS = 10.0

ANSWER_SECONDS = float(os.environ.get("BESSEMER_STORE_SECONDS", "60"))
"""Deadline for one request; larger files have more time."""

# botocore itself retries one of many requests (for a large file); when it gives up, all of them are retried here.
_S3_CONFIG = {"connect_timeout": CONNECT_SECONDS, "read_timeout": ANSWER_SECONDS, "retries": {"total_max_attempts": 3}}

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}

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

NO_SUCH_SETTING = frozenset(
    {
        "NotImplemented",
        "ObjectLockConfigurationNotFoundError",
        "ReplicationConfigurationNotFoundError",
    }
)
"""Error codes of S3 for a setting that a bucket, or this kind of store, does not have."""

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


@dataclass(frozen=True)
class Listed:
    """An object in a listing: its size in bytes, and its ETag or time, which changes with every put (None if
    unknown)."""

    bytes: int
    mark: str | None
    written: float
    """Unix time by the store's clock; 0 if unknown."""


class ObjectStore:
    """The objects under an address such as `s3://bucket/prefix`.

    Every request has a deadline and is repeated while the store fails (`with_retries`).
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    @functools.cached_property
    def _place(self) -> tuple[Any, str]:
        return self._opened()

    def _renew(self) -> None:
        """Connect again, with the credentials that this machine has now."""
        self.__dict__["_place"] = self._opened(skip_instance_cache=True)

    def _opened(self, **more: Any) -> tuple[Any, str]:
        import fsspec.core

        scheme = self.address.partition("://")[0]
        options: dict[str, Any] = {"use_listings_cache": False, **more}
        if scheme in ("s3", "s3a"):
            options["config_kwargs"] = _S3_CONFIG
        try:
            filesystem, path = fsspec.core.url_to_fs(self.address, **options)
        except ImportError as error:
            package = PACKAGES.get(scheme, str(error.name))
            raise RecipeError(
                f"--root {self.address} needs the package `{package}`, which is not installed: pip install {package}"
            ) from error
        except ValueError as error:
            raise RecipeError(f"--root {self.address}: the scheme `{scheme}` is unknown ({error})") from error
        return filesystem, path.rstrip("/")

    def read(self, key: str) -> Any:
        """Return the value of a checksummed object.

        Raises FileNotFoundError if there is none, IntegrityError if it is damaged.
        """
        wrong: list[str] = []
        while len(wrong) < FETCHES:
            data = self._request("reading", key, "cat_file", self._path(key))
            try:
                return json.loads(unseal(data))
            except BrokenSeal as broken:
                wrong.append(str(broken))
        raise IntegrityError(
            f"{self.address}/{key} is damaged; it was read {FETCHES} times ({wrong[-1]}). Delete it and run again: it"
            f" is built or written again."
        )

    def write(self, key: str, value: Any) -> None:
        """Put a checksummed object, replacing an existing one."""
        self.put(key, seal(value, sort_keys=True))

    def create(self, key: str, value: Any) -> bool:
        """Put a checksummed object if the key is free; return whether the stored object is this one.

        After a lost response the next attempt finds our own object, so the stored one is read and compared.
        """
        data = seal(value, sort_keys=True)
        try:
            self._request("creating", key, "pipe_file", self._path(key), data, mode="create")
        except FileExistsError:
            return self.read(key) == json.loads(unseal(data))
        return True

    def put(self, key: str, data: bytes) -> None:
        """Put bytes, replacing an existing object."""
        seconds = seconds_for(len(data))
        self._request("writing", key, "pipe_file", self._path(key), data, seconds=seconds)

    def put_file(self, key: str, path: Path, digest: str) -> None:
        """Upload a file. Raises IntegrityError if its bytes do not have `digest` (BLAKE3-128)."""
        size = path.stat().st_size
        if size <= BLOCK_BYTES:
            data = path.read_bytes()
            found = digest_bytes(data)
        else:
            data, found = None, digest_file(path)
        if found != digest:
            raise IntegrityError(
                f"{path} should have the digest {digest} and has {found}: it was changed before it was uploaded to"
                f" {self.address}. Nothing was written there. Remove it and run again."
            )
        if data is not None:
            self.put(key, data)
            return
        self._request("writing", key, "put_file", str(path), self._path(key), seconds=seconds_for(size))

    def fetch(self, key: str, target: Path, size: int, digest: str, via: Path) -> None:
        """Download an object of `size` bytes to the file `target`, whose folder must exist, and check its digest.

        `via` is a folder for temporary files on the same file system; they are named by the key, so that those of a
        killed process are found. Raises FileNotFoundError if there is no object, IntegrityError if it has other bytes
        in every one of several attempts.
        """
        found = ""
        for _ in range(FETCHES):
            temporary = via / f"{key.replace('/', '-')}-{secrets.token_hex(8)}"
            try:
                found = self._bring(key, temporary, size)
                if found == digest:
                    os.replace(temporary, target)
                    return
            finally:
                temporary.unlink(missing_ok=True)
        raise IntegrityError(
            f"{self.address}/{key} should have the digest {digest} and {size} bytes, and has {found}; it was"
            f" fetched {FETCHES} times. Nothing was computed from it. `bessemer store verify --set-aside --root"
            f" {self.address}` sets it aside, and the next run builds it again."
        )

    def digest(self, key: str, size: int) -> str:
        """Return the BLAKE3-128 digest of an object, which is read and not stored."""
        return self._bring(key, None, size)

    def list_objects(self, prefix: str) -> dict[str, Listed]:
        """Return all objects whose keys begin with `prefix/`, by key."""
        found = self._request("listing", prefix, "find", self._path(prefix), detail=True)
        cut = len(self._place[1]) + 1
        return {
            name[cut:]: Listed(int(entry.get("size") or 0), _mark(entry), _written(entry))
            for name, entry in sorted(found.items())
            if entry.get("type", "file") == "file" and name[cut:].startswith(f"{prefix}/")
        }

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        try:
            self._request("looking for", key, "info", self._path(key))
        except FileNotFoundError:
            return False
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; ignores missing ones."""
        keys = list(keys)
        for begin in range(0, len(keys), KEYS_PER_REQUEST):
            some = keys[begin : begin + KEYS_PER_REQUEST]
            if len(some) > 1 and self.is_s3:
                # `bulk_delete` of s3fs drops the errors of single objects: those are deleted again one by one.
                objects = [{"Key": self.key_in_bucket(key)} for key in some]
                answer = self.ask_bucket("delete_objects", Delete={"Objects": objects, "Quiet": True})
                failed = {one["Key"] for one in (objects if answer is None else answer.get("Errors", ()))}
                some = [key for key in some if self.key_in_bucket(key) in failed]
            for key in some:
                with contextlib.suppress(FileNotFoundError):
                    self._request("deleting", key, "rm_file", self._path(key))

    @property
    def is_s3(self) -> bool:
        """Whether the store has S3's API."""
        return hasattr(self._place[0], "call_s3")

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self._place[1].partition("/")[0]

    def key_in_bucket(self, key: str) -> str:
        """Return the key as the bucket knows it: with the prefix of the address."""
        return self._path(key).partition("/")[2]

    def ask_bucket(self, method: str, **words: Any) -> dict[str, Any] | None:
        """Return the answer of S3 to a request of its API about the bucket, such as `get_bucket_versioning`; None where
        the store has no such API, or the bucket no such setting."""
        if not self.is_s3:
            return None
        try:
            return self._request("asking for", method, "call_s3", method, Bucket=self.bucket, **words)
        except FileNotFoundError:
            return None

    def run_all(self, requests: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run requests concurrently and return their results in order; raises the error of the first that fails."""
        if len(requests) <= 1:
            return [request() for request in requests]
        with ThreadPoolExecutor(min(AT_ONCE, len(requests)), thread_name_prefix="store") as pool:
            futures = [pool.submit(contextvars.copy_context().run, request) for request in requests]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _bring(self, key: str, target: Path | None, size: int) -> str:
        """Read an object block by block, into a file if one is given; return the digest of its bytes."""
        hasher = blake3.blake3()
        stream = target.open("wb") if target is not None else None
        try:
            for begin in range(0, max(size, 1), BLOCK_BYTES):
                block = self._block(key, begin, size)
                hasher.update(block)
                if stream is not None:
                    stream.write(block)
        finally:
            if stream is not None:
                stream.close()
        return hasher.hexdigest(length=DIGEST_BYTES)

    def _block(self, key: str, begin: int, size: int) -> bytes:
        end = min(begin + BLOCK_BYTES, size)
        part = {} if size <= BLOCK_BYTES else {"start": begin, "end": end}
        block = b""
        for _ in range(FETCHES):
            block = self._request("reading", key, "cat_file", self._path(key), seconds=seconds_for(end - begin), **part)
            if len(block) == end - begin:
                break
        return block

    def _path(self, key: str) -> str:
        return f"{self._place[1]}/{key}"

    def _request(
        self, doing: str, key: str, method: str, *words: Any, seconds: float | None = None, **more: Any
    ) -> Any:
        deadline = seconds_for(0) if seconds is None else seconds

        def once() -> Any:
            from fsspec.asyn import AsyncFileSystem, sync

            filesystem, _ = self._place
            if not isinstance(filesystem, AsyncFileSystem):
                return getattr(filesystem, method)(*words, **more)
            try:
                return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *words, timeout=deadline, **more)
            except OSError as error:
                if method == "call_s3" and response_of(error).code in NO_SUCH_SETTING:
                    raise FileNotFoundError(key) from error
                raise

        try:
            return with_retries(f"{doing} {self.address}/{key}", once, renew=self._renew, reason=self._reason)
        except FileNotFoundError as error:
            if doing in ("creating", "writing") and "bucket" in str(error):
                raise InputError(
                    f"--root {self.address}: there is no such bucket, or this machine may not see it. Create it, or"
                    f" correct the address."
                ) from error
            raise

    def _reason(self, error: Exception) -> Exception:
        filesystem, path = self._place
        return s3_refusal(filesystem, path.partition("/")[0], error)


def _mark(entry: dict[str, Any]) -> str | None:
    for name in ("ETag", "etag", "md5Hash", "LastModified", "mtime"):
        if entry.get(name) is not None:
            return str(entry[name])
    return None


def _written(entry: dict[str, Any]) -> float:
    for name in ("LastModified", "last_modified", "updated", "mtime"):
        found = entry.get(name)
        if found is not None:
            return float(found.timestamp()) if hasattr(found, "timestamp") else float(found)
    return 0.0


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
    FileNotFoundError and FileExistsError are results and raised at once. Raises AccessError if access is refused, Infra
    if every attempt failed.
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
