"""Unpack the archives of a folder (zip, tar and its compressed forms), so that the files in them can be scanned."""

import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from model.errors import InputError

UNPACKED = "unpacked"
"""The folder, within the scanned one, that receives a folder for each archive."""

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")

FREE_BYTES, MOST_TIMES = 1 << 30, 200
"""Bytes that any archive may unpack to, and how many more for each stored byte; text rarely exceeds 20."""


def unpack_archives(folder: Path) -> list[Path]:
    """Unpack every archive below `folder` into `folder/unpacked/PATH`, unless that exists, and return these folders.

    Links, devices and paths that lead out of their folder are left out. Raises InputError, and leaves nothing of an
    archive, where it is damaged or its content is larger than text would be.
    """
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        suffix = next((one for one in SUFFIXES if path.name.lower().endswith(one)), None)
        if suffix is None or not path.is_file() or inside.parts[0] == UNPACKED or _is_hidden(inside):
            continue
        target = folder / UNPACKED / inside.parent / path.name[: -len(suffix)]
        found.append(target)
        if not target.exists():
            _unpack(path, target)
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _unpack(path: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    limit = FREE_BYTES + MOST_TIMES * path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                _check_size(path, sum(member.file_size for member in members), limit)
                for member in members:
                    _write(archive.open(member), member.filename, partial)
        else:
            with tarfile.open(path) as archive:
                files = [member for member in archive if member.isfile()]
                _check_size(path, sum(member.size for member in files), limit)
                for member in files:
                    _write(archive.extractfile(member), member.name, partial)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        raise InputError(
            f"init --unpack: {path} cannot be unpacked ({error}); remove it, or unpack it yourself"
        ) from error
    else:
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(stream: IO[bytes] | None, name: str, folder: Path) -> None:
    parts = PurePosixPath(name).parts
    if stream is not None and parts and parts[0] != "/" and ".." not in parts:
        place = folder.joinpath(*parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        with stream, place.open("wb") as file:
            shutil.copyfileobj(stream, file)


def _check_size(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise InputError(
            f"init --unpack: {path} would unpack to {size:,} bytes, more than {limit:,}; if that is intended, unpack it"
            f" yourself"
        )
