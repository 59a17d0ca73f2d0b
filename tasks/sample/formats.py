"""The format of a file by its name, and hints about files that are not read as they are: what they are, and what makes
text of them."""

import os

_CODE_SUFFIXES = """.py .pyi .pyx .c .h .cc .cpp .cxx .hh .hpp .cu .cuh .m .mm .js .mjs .ts .tsx .jsx .java .kt .scala
    .go .rs .rb .php .pl .pm .sh .bash .zsh .fish .ps1 .bat .sql .r .jl .lua .swift .cs .fs .hs .ml .mli .ex .exs .erl
    .el .lisp .scm .clj .f .f90 .f95 .asm .s .v .vhd .zig .nim .dart .groovy .cmake .css .scss .toml .yaml .yml .ini
    .cfg .proto .thrift .tf .dockerfile .mk"""
_FORMAT_OF_SUFFIX = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".warc", ".wet"), "warc"),
    **dict.fromkeys((".wikitext", ".mediawiki", ".wiki"), "wikitext"),
    **dict.fromkeys((".txt", ".text", ".rst", ".tex"), "text"),
    **dict.fromkeys((".md", ".markdown", ".mdx"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys(_CODE_SUFFIXES.split(), "code"),
}
_TEXT_FILES = """README LICENSE LICENCE COPYING NOTICE AUTHORS CONTRIBUTORS CHANGELOG CHANGES HISTORY NEWS THANKS
    INSTALL TODO METADATA COPYRIGHT"""
_TEXT_NAMES = frozenset(_TEXT_FILES.split())
_CODE_NAMES = frozenset({"Makefile", "Dockerfile"})
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2"}

MAILBOX_HINT = "a mailbox: `bessemer init --unpack` writes the text of its messages as .jsonl"

NO_TEXT = {
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp3", ".wav", ".m4a", ".mp4", ".mov", ".mkv"),
        "a picture, sound or film",
    ),
    ".pdf": "PDF: extract its text first",
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf"), "of a word processor: save as text or Markdown"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet: save as .csv"),
    ".epub": "EPUB: `bessemer init --unpack` writes its chapters as HTML",
    **dict.fromkeys((".zip", ".tar", ".tgz"), "an archive: `bessemer init --unpack` unpacks it"),
    **dict.fromkeys((".7z", ".rar"), "an archive: unpack it"),
    ".lock": "a list of versions that a tool wrote",
    ".xz": "xz: compress as .gz or .zst instead",
    ".json": "JSON in one piece: `bessemer init --unpack` writes the list of records in it, if there is one, as .jsonl",
    ".mbox": MAILBOX_HINT,
    ".eml": "mail: `bessemer init --unpack` writes its text as .jsonl",
    ".ipynb": "a notebook: `bessemer init --unpack` writes its text and code as Markdown",
    **dict.fromkeys(
        (".srt", ".vtt"), "subtitles: `bessemer init --unpack` writes what they say, without numbers and times"
    ),
}


def guess_format(name: str) -> tuple[str | None, str | None]:
    """Return (format, compression) by name: `a.jsonl.gz` is ("jsonl", "gzip"); format None if it is unknown."""
    stem, suffix = os.path.splitext(name)
    compression = _COMPRESSIONS.get(suffix.lower())
    if compression:
        name = stem
        stem, suffix = os.path.splitext(name)
    if stem in _TEXT_NAMES and suffix.lower() not in _FORMAT_OF_SUFFIX:
        return "text", compression
    if name in _CODE_NAMES:
        return "code", compression
    return _FORMAT_OF_SUFFIX.get(suffix.lower()), compression


def named_record(path: str, number: int) -> str:
    """Return what people call a record of a file: the line of a table where its row begins, from 1 as in an editor, and
    otherwise its number."""
    return f"line {number + 1}" if guess_format(os.path.basename(path))[0] == "csv" else f"record {number}"


def hint_about(name: str, *, compressed: bool) -> str:
    """Return what a file is that is not read as it is, and what makes text of it; empty for any other."""
    suffix = os.path.splitext(os.path.splitext(name)[0] if compressed else name)[1].lower()
    hint = NO_TEXT.get(suffix, "")
    return f"decompress it first; {hint}" if hint and compressed and suffix != ".tar" else hint
