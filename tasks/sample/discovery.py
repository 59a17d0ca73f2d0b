"""List the files of a source: paths, folders, patterns and URIs become a sorted list of files with formats.

Each file is identified by its path relative to the fixed part of its pattern, so that documents keep their ids when a
whole folder moves. If a source has several roots, files of the second root are prefixed `@2/...`, of the third
`@3/...`, so that equal relative paths remain distinct."""

import errno
import fnmatch
import functools
import glob
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from model.digests import open_file, special_file_kind, unreadable_reason
from model.errors import InputError, RecipeError
from model.file_content import Content, open_content, verified_stream
from model.files import DISK_FULL
from tasks.common.confinement import check_files
from tasks.common.text import as_stored
from tasks.sample.config import SampleConfig, Source
from tasks.sample.formats import guess_format, hint_about
from tasks.sample.remote import RemoteFile, fetched, is_remote, list_remote

_MACHINE_FAULTS = frozenset(
    {errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, *DISK_FULL}
)
OF_ANOTHER_FORMAT, OF_ANOTHER_SOURCE = "of another format", "of another source"
"""Why files are passed over: no source reads them, or another one does."""


@dataclass(frozen=True)
class InputFile:
    """One file of a source. `size` is in bytes as stored; -1 if it cannot be read."""

    source: str
    path: Path | RemoteFile
    relative: str
    format: str
    compression: str | None
    size: int
    no_file: str = ""
    """`a FIFO`, `a socket` or `a character device`, of size 0, which is never opened; empty for files."""
    content: Content | None = None
    """Its content when it was digested, which is all that is read of it; None before."""
    unreadable: str = ""
    """Why it could not be digested; final, even if it becomes readable."""

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open the stored bytes from the beginning; raises ChangedInput if they differ from the digested ones."""
        if not isinstance(self.path, RemoteFile):
            return open_file(self.path) if self.content is None else open_content(self.path, self.content)
        return (
            self.path.open() if self.content is None else verified_stream(self.path.open(), self.content, self.path.uri)
        )

    def open_seekable(self) -> AbstractContextManager[BinaryIO]:
        """Open the stored bytes for random access, as `open`."""
        if not isinstance(self.path, RemoteFile):
            return self.open()
        return self.path.open_seekable() if self.content is None else fetched(self.open())


@dataclass
class SourceFiles:
    """The files of one source in reading order, and how many were passed over for which reason."""

    source: Source
    files: list[InputFile] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    of_another_format: list[str | RemoteFile] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of all files as stored."""
        return sum(max(0, file.size) for file in self.files)


def is_fault_of_machine(error: OSError) -> bool:
    """Return whether the machine failed (disk, memory), and not the file."""
    return error.errno in _MACHINE_FAULTS


def why_unreadable(error: OSError) -> str:
    """Return the reason of a reject for an unreadable file."""
    return f"unreadable: {error.strerror or str(error).splitlines()[0]}"


def find_files(config: SampleConfig) -> list[SourceFiles]:
    """Return the files of every source, in the order of sources and then of root-relative paths.

    Raises InputError for a path that does not exist, a pattern without a match, a named file of unknown format and a
    source without content; RecipeError for a URI of an unknown scheme.
    """
    found = [_files_of(source) for source in config.sources]
    check_not_empty(found)
    read = {_location(file.path) for listing in found for file in listing.files}
    for listing in found:
        elsewhere = sum(location in read for location in listing.of_another_format)
        # A count of 0 stays out of the report.
        listing.skipped += Counter({OF_ANOTHER_SOURCE: elsewhere})
        listing.skipped -= Counter({OF_ANOTHER_FORMAT: elsewhere})
    return found


def _location(path: Path | RemoteFile) -> str | RemoteFile:
    return path if isinstance(path, RemoteFile) else str(path)


def check_not_empty(listings: list[SourceFiles]) -> None:
    """Raise InputError if all files of a source are empty."""
    for listing in listings:
        if all(file.size == 0 for file in listing.files):
            for file in listing.files:
                listing.skipped[f"that is {file.no_file}" if file.no_file else "of 0 bytes"] += 1
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(listing.skipped.items()))
            raise InputError(
                f"sample: source `{listing.source.name}` is empty: {', '.join(listing.source.paths)} holds no file to"
                f" read as `{listing.source.format}` ({reasons or 'no files at all'}). Check paths, exclude and format."
            )


def _files_of(source: Source) -> SourceFiles:
    listing = SourceFiles(source)
    roots: list[str] = []
    seen: set[str | RemoteFile] = set()
    for pattern in source.paths:
        root, files, kind = list_remote(source.name, pattern) if is_remote(pattern) else _local(listing, pattern)
        if root not in roots:
            roots.append(root)
        mark = "" if roots.index(root) == 0 else f"@{roots.index(root) + 1}/"
        for relative, path, size in files:
            if path not in seen:
                seen.add(path)
                _consider(listing, path, mark, relative, size, kind)
    listing.files.sort(key=lambda file: file.relative)
    return listing


def _local(listing: SourceFiles, pattern: str) -> tuple[str, list[tuple[str, str, int]], str]:
    """Return the files of a path or pattern on this machine as `list_remote` does, without sizes.

    They are plain strings: of the 50,000 files below a Python installation most are skipped, and a `Path` for each took
    1.1 s of 1.5 s.
    """
    if pattern.startswith("file://"):
        pattern = unquote(urlsplit(pattern).path)
    root, paths, kind = _expand(listing, pattern)
    check_files(f"sample: source `{listing.source.name}` asks for {pattern}", paths)
    prefix = os.path.join(root, "")
    return root, [(as_stored(path.removeprefix(prefix)), path, -1) for path in paths], kind


def _size(path: str) -> tuple[int, str]:
    """Return (size in bytes, what it is if it is not a file); -1 for files that the reader will reject as
    unreadable."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, ""
    if kind := special_file_kind(status):
        return 0, kind
    return -1 if stat.S_ISDIR(status.st_mode) else status.st_size, ""


def _expand(listing: SourceFiles, pattern: str) -> tuple[str, list[str], str]:
    """Return the fixed root of a pattern, its files, and its kind: `file`, `folder` or `pattern`."""
    source = listing.source
    path = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isdir(path):
        return path, _walk(path, listing.skipped), "folder"
    if os.path.isfile(path):
        return os.path.dirname(path), [path], "file"
    if not glob.has_magic(pattern):
        raise InputError(
            f"sample: source `{source.name}` asks for {pattern}, and {path} {unreadable_reason(path) or 'is no file'}."
            f" Correct the path in the recipe (or a variable in it: --set variables.NAME=...), or mount what holds it."
        )
    root = os.fspath(_fixed_part(Path(path)))
    # A folder with the name of a data file stays in the list: the reader rejects it by name.
    files = [
        match
        for match in _matches(path, listing.skipped)
        if not os.path.isdir(match) or guess_format(os.path.basename(match))[0] is not None
    ]
    if not files:
        state = "exists, but nothing in it matches" if os.path.isdir(root) else "does not exist"
        raise InputError(
            f"sample: source `{source.name}` asks for {pattern}, and no file matches; its fixed part {root} {state}."
            f" Correct the pattern in the recipe, or a variable in it: --set variables.NAME=..."
        )
    return root, files, "pattern"


def _fixed_part(path: Path) -> Path:
    fixed = Path(path.anchor)
    for part in path.parts[1:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed


def _walk(folder: str, skipped: Counter[str]) -> list[str]:
    files: list[str] = []
    for base, folders, names in os.walk(folder, onerror=lambda error: _count_closed(error, skipped)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if links := sum(os.path.islink(os.path.join(base, name)) for name in folders):
            skipped["links to folders, which are not followed"] += links
        files.extend(os.path.join(base, name) for name in names if not name.startswith("."))
    return files


def _count_closed(error: OSError, skipped: Counter[str]) -> None:
    skipped[f"folders that cannot be read ({error.strerror})"] += 1


def _matches(pattern: str, skipped: Counter[str]) -> Iterator[str]:
    """Yield what `glob` finds with `**` at any depth, without following cycles of links; folders that cannot be read
    are counted."""
    if pattern.endswith("/**"):
        pattern += "/*"
    before, deep, after = pattern.partition("/**/")
    if not deep:
        # `glob` passes over folders that it may not read.
        for folder in glob.iglob(os.path.dirname(pattern)):
            try:
                os.scandir(folder).close()
            except PermissionError as error:
                _count_closed(error, skipped)
            except OSError:
                continue
        yield from glob.iglob(pattern)
        return
    # A folder is listed once: `glob` would list it again, for half a second in an installation of Python.
    is_named = re.compile(fnmatch.translate(after)).match
    shows_hidden = after.startswith(".")
    for top in glob.iglob(before) if glob.has_magic(before) else (before or os.sep,):
        for folder, names in _folders(top, (os.path.realpath(top),), skipped):
            if "/" in after:
                # `_folders` counts those that cannot be read.
                yield from _matches(f"{glob.escape(folder)}/{after}", Counter())
            else:
                named = (name for name in names if is_named(name) and (shows_hidden or not name.startswith(".")))
                yield from (os.path.join(folder, name) for name in named)


def _folders(folder: str, above: tuple[str, ...], skipped: Counter[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield `folder` and all folders below it that are not hidden, each with the names in it; `above` are the real
    paths of it and its parents."""
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
            inner = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return  # as `glob` does
    except OSError as error:
        _count_closed(error, skipped)
        return
    yield folder, [entry.name for entry in entries]
    for entry in inner:
        real = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(above[-1], entry.name)
        if real not in above:
            yield from _folders(entry.path, (*above, real), skipped)


@functools.cache
def _excluded(masks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(mask) for mask in masks))


@functools.cache
def _named(paths: tuple[str, ...]) -> frozenset[str]:
    return frozenset(paths)


def _consider(listing: SourceFiles, path: str | RemoteFile, mark: str, inner: str, size: int, kind: str) -> None:
    """Add a file to the listing, or count why not; `mark` distinguishes its root, in which its path is `inner`."""
    source = listing.source
    relative = mark + inner
    if source.exclude and any(map(_excluded(source.exclude).match, (inner, f"/{inner}", relative))):
        listing.skipped["excluded"] += 1
        return
    if source.only and relative not in _named(source.only):
        listing.skipped["not named by `only`"] += 1
        return
    name = path.name if isinstance(path, RemoteFile) else os.path.basename(path)
    guessed, compression = guess_format(name)
    format = guessed if source.format == "auto" or (kind == "folder" and guessed != source.format) else source.format
    if format is None and kind == "file":
        names = f"sample: source `{source.name}` names {path}"
        if hint := hint_about(name, compressed=compression is not None):
            raise InputError(f"{names}, which is not read as it is ({hint}).")
        raise InputError(
            f"{names}, and its suffix does not show its format."
            f' Add format = "text" (or jsonl, csv, parquet, arrow, warc, mediawiki, markdown, wikitext, html, code) to'
            f" the source."
        )
    if format is None or (source.format != "auto" and format != source.format):
        # A stat takes 2 us; a name does not show a pipe.
        odd = "" if isinstance(path, RemoteFile) else _size(path)[1]
        if odd:
            listing.skipped[f"not a file but {odd} ({relative})"] += 1
        else:
            listing.skipped[OF_ANOTHER_FORMAT] += 1
            listing.of_another_format.append(path)
        return
    if source.thread is not None and format != "jsonl":
        raise RecipeError(
            f"sample: source `{source.name}` reads threads, and {relative} is {format}; threads are read from jsonl."
            f' Add format = "jsonl" to the source, or remove its `thread`.'
        )
    if isinstance(path, RemoteFile):
        listing.files.append(InputFile(source.name, path, relative, format, compression, size))
    else:
        listing.files.append(InputFile(source.name, Path(path), relative, format, compression, *_size(path)))
