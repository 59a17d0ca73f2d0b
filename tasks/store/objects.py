"""Objects under an address by their keys, through fsspec: read, list, put, create if absent, delete."""

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

from model.errors import InputError, IntegrityError, RecipeError
from model.reading import DIGEST_BYTES, digest_bytes, digest_file
from model.sealed import BrokenSeal, seal, unseal
from tasks.store.patience import ANSWER_SECONDS, ask, reason_on_s3, seconds_for

BLOCK_BYTES = 8 * 1024**2
"""Files are read in blocks, each with tries and a deadline of its own."""
AT_ONCE = 8
"""Requests in flight."""
FETCHES = 4
"""Times that a file is fetched whole before its bytes in the store are called wrong."""
KEYS_PER_REQUEST = 1000
CONNECT_SECONDS = 10.0
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
            f" times that it was fetched. Nothing was computed from it. `bessemer verify --set-aside --root"
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
