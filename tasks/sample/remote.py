"""Files behind a URI: s3, gs, http, https, hf, and every other scheme of fsspec.

Files are listed before work begins, so that a wrong address or key fails within a second. Requests are repeated while a
server is busy or down (`tasks/artifacts/remote/object_store.py`), and a file whose connection broke is read from there
on."""

import contextlib
import glob
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from model.errors import InputError, RecipeError
from model.file_content import ChangedInput
from tasks.artifacts.remote.retries import ANSWER_SECONDS, already_exists, s3_refusal, with_retries
from tasks.common.confinement import check_address, is_confined, public_socket

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
"""Scheme -> package that must be installed; hf comes with huggingface_hub."""
_STREAMED = frozenset({"http", "https"})
_CONTENT_MARKS = ("ETag", "etag", "md5Hash", "sha256", "blob_id")
_MARKS = (*_CONTENT_MARKS, "LastModified", "last_modified", "updated", "mtime")
_SPOOL_BYTES = 64 * 1024**2
_BLOCK = 1 << 20
_PARTIAL = 206
"""HTTP status of a response to a range request."""


@dataclass(frozen=True)
class RemoteFile:
    """One remote file: its address, and its ETag, digest or time, which shows whether it changed (None if unknown)."""

    uri: str
    mark: str | None

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.uri.partition("?")[0]).name

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file's bytes from the beginning.

        Raises Infra or AccessError for a failed access, OSError for a missing file, ChangedInput for one that differs
        from the listed one.
        """
        with contextlib.closing(_Stream(self.uri, self.mark)) as stream:
            stream.begin()
            yield cast(BinaryIO, io.BufferedReader(stream, _BLOCK))

    def open_seekable(self) -> AbstractContextManager[BinaryIO]:
        """Open the file's bytes, to be read from anywhere."""
        return fetched(self.open())


@dataclass(frozen=True)
class RangedFile(RemoteFile):
    """A remote file of which only the ranges that are read are fetched; without retries. Raises the store's own errors,
    also if it does not support ranges."""

    @contextmanager
    def open_seekable(self) -> Iterator[BinaryIO]:
        """Open the file's bytes, to be read from anywhere."""
        filesystem, path = _filesystem(self.uri)
        with contextlib.closing(filesystem.open(path, "rb")) as stream:
            yield cast(BinaryIO, stream)


@contextmanager
def fetched(stored: AbstractContextManager[BinaryIO]) -> Iterator[BinaryIO]:
    """Copy a whole file to this machine, for formats whose directory is at the end."""
    with stored as stream, tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as copy:
        shutil.copyfileobj(stream, copy, _BLOCK)
        copy.seek(0)
        yield cast(BinaryIO, copy)


class _Stream(io.RawIOBase):
    """A remote file from its first byte on, reconnecting when a connection breaks."""

    def __init__(self, uri: str, mark: str | None) -> None:
        self._uri, self._mark = uri, mark
        self._server = _Server(uri)
        self._stream: Any = None
        self._version: tuple[str | None, ...] | None = None
        self._position = 0

    def begin(self) -> None:
        """Connect, which shows whether the file exists."""
        self._with_retries(self._connect)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._with_retries(lambda: self._read(len(buffer)))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._drop()
        super().close()

    def _with_retries(self, request: Callable[[], Any]) -> Any:
        return self._server.request(f"reading {self._uri}", request)

    def _read(self, size: int) -> bytes:
        self._connect()
        try:
            block = self._stream.read(size)
        except BaseException as error:
            self._drop()
            if already_exists(error) or type(error).__name__ == "FileExpired":
                # The store no longer has the version that was opened.
                raise ChangedInput(self._uri, "the store no longer has the version that was opened") from error
            raise
        self._position += len(block)
        return block

    def _connect(self) -> None:
        if self._stream is not None:
            return
        filesystem, path = self._server.place
        streamed = self._uri.partition(":")[0] in _STREAMED
        options: dict[str, Any] = {}
        if streamed:
            # With transfer compression a server would send another ETag than in the listing.
            headers = {"Accept-Encoding": "identity"}
            if self._position:
                headers["Range"] = f"bytes={self._position}-"
            # A given size saves two requests, and is not needed for sequential reading.
            options = {"block_size": 0, "size": 1, "headers": headers}
        self._stream = filesystem.open(path, "rb", **options)
        try:
            self._go_to_position(streamed)
        except BaseException:
            self._drop()
            raise

    def _go_to_position(self, streamed: bool) -> None:
        answer = getattr(self._stream, "r", None)
        found = getattr(answer, "headers", None) or getattr(self._stream, "details", None) or {}
        version = tuple(str(found[mark]) if found.get(mark) else None for mark in (*_MARKS, "Last-Modified"))
        if self._version not in (None, version):
            raise ChangedInput(self._uri, "the server now has another version than when reading began")
        self._check_mark(found)
        self._version = version
        if not streamed:
            self._stream.seek(self._position)
        elif getattr(answer, "status", 200) != _PARTIAL:
            left = self._position
            while left and (skipped := self._stream.read(min(left, _BLOCK))):
                left -= len(skipped)

    def _check_mark(self, headers: Mapping[str, Any]) -> None:
        """Raise ChangedInput for a file that was replaced after it was listed: its digest would get the old mark."""
        listed = self._mark or ""
        for key in _CONTENT_MARKS:
            found = f"{key}={headers.get(key)}"
            if headers.get(key) and f"{key}=" in listed and found not in listed:
                raise ChangedInput(self._uri, f"it was listed with {listed}, and has {found} now")

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(Exception):  # the connection may be broken already
                stream.close()


class _Server:
    """The fsspec filesystem behind a URI, with retries."""

    def __init__(self, uri: str, source: str = "") -> None:
        self._uri, self._source = uri, source
        self.place = _filesystem(uri, source)

    def request(self, what: str, request: Callable[[], Any]) -> Any:
        """Return the result of a request, as `with_retries`."""
        scheme, _, rest = self._uri.partition("://")
        of = f"sample: {scheme}://{rest.partition('/')[0]}"
        return with_retries(what, request, of=of, renew=self._renew, reason=self._reason)

    def _renew(self) -> None:
        self.place = _filesystem(self._uri, self._source, skip_instance_cache=True)

    def _reason(self, error: Exception) -> Exception:
        filesystem, path = self.place
        return s3_refusal(filesystem, path.partition("/")[0], error)


def is_remote(pattern: str) -> bool:
    """Return whether a path of a recipe is a URI to be read through fsspec; `file://` is this machine."""
    return "://" in pattern and not pattern.startswith("file://")


def list_remote(source: str, pattern: str) -> tuple[str, list[tuple[str, RemoteFile, int]], str]:
    """Return the fixed part of a URI, the files under it (path relative to that, file, size in bytes or -1), and its
    kind: `file`, `folder` or `pattern`.

    Raises InputError if there are none, AccessError if access is refused, RecipeError for an unknown scheme, Infra if
    the server cannot be reached.
    """
    server = _Server(pattern, source)
    try:
        found, kind, root = server.request(
            f"listing source `{source}`, {pattern}", lambda: _match(*server.place, pattern)
        )
    except FileNotFoundError as error:
        raise InputError(
            f"sample: source `{source}` asks for {pattern}, and it does not exist. Correct the address in the recipe."
        ) from error
    scheme = pattern.partition("://")[0]
    visible: list[tuple[str, RemoteFile, int]] = []
    for name, info in sorted(found.items()):
        relative = name.rstrip("/")
        relative = relative.removeprefix(root).lstrip("/") if relative.startswith(root) else relative
        is_hidden = kind == "folder" and any(part.startswith(".") for part in relative.split("/"))
        if info.get("type", "file") == "file" and not is_hidden:
            uri = name if "://" in name else f"{scheme}://{name}"
            size = info.get("size")
            visible.append((relative, RemoteFile(uri, _mark(info)), -1 if size is None else int(size)))
    if not visible:
        raise InputError(
            f"sample: source `{source}` asks for {pattern}, and no file matches. Correct the address in the"
            f" recipe; folders end in `/`, patterns may contain `*`, `?`, `[...]` and `**`."
        )
    return f"{scheme}://{root}", visible, kind


def _match(filesystem: Any, path: str, pattern: str) -> tuple[dict[str, Any], str, str]:
    """Return what a path matches, by name, the kind of the pattern, and its fixed part."""
    filesystem.invalidate_cache()  # the store may have changed since the last listing
    path = path.rstrip("/")
    # By default `fsspec` takes a page that it cannot reach for an empty one.
    strictly = {"on_error": "raise"} if pattern.partition(":")[0] in _STREAMED else {}
    # In the address of a page `?` begins a query.
    if glob.has_magic(path.partition("?")[0] if path.startswith("http") else path):
        return filesystem.glob(path, detail=True, **strictly), "pattern", _fixed_part(path)
    if _is_folder(filesystem, path, pattern):
        return filesystem.find(path, detail=True, **strictly), "folder", path
    return {path: filesystem.info(path)}, "file", path.rpartition("/")[0]


def _filesystem(uri: str, source: str = "", **options: Any) -> tuple[Any, str]:
    import fsspec.core

    scheme = uri.partition("://")[0]
    check_address(f"sample: source `{source}` asks for {uri}", uri)
    try:
        if scheme in _STREAMED:
            import aiohttp

            # The default is five minutes for a whole file of any size.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=ANSWER_SECONDS)
            options["client_kwargs"] = {"timeout": timeout}
            if is_confined():
                options["get_client"] = _confined_client
        return fsspec.core.url_to_fs(uri, **options)
    except ImportError as error:
        package = PACKAGES.get(scheme, "huggingface_hub" if scheme == "hf" else str(error.name))
        raise RecipeError(
            f"sample: source `{source}` asks for {uri}, and reading {scheme}:// needs the package `{package}`, which is"
            f" not installed: pip install {package}"
        ) from error
    except ValueError as error:
        raise RecipeError(
            f"sample: source `{source}` asks for {uri}, and the scheme `{scheme}` is unknown ({error}); known are"
            f" s3, gs, http, https, hf, file and those of installed fsspec packages."
        ) from error


async def _confined_client(**options: Any) -> Any:
    """Return the HTTP session of a confined recipe's source, which checks the address of each connection, also after
    redirects."""
    import aiohttp

    # Addresses are tried one by one: errors of concurrent attempts would be lost.
    connector = aiohttp.TCPConnector(socket_factory=public_socket, happy_eyeballs_delay=None)
    return aiohttp.ClientSession(connector=connector, **options)


def _is_folder(filesystem: Any, path: str, pattern: str) -> bool:
    """Return whether a path is a folder. A web address without a final slash is a file: servers make no difference."""
    if pattern.partition(":")[0] in _STREAMED:
        return pattern.endswith("/")
    return filesystem.isdir(path)


def _fixed_part(path: str) -> str:
    parts = path.split("/")
    magic = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:magic])


def _mark(info: dict[str, Any]) -> str | None:
    found = [f"{key}={info[key]}" for key in _MARKS if info.get(key) is not None]
    return " ".join([*found, f"size={info.get('size')}"]) if found else None
