"""Unpack what holds text among other things, so that it can be scanned: archives (zip, tar and its compressed forms),
lists of records in JSON, mail, notebooks, books (EPUB), and subtitles."""

import lzma
import os
import re
import shutil
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from flows.inspection.convert import spoken, write_messages, write_nested_lines, write_notebook, write_records
from model.errors import InputError
from tasks.sample.formats import guess_format

UNPACKED = "unpacked"
"""The folder, within the scanned one, that receives a folder for each archive."""

INSTALLED = ("node_modules", "site-packages", "__pycache__", "*.egg-info")
"""Folders of packages, which hold no text of one's own."""

BUILT, BUILT_FROM = ("build", "dist"), ("pyproject.toml", "setup.py", "package.json")
"""Folders of copies that a tool made, where they are beside one of these files."""

MARKS_OF_A_ROOT = ("artifacts/*/*/manifest.json", "runs/*/run.json")

FOLDERS_OF_A_ROOT = (
    *("artifacts", "runs", "work", "locks", "aliases", "forgotten", "pilots", "measurements", "service"),
    *("ablations", "finetuned", "ladders", "mixtures", "nightly", "searches"),
)
"""Folders that Bessemer makes in a root."""

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")

JSON, MAILBOX, MAIL, NOTEBOOK, EPUB, SUBTITLES = ".json", ".mbox", ".eml", ".ipynb", ".epub", (".srt", ".vtt")

JSONL = ".jsonl"

SUFFIXES = (*ARCHIVES, JSON, JSONL, MAILBOX, MAIL, NOTEBOOK, EPUB, *SUBTITLES)

FREE_BYTES, MOST_TIMES = 1 << 30, 200
"""Bytes that any archive may unpack to, and how many more for each stored byte; text rarely exceeds 20."""


def unpack_archives(folder: Path) -> list[Path]:
    """Unpack files with `SUFFIXES`, and mailboxes without one, below `folder` into `folder/unpacked/PATH`, unless that
    exists; return those folders that hold something.

    A JSON file becomes `records.jsonl`, with the names of nested fields joined by dots: its list of objects, or of an
    object the longest such list in it; without one it is left alone. A field of lists that holds most of the text, such
    as posts with replies, becomes one text; JSON Lines are left alone where none does. Mail becomes `messages.jsonl`,
    and a page for each message that has HTML alone; a notebook becomes `notebook.md`, its text and its code without
    what that printed; an EPUB its chapters; subtitles become `spoken.txt`, without numbers and times. Of archives,
    links, devices and paths that lead out of their folder are left out. Raises InputError, and leaves nothing of an
    archive, where it is damaged or its content is larger than text would be.
    """
    found: list[Path] = []
    own = made_by_bessemer(folder)
    for path in sorted(folder.rglob("*")):
        target = _target(folder, path)
        if target is None or not path.is_file() or not own.isdisjoint(path.parents):
            continue
        if not target.exists():
            if not target.resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"init --unpack: {path} would be unpacked into {target.resolve()}, outside of {folder}, by a link"
                    f" below {folder / UNPACKED}; remove it"
                )
            with _made(target) as made:
                _unpack_one(path, made)
        if target.exists():
            found.append(target)
    return found


@contextmanager
def _made(target: Path) -> Iterator[Path]:
    """Give a folder to write into, which gets its name where all of it was written, and anything at all."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if any(partial.iterdir()):
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # Those that hold something.
            os.removedirs(target.parent)


def _unpack_one(path: Path, folder: Path) -> None:
    suffix = _suffix(path)
    if suffix == JSON:
        write_records(path, folder)
    elif suffix == JSONL:
        write_nested_lines(path, folder)
    elif suffix in (MAILBOX, MAIL):
        write_messages(path, folder, is_mailbox=suffix == MAILBOX)
    elif suffix == NOTEBOOK:
        write_notebook(path, folder)
    elif suffix in SUBTITLES:
        (folder / "spoken.txt").write_bytes(spoken(path.read_bytes()))
    else:
        _unpack(path, folder)


def package_of(folder: Path, inside: Path) -> str | None:
    """Return which of `INSTALLED` a file is in, or the path of the folder of `BUILT`; None for any other. `inside` is
    relative to the scanned folder."""
    for place in [*inside.parents][-2::-1]:
        if name := next((name for name in INSTALLED if fnmatchcase(place.name, name)), None):
            return name
        if place.name in BUILT and any((folder / place.parent / name).exists() for name in BUILT_FROM):
            return place.as_posix()
    return None


def made_by_bessemer(folder: Path) -> set[Path]:
    """Return the roots of Bessemer below a folder; of the folder itself, where it is one, what Bessemer made in it."""
    found: set[Path] = set()
    for base, folders, _ in os.walk(folder):
        place = Path(base)
        folders[:] = [name for name in folders if not name.startswith(".")]
        if {"artifacts", "runs"}.isdisjoint(folders) or not any(any(place.glob(mark)) for mark in MARKS_OF_A_ROOT):
            continue
        if place == folder:
            found |= {place / name for name in FOLDERS_OF_A_ROOT if name in folders}
            folders[:] = [name for name in folders if name not in FOLDERS_OF_A_ROOT]
        else:
            found.add(place)
            folders.clear()
    return found


def is_recipe(path: Path) -> bool:
    """Return whether a TOML file is a recipe of Bessemer."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # TOML and UTF-8
        return False
    return values.get("format") == 1 and isinstance(values.get("sources"), list | dict)


def is_unpacked(folder: Path, path: Path) -> bool:
    """Return whether a file is an archive that `unpack_archives` has unpacked."""
    target = _target(folder, path)
    return target is not None and target.exists()


def _target(folder: Path, path: Path) -> Path | None:
    """Return the folder for what is in an archive; None for any other file. All but archives and JSON keep their
    suffix, since there are often files of one name."""
    inside = path.relative_to(folder)
    if inside.parts[0] == UNPACKED or is_hidden(inside) or package_of(folder, inside) is not None:
        return None
    if (suffix := _suffix(path)) is None:
        return None
    dropped = suffix in (*ARCHIVES, JSON)
    return folder / UNPACKED / inside.parent / (path.name[: -len(suffix)] if dropped else path.name)


def _suffix(path: Path) -> str | None:
    """Return which of `SUFFIXES` says what a file is, and `MAILBOX` where its name says nothing; None for any other."""
    suffix = next((one for one in SUFFIXES if path.name.lower().endswith(one)), None)
    if suffix is None and guess_format(path.name) == (None, None) and path.is_file():
        with suppress(OSError), path.open("rb") as stream:  # `scan_folder` names what cannot be read.
            return MAILBOX if is_mailbox(stream.read(MAILBOX_HEAD_BYTES)) else None
    return suffix


def is_mailbox(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a mailbox, as mail programs write them without a suffix."""
    return _FIRST_MESSAGE.match(head[:MAILBOX_HEAD_BYTES]) is not None


MAILBOX_HEAD_BYTES = 1000

_FIRST_MESSAGE = re.compile(rb"From [^\n]*\r?\n[!-9;-~]+:[ \t]")
"""The line that begins a message, and its first header (RFC 4155)."""


def is_hidden(path: Path) -> bool:
    """Return whether a file or a folder above it is hidden; `path` is relative to the scanned folder."""
    return any(part.startswith(".") for part in path.parts)


def _unpack(path: Path, folder: Path) -> None:
    limit = FREE_BYTES + MOST_TIMES * path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                if _suffix(path) == EPUB:
                    members = [one for one in members if one.filename.lower().endswith((".xhtml", ".html", ".htm"))]
                _check_size(path, sum(member.file_size for member in members), limit)
                for member in members:
                    _write(archive.open(member), member.filename, folder)
        else:
            with tarfile.open(path) as archive:
                files = [member for member in archive if member.isfile()]
                _check_size(path, sum(member.size for member in files), limit)
                for member in files:
                    _write(archive.extractfile(member), member.name, folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError) as error:
        raise InputError(
            f"init --unpack: {path} cannot be unpacked ({error}); remove it, or unpack it yourself"
        ) from error


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
