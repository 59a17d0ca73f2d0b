"""Converters of single files into text or records: JSON and JSON Lines with nested texts, mail, notebooks, subtitles.

Each writes into a folder of its own, and writes nothing where the file holds no text; `scan_folder` names files that
cannot be read.
"""

import email
import json
import mailbox
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from email.message import Message
from pathlib import Path
from typing import Any

from flows.inspection.fields import conversation_size, find_nested_text, joined_texts, name_of_texts
from flows.inspection.file_head import SNIFFED_RECORDS, decoded, json_records, read_head


def write_records(path: Path, folder: Path) -> None:
    """Write the records of a JSON file, a line each; nothing where it has no list of objects."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return
    lists = [found for found in (value.values() if isinstance(value, dict) else [value]) if isinstance(found, list)]
    lists = [found for found in lists if found and all(isinstance(record, dict) for record in found)]
    if lists:
        records = [_flat(record) for record in max(lists, key=len)]
        _write_lines(folder / "records.jsonl", map(_joiner(records[:SNIFFED_RECORDS]), records))


def write_nested_lines(path: Path, folder: Path) -> None:
    """Write the records of JSON Lines, those that can be read, where most of their text is in lists or objects."""
    with suppress(OSError):
        head = read_head(path, None)
        records = json_records(decoded(head.raw, head.whole, "jsonl")[0], head.whole)
        if find_nested_text(records) is None or any(map(conversation_size, records)):
            return
        join = _joiner([_flat(record) for record in records])
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            whole = (record for line in lines for record in json_records(line, whole=True))
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


def write_messages(path: Path, folder: Path, *, is_mailbox: bool) -> None:
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

    if is_mailbox:
        with closing(mailbox.mbox(path, create=False)) as box:
            _write_lines(folder / "messages.jsonl", texts(box))
    else:
        _write_lines(folder / "messages.jsonl", texts([email.message_from_bytes(path.read_bytes())]))
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


def write_notebook(path: Path, folder: Path) -> None:
    """Write the cells of a Jupyter notebook as Markdown; nothing where it is none."""
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

_WORD_TIME = re.compile(rb"<(?:\d+:)?\d\d:\d\d\.\d{3}>")

_ROLLED = re.compile(rb"^([^\n]+\n)\1+", re.MULTILINE)
"""A line that is shown again above the next one, as captions written word by word do."""

_INSIDE_A_SENTENCE = re.compile(rb"(?<=[a-z,;])\n(?=[a-zA-Z0-9'\"])|(?<=[^\s.!?:)\]\"'\x80-\xff])\n(?=[a-z])")
"""The end of a line of a subtitle that is none of a sentence, in text of Latin letters."""


def spoken(subtitles: bytes) -> bytes:
    """Return what subtitles (SubRip, WebVTT) show, in their encoding: no numbers, times, notes, colours and places, and
    the lines of a sentence as one. Those in UTF-16 are returned as they are."""
    if b"\0" in subtitles:
        return subtitles
    text = b"\n\n" + subtitles.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").lstrip()
    if text.startswith(b"\n\nWEBVTT"):
        text = _UNSAID.sub(b"", text)
    is_rolled = _WORD_TIME.search(text) is not None
    text = _TAG.sub(b"", _CUE.sub(b"\n", text))
    text = re.sub(rb"\n\s*\n", b"\n", text).strip() + b"\n"
    if is_rolled:
        text = _ROLLED.sub(rb"\1", text)
    return _INSIDE_A_SENTENCE.sub(b" ", text.strip()) + b"\n"
