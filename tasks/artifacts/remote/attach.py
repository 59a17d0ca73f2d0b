"""Which store a root stands before: the address in `ROOT/.store/address.json`, and the cache that an address is given.

Whoever has the path of a root, or of an artifact under it, finds the store from there: worker processes, the trainer's
stage and a deployed flow need no word of it.
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

FOLDER = ".store"

ADDRESS = "address.json"

MARKER = "store.json"
"""The object that tells one store from another that came to have its address."""

FORMAT = 1

CACHE_LOST = "Remove it, and name the root by its address: it is written anew."

CACHE = "BESSEMER_CACHE"
"""Environment variable: the folder in which roots of object stores have theirs on this machine."""

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/{1,2}[^/]")


def is_address(root: str | Path) -> bool:
    """Whether a root is named by the address of an object store; `Path` makes one slash of two."""
    return bool(_SCHEME.match(str(root)))


def attached_root(address: str) -> Path:
    """The folder on this machine for the root at `address`, made where there is none.

    Raises RecipeError for an address that holds credentials or more than a place, InputError where the cache cannot be
    written.
    """
    address = _checked(address)
    folder = _cache_folder(address)
    told = folder / FOLDER / ADDRESS
    try:
        if not told.exists():
            write_sealed(told, {"address": address})
    except OSError as error:
        raise InputError(
            f"--root {address}: its cache {folder} cannot be written ({error.strerror}). Name another folder for caches"
            f" in the environment variable {CACHE}."
        ) from error
    return folder


def store_of(root: Path) -> ObjectStore | None:
    """The store that a root stands before; None for a root that is a folder and nothing else."""
    told = root / FOLDER / ADDRESS
    return _store(told, os.getpid()) if told.exists() else None


def root_of(artifact: Path) -> Path:
    """The root of the artifact ROOT/artifacts/STAGE/IDENTITY; the folder itself where it stands in no root."""
    in_a_root = len(artifact.parents) > 2 and artifact.parent.parent.name == "artifacts"
    return artifact.parents[2] if in_a_root else artifact


def temporary_folder(root: Path) -> Path:
    """Where files are brought before they are checked; on the disk of the root."""
    folder = root / FOLDER / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def shown(root: Path) -> str:
    """A root as people know it: its address where it has one."""
    store = store_of(root)
    return f"{store.address} (cached in {root})" if store is not None else str(root)


def check_store(root: Path, store: ObjectStore) -> None:
    """Raise InputError where the store is not the one that the cache was made from, RecipeError where it cannot create
    objects only if absent. The first to come puts the marker there that tells stores apart."""
    known = root / FOLDER / MARKER
    if not store.exists(MARKER):
        if known.exists():
            raise InputError(
                f"{store.address} was emptied or replaced since {root} was made from it: it no longer knows this cache."
                f" Look whether the address is right. To begin there anew, remove {root} and run again."
            )
        mine = {"format": FORMAT, "id": uuid.uuid4().hex, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if store.create(MARKER, mine) and store.create(MARKER, {**mine, "id": "another"}):
            raise RecipeError(
                f"--root {store.address}: this store overwrites objects that it was asked to create only if absent, and"
                f" so cannot tell which of two builders was first. Take one that knows If-None-Match (S3 itself, MinIO,"
                f" Ceph, Google Cloud Storage do)."
            )
    there = store.read(MARKER)
    if there["format"] != FORMAT:
        raise InputError(
            f"{store.address} is laid out in format {there['format']}, and this version of Bessemer reads {FORMAT}. Use"
            f" the version that made it, or another prefix."
        )
    if known.exists():
        if read_sealed(known, CACHE_LOST)["id"] != there["id"]:
            raise InputError(
                f"{store.address} is another store than the one that {root} was made from. Look whether the address and"
                f" the endpoint are right; if they are, remove {root}, and what stands in the store is fetched again."
            )
    else:
        write_sealed(known, there)


@functools.lru_cache(maxsize=64)
def _store(told: Path, process: int) -> ObjectStore:
    del process  # a connection does not survive a fork
    return ObjectStore(read_sealed(told, CACHE_LOST)["address"])


def _checked(address: str) -> str:
    scheme, _, rest = address.partition(":")
    address = f"{scheme}://{rest.strip('/')}"
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query or parts.fragment:
        place = f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise RecipeError(
            f"--root {place}: give the place alone, without credentials, `?` or `#`. Credentials belong in the"
            f" environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE) or in the store's configuration"
            f" files, so that they reach no record of a run."
        )
    return address


def _cache_folder(address: str) -> Path:
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    told = hashlib.blake2b(f"{address}\n{endpoint}".encode(), digest_size=4).hexdigest()
    words = re.sub(r"[^A-Za-z0-9]+", "-", address.partition("://")[2]).strip("-")[:60]
    caches = os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bessemer"
    return (Path(caches) / f"{words}-{told}").resolve()
