"""Objects under an address by their keys, through fsspec: read, list, put, create if absent, delete.

How often and how long a store or server is asked before it is given up, and what its refusals mean.

Where waits are reported (`heard_waits`, within a build), a server that is busy or down is waited for; elsewhere (a
question that a person waits for, a thread that tries again later by itself) it is given up after a few tries.
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

BLOCK_BYTES = 8 * 1024**2
"""Files are read in blocks, each with tries and a deadline of its own."""

AT_ONCE = 8
"""Requests in flight."""

FETCHES = 4
"""Times that a file is fetched whole before its bytes in the store are called wrong."""

KEYS_PER_REQUEST = 1000

CONNECT_SECONDS = 10.0

ANSWER_SECONDS = float(os.environ.get("BESSEMER_STORE_SECONDS", "60"))
"""Within which one request must be answered whole; larger files have longer."""

# botocore asks again by itself where a request of many (a large file's) fails; what it gives up is asked again here.
_S3_CONFIG = {"connect_timeout": CONNECT_SECONDS, "read_timeout": ANSWER_SECONDS, "retries": {"total_max_attempts": 3}}

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


@dataclass(frozen=True)
class Listed:
    """An object as a listing shows it: bytes, and what changes whenever it is put again (None where nothing does)."""

    bytes: int
    mark: str | None
    written: float
    """Seconds since 1970 by the store's clock; 0 where it does not say."""


class ObjectStore:
    """The objects under an address such as `s3://bucket/prefix`.

    Every request is asked again while the store fails (`patience.ask`) and has a deadline.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    @functools.cached_property
    def _place(self) -> tuple[Any, str]:
        return self._opened()

    def _renew(self) -> None:
        """Go on with the credentials that this machine has now."""
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
            raise RecipeError(f"--root {self.address}: nobody knows the scheme `{scheme}` ({error})") from error
        return filesystem, path.rstrip("/")

    def read(self, key: str) -> Any:
        """The value of a sealed object. FileNotFoundError where there is none, IntegrityError where it is damaged."""
        wrong: list[str] = []
        while len(wrong) < FETCHES:
            data = self._request("reading", key, "cat_file", self._path(key))
            try:
                return json.loads(unseal(data))
            except BrokenSeal as broken:
                wrong.append(str(broken))
        raise IntegrityError(
            f"{self.address}/{key} is not what was written, each of {FETCHES} times that it was read ({wrong[-1]})."
            f" Delete it and run again; what it told is built or written again."
        )

    def write(self, key: str, value: Any) -> None:
        """Put a sealed object, over what stands there."""
        self.put(key, seal(value, sort_keys=True))

    def create(self, key: str, value: Any) -> bool:
        """Put a sealed object if none stands there; whether it is ours that stands now.

        An answer that was lost makes the next try find our own object, so what stands is read and compared.
        """
        data = seal(value, sort_keys=True)
        try:
            self._request("creating", key, "pipe_file", self._path(key), data, mode="create")
        except FileExistsError:
            return self.read(key) == json.loads(unseal(data))
        return True

    def put(self, key: str, data: bytes) -> None:
        """Put bytes, over what stands there."""
        seconds = seconds_for(len(data))
        self._request("writing", key, "pipe_file", self._path(key), data, seconds=seconds)

    def put_file(self, key: str, path: Path, digest: str) -> None:
        """Put a file under a key; IntegrityError where its bytes are not those of `digest` (BLAKE3-128)."""
        size = path.stat().st_size
        if size <= BLOCK_BYTES:
            data = path.read_bytes()
            found = digest_bytes(data)
        else:
            data, found = None, digest_file(path)
        if found != digest:
            raise IntegrityError(
                f"{path} should have the digest {digest} and has {found}: the disk or somebody changed it before it"
                f" reached {self.address}. Nothing was put there. Remove it and run again."
            )
        if data is not None:
            self.put(key, data)
            return
        self._request("writing", key, "put_file", str(path), self._path(key), seconds=seconds_for(size))

    def fetch(self, key: str, target: Path, size: int, digest: str, via: Path) -> None:
        """Bring an object of `size` bytes to the file `target`, whose folder must stand, by way of the folder `via` on
        the same disk; its bytes are checked.

        FileNotFoundError where there is none, IntegrityError where it has other bytes however often it is fetched.
        """
        found = ""
        for _ in range(FETCHES):
            temporary = via / f"fetch-{secrets.token_hex(8)}"
            try:
                found = self._bring(key, temporary, size)
                if found == digest:
                    os.replace(temporary, target)
                    return
            finally:
                temporary.unlink(missing_ok=True)
        raise IntegrityError(
            f"{self.address}/{key} should have the digest {digest} and {size} bytes, and gave {found} each of {FETCHES}"
            f" times that it was fetched. Nothing was computed from it. `bessemer store verify --set-aside --root"
            f" {self.address}` takes it out of use, and the next run builds it again."
        )

    def digest(self, key: str, size: int) -> str:
        """BLAKE3-128 of what an object gives now, read whole and not kept."""
        return self._bring(key, None, size)

    def under(self, prefix: str) -> dict[str, Listed]:
        """All objects whose keys begin with `prefix/`, by key."""
        found = self._request("listing", prefix, "find", self._path(prefix), detail=True)
        cut = len(self._place[1]) + 1
        return {
            name[cut:]: Listed(int(entry.get("size") or 0), _mark(entry), _written(entry))
            for name, entry in sorted(found.items())
            if entry.get("type", "file") == "file" and name[cut:].startswith(f"{prefix}/")
        }

    def exists(self, key: str) -> bool:
        """Whether an object stands under the key."""
        try:
            self._request("looking for", key, "info", self._path(key))
        except FileNotFoundError:
            return False
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        names = [self._path(key) for key in keys]
        filesystem, _ = self._place
        for begin in range(0, len(names), KEYS_PER_REQUEST):
            some = names[begin : begin + KEYS_PER_REQUEST]
            if hasattr(filesystem, "_bulk_delete") and len(some) > 1:
                self._request("deleting", f"{len(some)} objects", "bulk_delete", some)
                continue
            for name in some:
                try:
                    self._request("deleting", name, "rm_file", name)
                except FileNotFoundError:
                    continue

    def many(self, requests: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each request gives, in order, several in flight; raises what the first that fails raises."""
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
        """Read an object block by block, into a file where one is given; the digest of what came."""
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
            if isinstance(filesystem, AsyncFileSystem):
                return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *words, timeout=deadline, **more)
            return getattr(filesystem, method)(*words, **more)

        try:
            return ask(f"{doing} {self.address}/{key}", once, renew=self._renew, reason=self._reason)
        except FileNotFoundError as error:
            if doing in ("creating", "writing") and "bucket" in str(error):
                raise InputError(
                    f"--root {self.address}: there is no such bucket, or it is hidden from this machine. Make it, or"
                    f" correct the address."
                ) from error
            raise

    def _reason(self, error: Exception) -> Exception:
        filesystem, path = self._place
        return reason_on_s3(filesystem, path.partition("/")[0], error)


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


log = logging.getLogger(__name__)

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


@contextmanager
def heard_waits(hear: Callable[[str], None]) -> Iterator[None]:
    """Within the block this thread waits for servers that are busy or down, and `hear` gets a sentence a wait."""
    token = _heard.set(hear)
    try:
        yield
    finally:
        _heard.reset(token)


_heard: ContextVar[Callable[[str], None] | None] = ContextVar("heard_waits", default=None)


@dataclass(frozen=True)
class Answer:
    """What a server answered, as far as an error of a client library says."""

    code: str = ""
    status: int = 0
    retry_after: float | None = None
    """Seconds that it asks to be left alone."""


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
