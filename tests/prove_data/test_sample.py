"""Sample on files larger than its memory, killed at random moments, and at its speed."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zstandard

pytestmark = pytest.mark.prove_data

CEILING_MIB = 2048
GROWTH_MIB = 64
KILLS = 10
SETS = ("en_books", "en_techdocs_md", "ru_novels", "zh_techdocs", "en_wiki", "readme_changelog_md", "it_techdocs")

BUILD = """
import re, sys, time
from pathlib import Path
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.sampler import sample_documents
from tasks.artifacts.workspace import Workspace
from tasks.execution.executor import ThisProcess
path, folder, id_field, part_bytes = sys.argv[1:5]
# One letter two billion times is compressed as no text is.
ratio = 1e9
source = Source(name="s", paths=(path,), weight=1, id_field=id_field or None, max_unpacked_ratio=ratio)
config = SampleConfig(sources=(source,), budget_tokens=10**12, part_bytes=int(part_bytes), max_reject_share=1.0)
Path(folder).mkdir(parents=True, exist_ok=True)
workspace = Workspace(Path(folder))
workspace.clear_temporary()
listings = find_files(config)
began, used = time.perf_counter(), time.process_time()
report = sample_documents(listings, config, workspace, ThisProcess())
report.check_conservation("sample")
total = report.total()
# Not getrusage, whose peak counts the memory of the process that started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
print(total.documents_in, total.documents_out, total.rejected, time.process_time() - used, peak)
"""


def build(
    path: Path, folder: Path, id_field: str = "", part_bytes: int = 64 * 1024**2
) -> tuple[int, int, int, float, int]:
    """(read, kept, rejected, processor seconds, peak MiB) of a build in a process of its own."""
    command = [sys.executable, "-c", BUILD, str(path), str(folder), id_field, str(part_bytes)]
    reported = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(reported[0]), int(reported[1]), int(reported[2]), float(reported[3]), int(reported[4])


def digests(folder: Path) -> dict[str, str]:
    records = (json.loads(path.read_text()) for path in (folder / "units").glob("*.json"))
    return {file["name"]: file["digest"] for record in records for file in record["files"]}


@pytest.fixture(scope="session")
def lines(data: Path) -> list[bytes]:
    """Real documents of several languages, one JSON line each, in a fixed random order."""
    packed = [(data / name / "part-000.jsonl.gz").read_bytes() for name in SETS]
    found = [line for raw in packed for line in gzip.decompress(raw).splitlines(keepends=True)]
    random.Random(0).shuffle(found)
    return found


def write_repeated(path: Path, lines: list[bytes], size: int) -> int:
    """zstd jsonl of about `size` bytes: the lines again and again, each time with another id; returns its bytes."""
    written = turn = 0
    with path.open("wb") as sink, zstandard.ZstdCompressor(level=1).stream_writer(sink) as writer:
        while written < size:
            for line in lines:
                edited = line.replace(b'{"id": "', b'{"id": "%d-' % turn, 1)
                written += len(edited)
                writer.write(edited)
                if written >= size:
                    break
            turn += 1
    return written


def test_speed_from_zstd_jsonl_to_arrow(lines, tmp_path, measured):
    size = write_repeated(tmp_path / "a.jsonl.zst", lines, 150 * 10**6)
    seconds = min(build(tmp_path / "a.jsonl.zst", tmp_path / f"work{turn}")[3] for turn in range(3))
    busy = os.getloadavg()[0]
    note = f"{size / 1e6:.0f} MB of {len(SETS)} corpora, zstd -1, best of 3, load {busy:.1f}"
    measured("sample", "MB/s of one core, zstd jsonl to Arrow", size / 1e6 / seconds, at_least=80, note=note)


def test_memory_does_not_grow_with_the_input(lines, tmp_path, measured):
    peaks = []
    for gigabytes in (0.5, 1, 2):
        path = tmp_path / "a.jsonl.zst"
        size = write_repeated(path, lines, int(gigabytes * 10**9))
        read, kept, rejected, _, peak = build(path, tmp_path / f"work{gigabytes}", "id")
        assert (kept, rejected) == (read, 0)
        peaks.append(peak)
        note = f"{size / 1e9:.1f} GB, {read:,} documents with ids"
        measured("sample", f"peak MiB at {gigabytes} GB", peak, at_most=CEILING_MIB, note=note)
        subprocess.run(["rm", "-r", str(tmp_path / f"work{gigabytes}")], check=True)
    note = "16 bytes an id are all that grows"
    measured("sample", "MiB more at 2 GB than at 0.5 GB", peaks[2] - peaks[0], at_most=GROWTH_MIB, note=note)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "warc", "txt"])
def test_a_line_of_two_gigabytes_is_one_reject(tmp_path, measured, suffix):
    path = tmp_path / f"a.{suffix}.zst"
    first, last, expected = {
        "jsonl": (b'{"text": "before"}\n{"text": "', b'"}\n{"text": "after"}\n', (3, 2)),
        "csv": (b"text\nbefore\n", b"\nafter\n", (3, 2)),
        "warc": (
            b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % 2**31,
            b"\r\n\r\nWARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nafter",
            (2, 1),
        ),
        "txt": (b"", b"", (1, 0)),
    }[suffix]
    with path.open("wb") as sink, zstandard.ZstdCompressor(level=1).stream_writer(sink) as writer:
        writer.write(first)
        for _ in range(2048):
            writer.write(b"x" * 2**20)
        writer.write(last)
    if suffix == "txt":
        (tmp_path / "b.txt").write_text("after")
        path, expected = tmp_path, (2, 1)
    read, kept, rejected, _, peak = build(path, tmp_path.parent / f"work-{suffix}")
    assert (read, kept, rejected) == (*expected, 1)
    measured(
        "sample", f"peak MiB, {suffix} with 2 GB in one line", peak, at_most=400, note="rejected; the rest is read"
    )


def test_kill_9_at_random_moments_changes_no_byte(lines, tmp_path, measured):
    path = tmp_path / "a.jsonl.zst"
    write_repeated(path, lines, 100 * 10**6)
    with path.open("ab") as sink:
        sink.write(zstandard.compress(b'broken\n{"text": "again", "id": "twice"}\n{"text": "again", "id": "twice"}\n'))
    whole = build(path, tmp_path / "whole", "id", 2 * 1024**2)
    parts = len(list((tmp_path / "whole" / "units").glob("*.json")))
    moments = random.Random(1)
    command = [sys.executable, "-c", BUILD, str(path), str(tmp_path / "killed"), "id", str(2 * 1024**2)]
    kept_parts = []
    for kill in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while len(list((tmp_path / "killed" / "units").glob("*.json"))) < kill * parts // KILLS:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
        kept_parts.append(len(list((tmp_path / "killed" / "units").glob("*.json"))))
    assert build(path, tmp_path / "killed", "id", 2 * 1024**2)[:3] == whole[:3]
    same = digests(tmp_path / "killed") == digests(tmp_path / "whole")
    note = f"parts that existed after each kill: {kept_parts}"
    measured("sample", f"same bytes after {KILLS} x kill -9 (1 yes)", float(same), at_least=1, note=note)
