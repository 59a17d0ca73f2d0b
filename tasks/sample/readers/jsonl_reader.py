"""JSON lines: an object on each line, one of whose fields is the text.

orjson parses the lines that it can; those that it refuses, or parses differently, go to the standard library, which
also says what is wrong and where."""

import json
from collections.abc import Iterator
from typing import Any

import orjson

from model.errors import json_problem, json_type
from tasks.sample.config import Source
from tasks.sample.readers.byte_stream import Line, LostLine
from tasks.sample.readers.records import BadRecord, Record, decode_text, excerpt_of


def json_records(lines: Iterator[Line | LostLine], source: Source, begin: int) -> Iterator[Record | BadRecord]:
    """Yield a record for every line from number `begin` on that is not blank; the torn end of a lost line is skipped,
    since its loss was reported."""
    for line in lines:
        if line.number < begin:
            continue
        if isinstance(line, LostLine):
            yield BadRecord(line.number, line.byte, line.reason, excerpt_of(line.rest))
        elif line.raw is None:
            yield BadRecord(line.number, line.byte, f"line longer than max_file_bytes ({source.max_file_bytes})")
        elif line.raw and not line.raw.isspace():
            found = parse_line(line, source)
            if not (line.torn and isinstance(found, BadRecord)):
                yield found


def parse_line(line: Line, source: Source) -> Record | BadRecord:
    """Return the record of a line that is not blank."""
    raw = line.raw or b""
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError:
        fields = None
    if type(fields) is dict:
        text = fields.get(source.text_field)
        if type(text) is str and text and not text.isspace():
            url = None if source.url_field is None else url_of(fields.get(source.url_field))
            if source.id_field is None:
                return Record(line.number, line.byte, text, url=url)
            key = fields.get(source.id_field)
            if type(key) is int or (type(key) is str and key):
                return Record(line.number, line.byte, text, str(key), url=url)
    fields = json_object(line.number, line.byte, raw)
    return fields if isinstance(fields, BadRecord) else record_of_fields(line.number, line.byte, fields, source, raw)


def json_object(number: int, byte: int, raw: bytes) -> dict[str, Any] | BadRecord:
    """Return the object on a line, or what is wrong with it, at the offending byte."""
    decoded = decode_text(number, byte, raw)
    if isinstance(decoded, BadRecord):
        return decoded
    try:
        fields = json.loads(decoded.text)
    except (ValueError, RecursionError) as error:
        before = error.pos if isinstance(error, json.JSONDecodeError) else 0
        position = decoded.byte + len(decoded.text[:before].encode())
        return BadRecord(number, position, f"broken JSON: {json_problem(error)}", excerpt_of(raw))
    if not isinstance(fields, dict):
        return BadRecord(number, byte, f"not a JSON object but {json_type(fields)}", excerpt_of(raw))
    return fields


def record_of_fields(
    number: int, byte: int, fields: dict[str, Any], source: Source, raw: bytes, named: str = "field"
) -> Record | BadRecord:
    """Return the record of an object's fields, or a row's columns (`named`); `raw` is the excerpt of a BadRecord."""
    if source.text_field not in fields:
        reason = f"no {named} `{source.text_field}`"
        return BadRecord(number, byte, reason, excerpt_of(raw), setting="text_field")
    text = fields[source.text_field]
    if not isinstance(text, str):
        reason = f"{named} `{source.text_field}` holds {json_type(text)}, not text"
        return BadRecord(number, byte, reason, excerpt_of(raw), setting="text_field")
    if not text or text.isspace():
        return BadRecord(number, byte, "empty text", excerpt_of(raw))
    if not is_encodable(text):
        return BadRecord(number, byte, "text holds half of a surrogate pair, which is no character", excerpt_of(raw))
    url = None if source.url_field is None else url_of(fields.get(source.url_field))
    if source.id_field is None:
        return Record(number, byte, text, url=url)
    key = fields.get(source.id_field)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        return BadRecord(number, byte, f"no id in {named} `{source.id_field}`", excerpt_of(raw), setting="id_field")
    return Record(number, byte, text, str(key), url=url)


def url_of(value: object) -> str | None:
    """Return an address as text; None if there is none."""
    return value if isinstance(value, str) and value and is_encodable(value) else None


def is_encodable(text: str) -> bool:
    """Return whether a text holds whole characters alone; JSON may hold halves of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
