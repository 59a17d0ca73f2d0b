"""Unpack what holds text among other things, so that it can be scanned: archives (zip, tar and its compressed forms),
lists of records in JSON, mail, notebooks, books (EPUB), and subtitles."""

import email
import json
import lzma
import mailbox
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from email.message import Message
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from flows.inspection.fields import conversation_size, find_nested_text, joined_texts, name_of_texts
from flows.inspection.file_head import SNIFFED_RECORDS, decoded, json_records, read_head
from model.errors import InputError
from tasks.sample.discovery import guess_format

UNPACKED = "unpacked"
"""The folder, within the scanned one, that receives a folder for each archive."""

INSTALLED = ("node_modules", "site-packages", "__pycache__", "*.egg-info")
"""Folders of packages, which hold no text of one's own."""

BUILT, BUILT_FROM = ("build", "dist"), ("pyproject.toml", "setup.py", "package.json")
"""Folders of copies that a tool made, where they are beside one of these files."""

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
    for path in sorted(folder.rglob("*")):
        target = _target(folder, path)
        if target is None or not path.is_file():
            continue
        if not target.exists():
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
        _write_records(path, folder)
    elif suffix == JSONL:
        _write_nested_lines(path, folder)
    elif suffix in (MAILBOX, MAIL):
        _write_messages(path, suffix, folder)
    elif suffix == NOTEBOOK:
        _write_notebook(path, folder)
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
            return MAILBOX if is_mailbox(stream.read(_FIRST_LINES)) else None
    return suffix


def is_mailbox(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a mailbox, as mail programs write them without a suffix."""
    return _FIRST_MESSAGE.match(head[:_FIRST_LINES]) is not None


_FIRST_LINES = 1000

_FIRST_MESSAGE = re.compile(rb"From [^\n]*\r?\n[!-9;-~]+:[ \t]")
"""The line that begins a message, and its first header (RFC 4155)."""


def _write_records(path: Path, folder: Path) -> None:
    """Write the records of a JSON file, a line each; nothing where it has no list of objects."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return  # `scan_folder` names what cannot be read.
    lists = [found for found in (value.values() if isinstance(value, dict) else [value]) if isinstance(found, list)]
    lists = [found for found in lists if found and all(isinstance(record, dict) for record in found)]
    if lists:
        records = [_flat(record) for record in max(lists, key=len)]
        _write_lines(folder / "records.jsonl", map(_joiner(records[:SNIFFED_RECORDS]), records))


def _write_nested_lines(path: Path, folder: Path) -> None:
    """Write the records of JSON Lines, those that can be read, where most of their text is in lists or objects."""
    with suppress(OSError):  # `scan_folder` names what cannot be read.
        head = read_head(path, None)
        records, _ = json_records(decoded(head.raw, head.whole, "jsonl")[0], head.whole)
        if find_nested_text(records) is None or any(map(conversation_size, records)):
            return
        join = _joiner([_flat(record) for record in records])
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            whole = (record for line in lines for record in json_records(line, whole=True)[0])
            _write_lines(folder / "records.jsonl", (join(_flat(record)) for record in whole))


def _joiner(records: Sequence[dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what replaces lists by the texts in them, in the field that holds most of the text of flat `records`: none
    where no field does, or where it holds conversations, which are trained on turn by turn."""
    nested = find_nested_text(records)
    if nested is None or any(map(conversation_size, records)):
        return lambda record: record
    name = name_of_texts([record.get(nested.field) for record in records])
    return lambda record: {
        key: joined_texts(value, name) if key == nested.field and isinstance(value, list) else value
        for key, value in record.items()
    }


def _write_lines(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", errors="surrogatepass") as file:
        file.writelines(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a record whose nested objects' fields are its own, and whose texts are whole."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        fields |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": _joined(value)}
    return fields


def _joined(value: Any) -> Any:
    """Return the text of which `value` is the runs, as exports of chats have them: texts, and objects of links and
    names that have a `text`; any other value unchanged."""
    if not _is_runs(value):
        return value
    return "".join(run if isinstance(run, str) else run["text"] for run in value)


def _is_runs(value: object) -> bool:
    if not isinstance(value, list):
        return False
    objects = [run for run in value if isinstance(run, dict)]
    # Posts have no type, or have lists of replies.
    marked = len(objects) < len(value) or all("type" in run for run in objects)
    nested = any(isinstance(inner, list) for run in objects for inner in run.values())
    texts = (run.get("text") if isinstance(run, dict) else run for run in value)
    return bool(objects) and marked and not nested and all(isinstance(text, str) for text in texts)


def _write_messages(path: Path, suffix: str, folder: Path) -> None:
    """Write the text of each message, a line each, and of those that have HTML alone a page each."""
    pages: list[str] = []

    def texts(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
        for message in messages:
            parts = [part for part in message.walk() if not part.get_filename()]
            first = {part.get_content_type(): part for part in reversed(parts)}
            if "text/plain" in first:
                text = _QUOTED_FROM.sub("", _text_of(first["text/plain"]))
                yield {"id": str(message["Message-ID"] or ""), "text": text}
            elif "text/html" in first:
                pages.append(_text_of(first["text/html"]))

    if suffix == MAIL:
        _write_lines(folder / "messages.jsonl", texts([email.message_from_bytes(path.read_bytes())]))
    else:
        with closing(mailbox.mbox(path, create=False)) as box:
            _write_lines(folder / "messages.jsonl", texts(box))
    for number, page in enumerate(pages):
        (folder / f"{number}.html").write_text(page, encoding="utf-8", errors="replace")


_QUOTED_FROM = re.compile(r"^>(?=>*From )", re.MULTILINE)
"""What mailboxes put before a line that would begin a message."""


def _text_of(part: Message) -> str:
    raw = part.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return ""
    try:
        return raw.decode(part.get_content_charset("utf-8"), errors="replace")
    except (LookupError, ValueError):  # A character set that Python does not know, or cannot read leniently.
        return raw.decode(errors="replace")


def _write_notebook(path: Path, folder: Path) -> None:
    """Write the cells of a Jupyter notebook as Markdown; nothing where it is none."""
    # `scan_folder` names what cannot be read.
    with suppress(ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        notebook = json.loads(path.read_bytes())
        about = notebook.get("metadata") or {}
        language = about.get("language_info", {}).get("name") or about.get("kernelspec", {}).get("language") or "python"
        cells = [(cell["cell_type"], "".join(cell["source"]).strip("\n")) for cell in notebook["cells"]]
        parts = [f"```{language}\n{text}\n```" if kind == "code" else text for kind, text in cells if text.strip()]
        (folder / "notebook.md").write_text("\n\n".join(parts) + "\n", "utf-8", "surrogatepass")


_CUE = re.compile(rb"(?:^(?:\d+|(?<=\n\n)[^\n]*)\n)?^(?:\d+:)?\d\d:\d\d[,.]\d{3} --> [^\n]*\n?", re.MULTILINE)
"""The times of a cue, and before them the line of its number, or of its name, which follows an empty line."""

_UNSAID = re.compile(rb"(?<=\n\n)(?:WEBVTT|NOTE|STYLE|REGION)(?:[ \t][^\n]*)?(?:\n(?![^\n]*-->)[^\n]+)*(?=\n|\Z)")
"""Header and blocks of WebVTT that are no cues; each ends at an empty line, or where a cue begins."""

_TAG = re.compile(rb"</?(?:[ibuv]|c|font|ruby|rt|lang)(?:[ .][^<>\n]*)?>|<(?:\d+:)?\d\d:\d\d\.\d{3}>|\{\\[^{}\n]*\}")


def spoken(subtitles: bytes) -> bytes:
    """Return what subtitles (SubRip, WebVTT) show, in their encoding: no numbers, times, notes, colours and places, and
    the lines of a sentence as one. Those in UTF-16 are returned as they are."""
    if b"\0" in subtitles:
        return subtitles
    text = b"\n\n" + subtitles.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").lstrip()
    if text.startswith(b"\n\nWEBVTT"):
        text = _UNSAID.sub(b"", text)
    text = _TAG.sub(b"", _CUE.sub(b"\n", text))
    return _INSIDE_A_SENTENCE.sub(b" ", re.sub(rb"\n\s*\n", b"\n", text).strip()) + b"\n"


_INSIDE_A_SENTENCE = re.compile(rb"(?<=[a-z,;])\n(?=[a-zA-Z0-9'\"])|(?<=[^\s.!?:)\]\"'\x80-\xff])\n(?=[a-z])")
"""The end of a line of a subtitle that is none of a sentence, in text of Latin letters."""


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
