"""Messages of social media become threads: one document for each conversation.

OPT (Zhang et al. 2022, section 2.3) reads Reddit as the longest chain of replies of each thread, YaLM-100B its
dialogues in the same way. Dumps are in the order of time, so the messages of a thread are far apart: they are
distributed into buckets on disk by a hash of their thread, and each bucket is read into memory by itself. Threads are
yielded bucket by bucket, inside of a bucket by their first message; the number of buckets depends only on the size of
the file."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

import blake3
import orjson

from tasks.sample.config import Source, Thread
from tasks.sample.readers.byte_stream import Line, LostLine
from tasks.sample.readers.jsonl_reader import is_encodable, json_object, record_of_fields
from tasks.sample.readers.records import BadRecord, Found, Record, Skipped, excerpt_of

BUCKET_BYTES = 32 * 1024**2
"""Stored bytes of a file for each bucket."""

MOST_BUCKETS = 256


class Message:
    """A message, the line it came from, and its replies."""

    __slots__ = ("byte", "message_id", "number", "parent", "replies", "text")

    def __init__(self, number: int, byte: int, message_id: str, parent: str, text: str) -> None:
        self.number, self.byte, self.message_id, self.parent, self.text = number, byte, message_id, parent, text
        self.replies: list[Message] = []


def thread_records(lines: Iterator[Line | LostLine], source: Source, thread: Thread, size: int) -> Iterator[Found]:
    """Yield the unreadable messages first, then the threads.

    `step` counts both, `number` is a line of the file (of a thread, its first message), and the key of a thread is its
    id. `size` is the size of the file in stored bytes.
    """
    count = min(MOST_BUCKETS, 1 + max(0, size) // BUCKET_BYTES)
    plain = source.model_copy(update={"id_field": None})
    step = 0
    with ExitStack() as open_files:
        buckets = [open_files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        for line in lines:
            bad = _into_bucket(line, plain, thread, buckets)
            if bad is not None:
                yield BadRecord(bad.number, bad.byte, bad.reason, bad.excerpt, step)
                step += 1
        for bucket in buckets:
            for key, messages in _threads(bucket):
                for found in _document(key, messages, thread, source.max_file_bytes, step):
                    yield found
                    step += 1


def _into_bucket(
    line: Line | LostLine, source: Source, thread: Thread, buckets: Sequence[IO[bytes]]
) -> BadRecord | None:
    if isinstance(line, LostLine):
        return BadRecord(line.number, line.byte, line.reason, excerpt_of(line.rest))
    if line.raw is None:
        return BadRecord(line.number, line.byte, f"line longer than max_file_bytes ({source.max_file_bytes})")
    if not line.raw or line.raw.isspace():
        return None
    try:
        fields: Any = orjson.loads(line.raw)
    except orjson.JSONDecodeError:
        fields = None
    names = (thread.thread_field, thread.id_field, thread.reply_field, thread.author_field)
    # orjson reads a whole number of more than 64 bits as a float.
    if not isinstance(fields, dict) or any(isinstance(fields.get(name), float) for name in names):
        fields = json_object(line.number, line.byte, line.raw)
        if isinstance(fields, BadRecord):
            return None if line.torn else fields
    record = record_of_fields(line.number, line.byte, fields, source, line.raw)
    if isinstance(record, BadRecord):
        return record
    key, message_id = _identifier(fields.get(thread.thread_field)), _identifier(fields.get(thread.id_field))
    for field, value in ((thread.thread_field, key), (thread.id_field, message_id)):
        if not value:
            return BadRecord(line.number, line.byte, f"no id in field `{field}`", excerpt_of(line.raw))
    text = record.text
    if thread.author_field is not None and (author := _identifier(fields.get(thread.author_field))):
        text = f"{author}: {text}"
    parent = _identifier(fields.get(thread.reply_field))
    bucket = buckets[int.from_bytes(blake3.blake3(key.encode()).digest(length=2)) % len(buckets)]
    bucket.write(orjson.dumps([key, line.number, line.byte, message_id, parent, text]) + b"\n")
    return None


def _identifier(value: object) -> str:
    """Return an id or a name as text; empty where there is none that can be written."""
    is_one = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value) if is_one and is_encodable(str(value)) else ""


def _threads(bucket: IO[bytes]) -> Iterator[tuple[str, list[Message]]]:
    bucket.seek(0)
    threads: dict[str, list[Message]] = {}
    for line in bucket:
        key, number, byte, message_id, parent, text = orjson.loads(line)
        threads.setdefault(key, []).append(Message(number, byte, message_id, parent, text))
    yield from threads.items()


def _document(key: str, messages: list[Message], thread: Thread, limit: int, step: int) -> Iterator[Found]:
    first = messages[0]
    roots = reply_trees(messages)
    chosen = longest_chain(roots) if thread.paths == "longest" else in_reading_order(roots)
    text = "\n".join(message.text for message in chosen)
    if len(text.encode()) > limit:
        yield BadRecord(
            first.number, first.byte, f"thread longer than max_file_bytes ({limit})", excerpt_of(text), step
        )
        return
    yield Record(first.number, first.byte, text, key, step=step)
    if omitted := len(messages) - len(chosen):
        yield Skipped(first.number, "messages outside the longest chain of their thread", omitted, step + 1)


def reply_trees(messages: list[Message]) -> list[Message]:
    """Return the messages that reply to none of the others, in the order given, with their replies in `replies`.

    If messages reply to each other in a cycle, the first of them counts as replying to none.
    """
    by_id: dict[str, Message] = {}
    for message in messages:
        message.replies = []
        by_id.setdefault(message.message_id, message)
    parents = [by_id.get(message.parent) for message in messages]
    parent_of = {id(message): parent for message, parent in zip(messages, parents, strict=True)}
    roots: list[Message] = []
    settled: set[int] = set()
    for message in messages:
        path: list[Message] = []
        on_path: set[int] = set()
        above: Message | None = message
        while above is not None and id(above) not in settled and id(above) not in on_path:
            path.append(above)
            on_path.add(id(above))
            above = parent_of[id(above)]
        if above is not None and id(above) in on_path:
            cycle = path[path.index(above) :]
            parent_of[id(min(cycle, key=lambda member: (member.number, member.message_id)))] = None
        settled |= on_path
    for message in messages:
        parent = parent_of[id(message)]
        (roots if parent is None else parent.replies).append(message)
    return roots


def longest_chain(roots: list[Message]) -> list[Message]:
    """Return the path from a root with the most messages; of equal ones the first."""
    best: dict[int, tuple[int, Message | None]] = {}
    for message in reversed(in_reading_order(roots)):
        depth, following = 0, None
        for reply in message.replies:
            if best[id(reply)][0] > depth:
                depth, following = best[id(reply)][0], reply
        best[id(message)] = (depth + 1, following)
    at: Message | None = max(roots, key=lambda root: best[id(root)][0])
    chain: list[Message] = []
    while at is not None:
        chain.append(at)
        at = best[id(at)][1]
    return chain


def in_reading_order(roots: list[Message]) -> list[Message]:
    """Return all messages, each followed by its replies."""
    ordered: list[Message] = []
    waiting = list(reversed(roots))
    while waiting:
        message = waiting.pop()
        ordered.append(message)
        waiting.extend(reversed(message.replies))
    return ordered
