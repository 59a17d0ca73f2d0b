"""Map a local root to its object store: the address in `ROOT/.store/address.json`, and the cache folder of an address.

The store is found from the path of a root, or of an artifact under it, so that worker processes, the train stage and a
deployed flow need no further setting.
"""

import functools
import hashlib
import os
import re
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError, RecipeError
from tasks.artifacts.remote.object_store import ObjectStore
from tasks.common.text import without_credentials

FOLDER = ".store"

ADDRESS = "address.json"

MARKER = "store.json"
"""The object that identifies a store, so that another one at the same address is noticed."""

FORMAT = 1

CACHE_LOST = "Remove it, and name the root by its address: then it is rewritten."

CACHE = "BESSEMER_CACHE"
"""Environment variable: the folder of this machine's caches of object stores."""

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(/|$)")


def is_address(root: str | Path) -> bool:
    """Return whether a root is the address of an object store; `Path` turns its two slashes into one, and removes those
    at the end."""
    return bool(_SCHEME.match(str(root)))


def attached_root(address: str) -> Path:
    """Return the local folder of the root at `address`; creates it if necessary.

    Raises RecipeError for an address without a bucket, or with credentials, query or fragment; InputError if the cache
    is not writable.
    """
    address = _checked(address)
    folder = _cache_folder(address)
    file = folder / FOLDER / ADDRESS
    try:
        if not file.exists():
            write_sealed(file, {"address": address})
    except OSError as error:
        raise InputError(
            f"--root {address}: its cache {folder} cannot be written ({error.strerror}). Set another folder for caches"
            f" in the environment variable {CACHE}."
        ) from error
    return folder


def store_of(root: Path) -> ObjectStore | None:
    """Return the object store of a root; None for a root that is only a local folder."""
    file = root / FOLDER / ADDRESS
    return _store(file, os.getpid()) if file.exists() else None


def root_of(artifact: Path) -> Path:
    """Return the root of the artifact ROOT/artifacts/STAGE/IDENTITY; the folder itself if it is not inside of a
    root."""
    in_a_root = len(artifact.parents) > 2 and artifact.parent.parent.name == "artifacts"
    return artifact.parents[2] if in_a_root else artifact


def temporary_folder(root: Path) -> Path:
    """Return the folder in which fetched files are checked, on the file system of the root."""
    folder = root / FOLDER / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def shown(root: Path) -> str:
    """Return a root as shown to people: by its address if it has one."""
    store = store_of(root)
    return f"{store.address} (cached in {root})" if store is not None else str(root)


def check_store(root: Path, store: ObjectStore) -> None:
    """Raise InputError if the store is not the one of the cache, RecipeError if it cannot create objects only if
    absent.

    The first process to use a store creates the marker that identifies it.
    """
    known = root / FOLDER / MARKER
    if not store.exists(MARKER):
        if known.exists():
            raise InputError(
                f"{store.address} was emptied or replaced since {root} was made from it. Check the address. To start"
                f" over there, remove {root} and run again."
            )
        marker = {"format": FORMAT, "id": uuid.uuid4().hex, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if store.create(MARKER, marker) and store.create(MARKER, {**marker, "id": "another"}):
            raise RecipeError(
                f"--root {store.address}: this store overwrites objects that should be created only if absent, so it"
                f" cannot decide which of two builders was first. Use one that supports If-None-Match (S3 itself,"
                f" MinIO, Ceph, Google Cloud Storage do)."
            )
    found = store.read(MARKER)
    if found["format"] != FORMAT:
        raise InputError(
            f"{store.address} is laid out in format {found['format']}, and this version of Bessemer reads {FORMAT}. Use"
            f" the version that made it, or another prefix."
        )
    if known.exists():
        if read_sealed(known, CACHE_LOST)["id"] != found["id"]:
            raise InputError(
                f"{store.address} is not the store that {root} was made from. Check the address and the endpoint; if"
                f" they are right, remove {root}: the content of the store is fetched again."
            )
    else:
        write_sealed(known, found)


@functools.lru_cache(maxsize=64)
def _store(file: Path, process: int) -> ObjectStore:
    del process  # a connection does not survive a fork
    return ObjectStore(read_sealed(file, CACHE_LOST)["address"])


def _checked(address: str) -> str:
    scheme, _, rest = address.partition(":")
    if not rest.strip("/") or rest.startswith("///"):
        raise RecipeError(
            f"--root {address} names no bucket. Write {scheme}://BUCKET or {scheme}://BUCKET/PREFIX; a local folder of"
            f" this name is ./{address}"
        )
    address = f"{scheme}://{rest.strip('/')}"
    if scheme in ("file", "local"):
        raise RecipeError(f"--root {address}: a folder of this machine is no object store; name it by its path")
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise RecipeError(f"--root {without_credentials(address)}: it cannot be read ({error})") from error
    if "@" in parts.netloc or parts.query or parts.fragment:
        place = f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise RecipeError(
            f"--root {place}: give only bucket and prefix, without credentials, `?` or `#`. Put credentials into the"
            f" environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE) or into the store's configuration"
            f" files, so that no record of a run contains them."
        )
    return address


def _cache_folder(address: str) -> Path:
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    digest = hashlib.blake2b(f"{address}\n{endpoint}".encode(), digest_size=4).hexdigest()
    name = re.sub(r"[^A-Za-z0-9]+", "-", address.partition("://")[2]).strip("-")[:60]
    return (_caches(address) / f"{name}-{digest}").resolve()


def _caches(address: str) -> Path:
    if named := os.environ.get(CACHE):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bessemer"
    except RuntimeError as error:
        raise InputError(
            f"--root {address}: this user has no home folder for its cache. Set a folder for caches in the environment"
            f" variable {CACHE}."
        ) from error
