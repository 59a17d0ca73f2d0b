"""Files that are replaced, appended to, overwritten or cut at any moment of a build: what is published is exactly what
one version of the file holds, under that version's identity, or the build ends in an error that names the file."""

import gzip
import io
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.errors import GuardError, InputError
from tasks.artifacts.build import RunContext
from tasks.sample import sampler as sampling
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample

RECORDS = 12


def texts(word):
    return [f"{word} {number} of a file that somebody writes to" for number in range(RECORDS)]


def lines(word):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts(word)).encode()


def table(word):
    return pa.table({"text": texts(word)})


def parquet(word):
    sink = io.BytesIO()
    pq.write_table(table(word), sink, row_group_size=8, compression=None)
    return sink.getvalue()


def arrow(word, new=pa.ipc.new_file):
    sink = io.BytesIO()
    with new(sink, table(word).schema) as writer:
        writer.write_table(table(word), max_chunksize=8)
    return sink.getvalue()


def archive(word):
    head = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
    return b"".join(head % (len(text), text.encode()) for text in texts(word))


FILES = {
    "a.jsonl": lines,
    "a.jsonl.gz": lambda word: gzip.compress(lines(word), mtime=0),
    "a.csv": lambda word: "\n".join(["text", *texts(word)]).encode(),
    "a.txt": lambda word: "\n".join(texts(word)).encode(),
    "a.html": lambda word: "".join(f"<p>{text}</p>" for text in texts(word)).encode(),
    "a.parquet": parquet,
    "a.arrow": arrow,
    "b.arrow": lambda word: arrow(word, pa.ipc.new_stream),
    "a.warc": archive,
}


def put_in_place(path, data):
    """Another file under the name, as editors and downloads do."""
    beside = path.with_name(".new")
    beside.write_bytes(data)
    os.replace(beside, path)


def overwrite(path, data):
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()


class Disk:
    """Counts how often files of one name are opened and read, and changes one in the moment before a chosen time."""

    def __init__(self, monkeypatch, name):
        self.name, self.done, self.changes = name, 0, {}
        opens, wraps = os.open, os.fdopen
        disk, handles = self, set()

        class Stream(io.BufferedReader):
            def read(self, size=-1):
                disk.step()
                return super().read(size)

        def opened(path, *rest, **more):
            watched = os.path.basename(os.fspath(path)) == self.name
            if watched:
                self.step()
            handle = opens(path, *rest, **more)
            handles.discard(handle)
            if watched:
                handles.add(handle)
            return handle

        def wrapped(handle, mode="r", *rest, **more):
            if handle in handles and mode == "rb":
                handles.discard(handle)
                return Stream(io.FileIO(handle, "rb"))
            return wraps(handle, mode, *rest, **more)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "fdopen", wrapped)

    def step(self):
        change = self.changes.get(self.done)
        self.done += 1
        if change is not None:
            change()


@pytest.fixture(params=sorted(FILES))
def name(request):
    return request.param


@pytest.fixture
def blocks(monkeypatch):
    """Files of a few hundred bytes are as many blocks as large ones."""
    monkeypatch.setattr("model.file_content.BLOCK_BYTES", 512, raising=False)


def build(root, path):
    source = Source(name="s", paths=(str(path.parent),), weight=1)
    config = SampleConfig(sources=(source,), budget_tokens=10**9, part_bytes=1024, max_reject_share=1)
    return build_sample(RunContext(root, "run"), config)


def outcome(root, path):
    """What a build publishes, or the kind of error and what it says."""
    try:
        artifact = build(root, path)
    except (InputError, GuardError) as error:
        assert not list(root.glob("artifacts/*/*"))
        return type(error).__name__, str(error)
    return artifact.identity, artifact.content


def alone(folder, name, data):
    """The outcome where nobody touches the file."""
    place = folder / "alone" / "in"
    place.mkdir(parents=True)
    (place / name).write_bytes(data)
    try:
        return outcome(folder / "alone" / "root", place / name)
    finally:
        shutil.rmtree(folder / "alone")


def same(one, other):
    """Whether two outcomes are one; files of a torn format, and empty ones, end in an error at another path."""
    return one == other or (one[0] == other[0] and one[0] in ("InputError", "GuardError"))


def ways(path, first, second):
    """Ways to change a file, with what it holds afterwards."""
    half = first[: len(first) // 2]
    return {
        "replaced": (lambda: put_in_place(path, second), second),
        "overwritten": (lambda: overwrite(path, second), second),
        "appended": (lambda: overwrite(path, first + second), first + second),
        "cut": (lambda: os.truncate(path, len(first) // 2), half),
        "emptied": (lambda: os.truncate(path, 0), b""),
    }


@pytest.mark.parametrize("way", ["replaced", "overwritten", "appended", "cut", "emptied"])
def test_a_change_at_any_moment_gives_one_version_whole_or_an_error(name, way, blocks, tmp_path, monkeypatch):
    path = tmp_path / "in" / name
    path.parent.mkdir()
    first, second = FILES[name]("first"), FILES[name]("other")
    change, after = ways(path, first, second)[way]
    # A file that is longer by the time it is read is read up to the length that it was opened with.
    whole = {data: alone(tmp_path, name, data) for data in (first, after, after[: len(first)])}
    disk = Disk(monkeypatch, name)
    moment, changed = 0, 0
    while True:
        path.write_bytes(first)
        root = tmp_path / f"root-{moment}"
        disk.done, disk.changes = 0, {moment: change}
        found = outcome(root, path)
        if disk.done <= moment:
            break
        disk.changes = {}
        if found[0] == "ChangedInput":
            changed += 1
            assert str(path) in found[1]
            # What was finished before is not taken for the new content, nor for the old when that comes back.
            for data in (after, first):
                path.write_bytes(data)
                assert same(outcome(root, path), whole[data]), moment
        else:
            assert any(same(found, expected) for expected in whole.values()), moment
        shutil.rmtree(root, ignore_errors=True)
        moment += 1
    assert moment >= 4, "opened and read to be digested, and again"
    assert changed >= 1 or way == "appended"


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_file_that_is_another_one_for_a_while_gives_one_version_or_an_error(name, blocks, tmp_path, monkeypatch):
    path = tmp_path / "in" / name
    path.parent.mkdir()
    first, second = FILES[name]("first"), FILES[name]("other")
    whole = [alone(tmp_path, name, data) for data in (first, second, second[: len(first)])]
    path.write_bytes(first)
    disk = Disk(monkeypatch, name)
    outcome(tmp_path / "counted", path)
    moments, changed = disk.done, 0
    for begin in range(moments):
        for end in sorted({begin + 1, begin + 4, moments}):
            path.write_bytes(first)
            disk.done = 0
            disk.changes = {begin: lambda: overwrite(path, second), end: lambda: overwrite(path, first)}
            root = tmp_path / f"root-{begin}-{end}"
            found = outcome(root, path)
            disk.changes = {}
            if found[0] == "ChangedInput":
                changed += 1
                assert str(path) in found[1]
                path.write_bytes(first)
                assert same(outcome(root, path), whole[0]), "something of the other content is left"
            else:
                assert any(same(found, expected) for expected in whole), (begin, end)
            shutil.rmtree(root, ignore_errors=True)
    assert changed


def test_a_log_that_grows_is_read_up_to_the_length_first_seen(tmp_path, monkeypatch):
    path = tmp_path / "in" / "log.jsonl"
    path.parent.mkdir()
    path.write_bytes(lines("first"))
    whole = alone(tmp_path, "log.jsonl", lines("first"))
    disk = Disk(monkeypatch, "log.jsonl")

    def grow():
        with path.open("ab") as stream:
            stream.write(b'{"text": "one more line"}\n')

    disk.changes = dict.fromkeys(range(1, 100), grow)
    assert outcome(tmp_path / "root", path) == whole
    assert path.stat().st_size > len(lines("first"))


def test_the_unfinished_line_of_a_log_that_grows_is_rejected_and_read_by_the_next_run(tmp_path, monkeypatch):
    path = tmp_path / "in" / "log.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"text": "whole"}\n{"text": "hal')
    disk = Disk(monkeypatch, "log.jsonl")
    disk.changes = {1: lambda: overwrite(path, b'{"text": "whole"}\n{"text": "half"}\n')}
    torn = build(tmp_path / "root", path)
    assert torn.table("documents").column("text").to_pylist() == ["whole"]
    (reject,) = torn.table("rejects").to_pylist()
    assert (reject["record"], reject["reason"][:11]) == (1, "broken JSON")
    assert build(tmp_path / "root", path).table("documents").column("text").to_pylist() == ["whole", "half"]


def test_a_link_that_is_switched_is_a_change(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    for word in ("first", "other"):
        (tmp_path / f"{word}.jsonl").write_bytes(lines(word))
    link = folder / "a.jsonl"
    link.symlink_to(tmp_path / "first.jsonl")
    disk = Disk(monkeypatch, "a.jsonl")

    def switch():
        link.unlink()
        link.symlink_to(tmp_path / "other.jsonl")

    disk.changes = {2: switch}
    with pytest.raises(InputError, match=r"a\.jsonl was changed"):
        build(tmp_path / "root", link)
    assert build(tmp_path / "root", link).table("documents").column("text").to_pylist() == texts("other")


@pytest.mark.parametrize("becomes", ["a FIFO", "a folder", "a link to nothing", "nothing"])
def test_a_file_that_becomes_none_is_an_error_and_no_reject(becomes, tmp_path, monkeypatch):
    path = tmp_path / "in" / "a.txt"
    path.parent.mkdir()
    path.write_text("words")
    (path.parent / "b.txt").write_text("others")

    def change():
        path.unlink()
        if becomes == "a FIFO":
            os.mkfifo(path)
        elif becomes == "a folder":
            path.mkdir()
        elif becomes == "a link to nothing":
            path.symlink_to("nowhere")

    monkeypatch.setattr(sampling, "plan_mixture", hooked(sampling.plan_mixture, change))
    with pytest.raises(InputError, match=r"a\.txt was changed .*it cannot be opened any more"):
        build(tmp_path / "root", path)


def test_a_file_that_could_not_be_read_stays_rejected_when_it_can_be_read_again(tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("words")
    loop = folder / "b.txt"
    loop.symlink_to("b.txt")

    def mend():
        loop.unlink()
        loop.write_text("new")

    monkeypatch.setattr(sampling, "plan_mixture", hooked(sampling.plan_mixture, mend))
    built = build(tmp_path / "root", loop)
    assert built.table("documents").column("text").to_pylist() == ["words"]
    assert [row["path"] for row in built.table("rejects").to_pylist()] == ["b.txt"]
    assert build(tmp_path / "root", loop).table("documents").column("text").to_pylist() == ["words", "new"]


def hooked(whole, before):
    def run(*given):
        before()
        return whole(*given)

    return run
