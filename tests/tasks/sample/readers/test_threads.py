"""Messages become threads: the longest chain of replies, or all of them in reading order."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.sample.config import Source, Thread
from tasks.sample.discovery import InputFile
from tasks.sample.readers import conversations as threads
from tasks.sample.readers.conversations import Message, in_reading_order, longest_chain, reply_trees
from tasks.sample.readers.files import read_records
from tasks.sample.readers.records import BadRecord, Record, Skipped


def read(path, messages, begin=0, **fields):
    path.write_text("".join(json.dumps(message, ensure_ascii=False) + "\n" for message in messages))
    source = Source(name="s", paths=str(path), weight=1, thread=Thread(**fields))
    file = InputFile("s", path, path.name, "jsonl", None, path.stat().st_size)
    return list(read_records(file, source, begin, lambda count: None))


def message(thread, name, parent, text):
    return {"thread_id": thread, "id": name, "parent_id": parent, "text": text, "author": f"user {name}"}


@pytest.fixture
def talk():
    """Two threads, mixed by time: a <- b <- d, a <- c; and x alone."""
    return [
        message("t1", "a", None, "Кто здесь?"),
        message("t2", "x", "", "Alone."),
        message("t1", "b", "a", "Я."),
        message("t1", "c", "a", "И я."),
        message("t1", "d", "b", "Привет!"),
    ]


def test_the_longest_chain_of_replies_is_the_document(tmp_path, talk):
    first, left_out, alone = read(tmp_path / "a.jsonl", talk)
    assert (first.text, first.key, first.number) == ("Кто здесь?\nЯ.\nПривет!", "t1", 0)
    assert left_out == Skipped(0, "messages outside the longest chain of their thread", 1, 1)
    assert (alone.text, alone.key, alone.number) == ("Alone.", "t2", 1)


def test_all_messages_follow_what_they_reply_to(tmp_path, talk):
    first, alone = read(tmp_path / "a.jsonl", talk, paths="all", author_field="author")
    assert first.text == "user a: Кто здесь?\nuser b: Я.\nuser d: Привет!\nuser c: И я."
    assert alone.text == "user x: Alone."


def test_messages_that_cannot_be_read_are_rejected_with_their_lines(tmp_path, talk):
    talk[2] = {"thread_id": "t1", "text": "who am I"}
    talk[3] = {"id": "c", "text": "where am I"}
    talk.append({"thread_id": "t1", "id": "e", "text": 5})
    found = read(tmp_path / "a.jsonl", talk)
    assert [(bad.number, bad.reason) for bad in found if isinstance(bad, BadRecord)] == [
        (2, "no id in field `id`"),
        (3, "no id in field `thread_id`"),
        (5, "field `text` holds a number, not text"),
    ]
    assert [record.key for record in found if isinstance(record, Record)] == ["t1", "t2"]


def test_half_of_a_surrogate_pair_is_no_id_and_no_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        """{"thread_id": "t", "id": "\\ud800", "text": "one"}
        {"thread_id": "\\ud800", "id": "b", "text": "two"}
        {"thread_id": "t", "id": "c", "author": "\\ud800", "parent_id": "\\ud800", "text": "three"}"""
    )
    source = Source(name="s", paths=str(path), weight=1, thread=Thread(author_field="author"))
    found = list(read_records(InputFile("s", path, path.name, "jsonl", None, 1), source, 0, lambda count: None))
    assert [one.reason for one in found[:2]] == ["no id in field `id`", "no id in field `thread_id`"]
    assert [one.text for one in found[2:]] == ["three"]


def test_ids_of_more_than_64_bits_are_ids(tmp_path):
    first, second = 2**64, 2**64 + 1
    messages = [message(first, first, None, "one"), message(first, second, first, "two"), message(second, 1, None, "3")]
    found = read(tmp_path / "a.jsonl", messages, author_field="id")
    assert [(one.key, one.text) for one in found] == [
        (str(first), f"{first}: one\n{second}: two"),
        (str(second), "1: 3"),
    ]


@pytest.mark.parametrize("buckets", [1, 4])
def test_reading_can_begin_at_any_place(tmp_path, monkeypatch, buckets):
    messages = [message(f"t{number % 40}", f"m{number}", None, f"text {number}") for number in range(200)]
    if buckets > 1:
        monkeypatch.setattr(threads, "BUCKET_BYTES", 4096)
    whole = read(tmp_path / "a.jsonl", messages, paths="all")
    assert {record.key for record in whole} == {f"t{number}" for number in range(40)}
    assert all(len(record.text.splitlines()) == 5 for record in whole)
    for begin in (0, 7, 39, 40):
        assert read(tmp_path / "a.jsonl", messages, begin=begin, paths="all") == whole[begin:]


def test_replies_in_a_circle_and_to_deleted_messages_lose_nothing():
    replies = {"a": "b", "b": "a", "c": "gone", "d": "c", "e": "e"}
    messages = [Message(number, 0, name, parent, name) for number, (name, parent) in enumerate(replies.items())]
    roots = reply_trees(messages)
    assert [root.text for root in roots] == ["a", "c", "e"]
    assert [found.text for found in in_reading_order(roots)] == ["a", "b", "c", "d", "e"]


def test_a_chain_of_many_replies_needs_no_recursion():
    messages = [Message(number, 0, str(number), str(number - 1), str(number)) for number in range(50_000)]
    assert longest_chain(reply_trees(messages)) == messages


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_every_message_occurs_once_and_a_chain_follows_replies(parents):
    messages = [Message(number, 0, str(number), str(parent), "") for number, parent in enumerate(parents)]
    roots = reply_trees(messages)
    ordered = in_reading_order(roots)
    assert sorted(found.number for found in ordered) == list(range(len(parents)))
    chain = longest_chain(roots)
    assert all(after.parent == before.message_id for before, after in itertools.pairwise(chain))


def test_a_thread_above_the_limit_is_rejected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(message("t", str(n), str(n - 1), "x" * 90)) + "\n" for n in range(20)))
    source = Source(name="s", paths=str(path), weight=1, thread=Thread(), max_file_bytes=1000)
    file = InputFile("s", path, path.name, "jsonl", None, path.stat().st_size)
    (bad,) = read_records(file, source, 0, lambda count: None)
    assert bad.reason == "thread longer than max_file_bytes (1000)"
