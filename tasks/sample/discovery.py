"""Which files a source consists of: paths, folders and patterns become a sorted list of files with formats.

Each file is known by its path relative to the fixed part of the pattern it came from, so that documents keep their ids
when a whole folder moves. A source with several roots marks files of the second root `@2/...`, of the third `@3/...`,
so that two files of one name stay two.
"""

import fnmatch
import glob
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from model.errors import InputError, RecipeError
from tasks.sample.config import SampleConfig, Source

_CODE_SUFFIXES = """.py .pyi .pyx .c .h .cc .cpp .cxx .hh .hpp .cu .cuh .m .mm .js .mjs .ts .tsx .jsx .java .kt .scala
    .go .rs .rb .php .pl .pm .sh .bash .zsh .fish .ps1 .bat .sql .r .jl .lua .swift .cs .fs .hs .ml .mli .ex .exs .erl
    .el .lisp .scm .clj .f .f90 .f95 .asm .s .v .vhd .zig .nim .dart .groovy .cmake .css .scss .toml .yaml .yml .ini
    .cfg .proto .thrift .tf .dockerfile .mk"""
_FORMAT_OF_SUFFIX = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".txt", ".text", ".rst", ".tex"), "text"),
    **dict.fromkeys((".md", ".markdown", ".mdx"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys(_CODE_SUFFIXES.split(), "code"),
}
_TEXT_FILES = """README LICENSE LICENCE COPYING NOTICE AUTHORS CONTRIBUTORS CHANGELOG CHANGES HISTORY NEWS THANKS
    INSTALL TODO METADATA COPYRIGHT"""
_TEXT_NAMES = frozenset(_TEXT_FILES.split())
_CODE_NAMES = frozenset({"Makefile", "Dockerfile"})
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class InputFile:
    """One file of a source. `size` is in bytes as stored; a file whose size cannot be read has the size -1."""

    source: str
    path: Path
    relative: str
    format: str
    compression: str | None
    size: int


@dataclass
class SourceFiles:
    """The files of one source in reading order, and how many were passed over for which reason."""

    source: Source
    files: list[InputFile] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)

    @property
    def bytes(self) -> int:
        """Bytes of all files as stored."""
        return sum(max(0, file.size) for file in self.files)


def find_files(config: SampleConfig) -> list[SourceFiles]:
    """The files of every source, in the order of sources and then of root-relative paths.

    Files of 0 bytes hold no record and are only counted. Raises InputError for a path that does not exist, a pattern
    without a match, a named file of unknown format and a source without content; RecipeError for a URI.
    """
    found = [_files_of(source) for source in config.sources]
    for listing in found:
        if not listing.files:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(listing.passed_over.items()))
            raise InputError(
                f"sample: source `{listing.source.name}` is empty: {', '.join(listing.source.paths)} holds no file to"
                f" read as `{listing.source.format}` ({reasons or 'no files at all'}). Check paths, exclude and format."
            )
    return found


def _files_of(source: Source) -> SourceFiles:
    listing = SourceFiles(source)
    roots: list[Path] = []
    seen: set[Path] = set()
    for pattern in source.paths:
        root, paths, kind = _expand(source, pattern)
        if root not in roots:
            roots.append(root)
        mark = "" if roots.index(root) == 0 else f"@{roots.index(root) + 1}/"
        for path in paths:
            if path not in seen:
                seen.add(path)
                _consider(listing, path, mark + _label(path.relative_to(root)), kind)
    listing.files.sort(key=lambda file: file.relative)
    return listing


def _expand(source: Source, pattern: str) -> tuple[Path, list[Path], str]:
    """The fixed root of a pattern, its files, and what it is: `file`, `folder` or `pattern`."""
    if "://" in pattern:
        raise RecipeError(
            f"sample: source `{source.name}` asks for {pattern}; sources are read from local paths. Copy the files"
            f" to this machine or mount the store, and name that path."
        )
    path = Path(os.path.abspath(os.path.expanduser(pattern)))
    if path.is_dir():
        return path, _walk(path), "folder"
    if path.is_file():
        return path.parent, [path], "file"
    if not glob.has_magic(pattern):
        raise InputError(
            f"sample: source `{source.name}` asks for {pattern}, and {path} does not exist."
            f" Correct the path in the recipe, or mount what holds it."
        )
    root = _fixed_part(path)
    matches = [Path(match) for match in glob.glob(os.fspath(path), recursive=True)]
    files = [match for match in matches if match.is_file() or match.is_symlink()]
    if not files:
        state = "exists, but nothing in it matches" if root.is_dir() else "does not exist"
        raise InputError(
            f"sample: source `{source.name}` asks for {pattern}, and no file matches; its fixed part {root} {state}."
            f" Correct the pattern in the recipe."
        )
    return root, files, "pattern"


def _fixed_part(path: Path) -> Path:
    fixed = Path(path.anchor)
    for part in path.parts[1:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed


def _walk(folder: Path) -> list[Path]:
    files: list[Path] = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files.extend(Path(base) / name for name in names if not name.startswith("."))
    return files


def _label(relative: Path) -> str:
    return os.fsencode(relative.as_posix()).decode("utf-8", errors="backslashreplace")


def _consider(listing: SourceFiles, path: Path, relative: str, kind: str) -> None:
    source = listing.source
    if any(fnmatch.fnmatchcase(name, mask) for mask in source.exclude for name in (relative, f"/{relative}")):
        listing.passed_over["excluded"] += 1
        return
    guessed, compression = guess_format(path)
    format = guessed if source.format == "auto" or (kind == "folder" and guessed != source.format) else source.format
    if format is None and kind == "file":
        raise InputError(
            f"sample: source `{source.name}` names {path}, and its suffix tells no format."
            f' Add format = "text" (or jsonl, parquet, markdown, html, code) to the source.'
        )
    if format is None or (source.format != "auto" and format != source.format):
        listing.passed_over["of another format"] += 1
        return
    try:
        size = path.stat().st_size
    except OSError:
        size = -1  # Kept in the list: the reader will write down why it cannot be read.
    if size == 0:
        listing.passed_over["of 0 bytes"] += 1
        return
    listing.files.append(InputFile(source.name, path, relative, format, compression, size))


def guess_format(path: Path) -> tuple[str | None, str | None]:
    """(format, compression) by name: `a.jsonl.gz` is ("jsonl", "gzip"); format None where the name tells none."""
    compression = _COMPRESSIONS.get(path.suffix.lower())
    name = path.stem if compression else path.name
    stem, suffix = os.path.splitext(name)
    if stem in _TEXT_NAMES and suffix.lower() not in _FORMAT_OF_SUFFIX:
        return "text", compression
    if name in _CODE_NAMES:
        return "code", compression
    return _FORMAT_OF_SUFFIX.get(suffix.lower()), compression
