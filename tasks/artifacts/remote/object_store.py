"""An object store through fsspec: read, list, put, create if absent and delete objects.

Every request has a deadline and is repeated while the server fails (`tasks/artifacts/remote/retries.py`)."""

import contextlib
import contextvars
import functools
import json
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3

from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import DIGEST_BYTES, digest_bytes, digest_file
from model.errors import InputError, IntegrityError, RecipeError
from model.files import sync_file
from tasks.artifacts.remote.retries import ANSWER_SECONDS, response_of, s3_refusal, seconds_for, with_retries

BLOCK_BYTES = 8 * 1024**2
"""Files are read in blocks, each with retries and a deadline of its own."""

AT_ONCE = 8
"""Simultaneous requests."""

FETCHES = 4
"""Times that an object is fetched before its bytes in the store count as damaged."""

KEYS_PER_REQUEST = 1000

CONNECT_SECONDS = 10.0

# botocore itself retries one of many requests (for a large file); when it gives up, all of them are retried here.
_S3_CONFIG = {"connect_timeout": CONNECT_SECONDS, "read_timeout": ANSWER_SECONDS, "retries": {"total_max_attempts": 3}}

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}

RANGE_BEYOND_END = 416
"""HTTP status where a block is asked for of an object that ends before it."""

NO_SUCH_SETTING = frozenset(
    {
        "NotImplemented",
        "ObjectLockConfigurationNotFoundError",
        "ReplicationConfigurationNotFoundError",
    }
)
"""Error codes of S3 for a setting that a bucket, or this kind of store, does not have."""


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
        except (TypeError, AttributeError, OSError) as error:
            if scheme in PACKAGES:
                raise
            # Schemes of archives and others, whose filesystems need more than an address.
            raise RecipeError(
                f"--root {self.address}: `{scheme}` opens no object store ({error}). Name one such as s3://BUCKET, or a"
                f" local folder by its path"
            ) from error
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

    def find(self, key: str) -> Any | None:
        """Return the value of a checksummed object as `read`; None if there is none."""
        try:
            return self.read(key)
        except FileNotFoundError:
            return None

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
                    # After a loss of power a file without its bytes would count as damaged, and not be fetched again.
                    sync_file(temporary)
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
        with contextlib.nullcontext() if target is None else target.open("wb") as stream:
            for begin in range(0, max(size, 1), BLOCK_BYTES):
                block = self._block(key, begin, size)
                hasher.update(block)
                if stream is not None:
                    stream.write(block)
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
            except Exception as error:  # errors of different stores share no base class
                answer = response_of(error)
                if method == "cat_file" and answer.status == RANGE_BEYOND_END:
                    return b""
                if method == "call_s3" and answer.code in NO_SUCH_SETTING:
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
