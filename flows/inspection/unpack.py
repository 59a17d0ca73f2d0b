"""Unpack the archives of a folder (zip, tar and its compressed forms), so that the files in them can be scanned, and
write lists of records in JSON as a record a line."""

import json
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any

from model.errors import InputError
from model.files import write_atomically

UNPACKED = "unpacked"
"""The folder, within the scanned one, that receives a folder for each archive."""

JSON = ".json"

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", JSON)

FREE_BYTES, MOST_TIMES = 1 << 30, 200
"""Bytes that any archive may unpack to, and how many more for each stored byte; text rarely exceeds 20."""


def unpack_archives(folder: Path) -> list[Path]:
    """Unpack every archive below `folder` into `folder/unpacked/PATH`, unless that exists, and return these folders.

    A JSON file that is a list of objects becomes `folder/unpacked/PATH/records.jsonl`, with the names of nested fields
    joined by dots; any other is left alone. Links, devices and paths that lead out of their folder are left out. Raises
    InputError, and leaves nothing of an archive, where it is damaged or its content is larger than text would be.
    """
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        target = _target(folder, path)
        if target is None or not path.is_file():
            continue
        if not target.exists():
            if not path.name.lower().endswith(JSON):
                _unpack(path, target)
            elif not _write_records(path, target):
                continue
        found.append(target)
    return found


def is_unpacked(folder: Path, path: Path) -> bool:
    """Return whether a file is an archive that `unpack_archives` has unpacked."""
    target = _target(folder, path)
    return target is not None and target.exists()


def _target(folder: Path, path: Path) -> Path | None:
    """Return the folder for what is in an archive; None for any other file."""
    inside = path.relative_to(folder)
    suffix = next((one for one in SUFFIXES if path.name.lower().endswith(one)), None)
    if suffix is None or inside.parts[0] == UNPACKED or _is_hidden(inside):
        return None
    return folder / UNPACKED / inside.parent / path.name[: -len(suffix)]


def _write_records(path: Path, target: Path) -> bool:
    """Write the records of a JSON file, a line each; return False where it is no list of objects."""
    try:
        records = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return False  # `scan_folder` names what cannot be read.
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        return False
    lines = (json.dumps(_flat(record), ensure_ascii=False) for record in records)
    target.mkdir(parents=True)
    write_atomically(target / "records.jsonl", "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass"))
    return True


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a record whose nested objects' fields are its own."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        fields |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return fields


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
