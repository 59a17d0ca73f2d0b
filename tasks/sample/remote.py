"""Files behind a URI (s3, gs, http, https, hf, whatever else fsspec knows), as the readers want them.

Listing happens before work begins, so that a wrong address or key is an error in a second; a connection that breaks
while a file is read is the infrastructure's fault and the stage is tried again.
"""

import glob
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from model.errors import Infra, InputError, RecipeError
from tasks.credentials import without_credentials

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
"""What a scheme needs to be installed; hf comes with huggingface_hub."""
_STREAMED = frozenset({"http", "https"})
_MARKS = ("ETag", "etag", "md5Hash", "sha256", "blob_id", "LastModified", "last_modified", "updated", "mtime")
_SPOOL_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class RemoteFile:
    """One remote file: its address, its name, and what tells whether it has changed (None where nothing does)."""

    uri: str
    mark: str | None

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.uri.partition("?")[0]).name

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[BinaryIO]:
        """The file's bytes from the first on; an access that fails raises Infra, a file that is gone OSError."""
        filesystem, path = _filesystem(self.uri)
        streamed = {"block_size": 0} if self.uri.partition(":")[0] in _STREAMED else {}
        with _told_faults(self.uri):
            stream = filesystem.open(path, mode, **streamed)
        try:
            yield cast(BinaryIO, io.BufferedReader(_Told(stream, self.uri), 1 << 20))
        finally:
            stream.close()

    @contextmanager
    def open_seekable(self) -> Iterator[BinaryIO]:
        """The whole file fetched to this machine, for formats whose directory stands at the end."""
        with self.open() as stream, tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.seek(0)
            yield cast(BinaryIO, copy)


class _Told(io.RawIOBase):
    """A stream whose faults are Bessemer's."""

    def __init__(self, stream: Any, uri: str) -> None:
        self._stream, self._uri = stream, uri

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _told_faults(self._uri):
            block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


@dataclass(frozen=True)
class RemoteListing:
    """Files under a URI by their paths relative to its fixed part, with sizes in bytes, and what the URI names."""

    files: list[tuple[str, RemoteFile, int]]
    kind: str
    """`file`, `folder` or `pattern`."""
    root: str


def is_remote(pattern: str) -> bool:
    """Whether a path of a recipe is a URI to be read through fsspec; `file://` is this machine."""
    return "://" in pattern and not pattern.startswith("file://")


def list_remote(source: str, pattern: str) -> RemoteListing:
    """What stands under a URI. Raises InputError where nothing does or access is refused, RecipeError for a scheme that
    nobody knows, Infra where the server cannot be reached."""
    filesystem, path = _filesystem(pattern, source)
    path = path.rstrip("/")
    with _told_faults(pattern, source):
        filesystem.invalidate_cache()  # A store may have changed since this process looked last.
        if _has_magic(path):
            root, kind = _fixed_part(path), "pattern"
            found = filesystem.glob(path, detail=True)
        elif _is_folder(filesystem, path, pattern):
            root, kind = path, "folder"
            found = filesystem.find(path, detail=True)
        else:
            root, kind = path.rpartition("/")[0], "file"
            found = {path: filesystem.info(path)}
    files = [
        (_relative(name, root), RemoteFile(_uri_of(pattern, name), _mark(info)), _size(info))
        for name, info in sorted(found.items())
        if info.get("type", "file") == "file"
    ]
    visible = [entry for entry in files if kind != "folder" or not _is_hidden(entry[0])]
    if not visible:
        raise InputError(
            f"sample: source `{source}` asks for {pattern}, and nothing there matches. Correct the address in the"
            f" recipe; folders end in `/`, patterns know `*`, `?`, `[...]` and `**`."
        )
    return RemoteListing(visible, kind, f"{pattern.partition('://')[0]}://{root}")


def _filesystem(uri: str, source: str = "") -> tuple[Any, str]:
    import fsspec.core

    scheme = uri.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(uri)
    except ImportError as error:
        package = PACKAGES.get(scheme, "huggingface_hub" if scheme == "hf" else str(error.name))
        raise RecipeError(
            f"sample: source `{source}` asks for {uri}, and reading {scheme}:// needs the package `{package}`, which is"
            f" not installed: pip install {package}"
        ) from error
    except ValueError as error:
        raise RecipeError(
            f"sample: source `{source}` asks for {uri}, and nobody knows the scheme `{scheme}` ({error}); known are"
            f" s3, gs, http, https, hf, file and those of installed fsspec packages."
        ) from error


@contextmanager
def _told_faults(uri: str, source: str = "") -> Iterator[None]:
    who = f"source `{source}` asks for {uri}" if source else f"{uri} is being read"
    try:
        yield
    except FileNotFoundError as error:
        if not source:
            raise
        raise InputError(f"sample: {who}, and there is no such thing. Correct the address in the recipe.") from error
    except PermissionError as error:
        raise InputError(
            f"sample: {who}, and access is refused ({error}). Give this machine credentials for the store (environment"
            f" or its configuration files), or correct the address."
        ) from error
    except (InputError, Infra):
        raise
    except Exception as error:  # Every store has errors of its own that share no class.
        if type(error).__name__ in ("NoCredentialsError", "ProfileNotFound", "LocalTokenNotFoundError"):
            raise InputError(
                f"sample: {who}, and this machine has no credentials for it ({error}). Set them in the environment or"
                f" in the store's configuration files."
            ) from error
        # Stores hand out signed addresses, and their errors name them.
        told = without_credentials(f"{type(error).__name__}: {error}")
        raise Infra(
            f"sample: {who}, and the server did not give it ({told}). The stage will be tried again."
        ) from error


def _has_magic(path: str) -> bool:
    return glob.has_magic(path.partition("?")[0]) if path.startswith("http") else glob.has_magic(path)


def _is_folder(filesystem: Any, path: str, pattern: str) -> bool:
    """An address of the web without a final slash is a file: a server shows no difference."""
    if pattern.partition(":")[0] in _STREAMED:
        return pattern.endswith("/")
    return filesystem.isdir(path)


def _fixed_part(path: str) -> str:
    parts = path.split("/")
    magic = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:magic])


def _relative(name: str, root: str) -> str:
    name = name.rstrip("/")
    return name.removeprefix(root).lstrip("/") if name.startswith(root) else name


def _uri_of(pattern: str, name: str) -> str:
    return name if "://" in name else f"{pattern.partition('://')[0]}://{name}"


def _size(info: dict[str, Any]) -> int:
    size = info.get("size")
    return -1 if size is None else int(size)


def _mark(info: dict[str, Any]) -> str | None:
    found = [f"{key}={info[key]}" for key in _MARKS if info.get(key) is not None]
    return " ".join([*found, f"size={info.get('size')}"]) if found else None


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))
