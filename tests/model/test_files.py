"""Digests of files, and hard links to them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import blake3
import pytest

from model.digests import digest_file
from model.files import link_or_copy

MEMORY = Path("/dev/shm")
SIZE = 128 * 1024**2
PEAK = """
import re, sys
from pathlib import Path
from model.digests import digest_file
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
digest = digest_file(Path(sys.argv[1]))
print(digest, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_the_digest_of_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    with path.open("wb") as stream:
        stream.truncate(SIZE)
    reported = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], check=True, capture_output=True, text=True
    ).stdout
    digest, more = reported.split()
    assert digest == blake3.blake3(bytes(SIZE)).hexdigest(length=16) == digest_file(path)
    assert int(more) < SIZE / 4


def test_a_second_name_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"weights")
    link_or_copy(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other").samefile(tmp_path / "one")


def test_a_second_name_on_another_disk_is_a_copy(tmp_path: Path) -> None:
    if not MEMORY.is_dir() or os.stat(MEMORY).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no second file system here to refuse a link")
    (tmp_path / "one").write_bytes(b"weights")
    with tempfile.TemporaryDirectory(dir=MEMORY) as elsewhere:
        other = Path(elsewhere) / "other"
        link_or_copy(tmp_path / "one", other)
        assert other.read_bytes() == b"weights"
        assert other.stat().st_nlink == 1


def test_a_second_name_replaces_nothing_and_needs_a_first(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"weights")
    (tmp_path / "other").write_bytes(b"others")
    with pytest.raises(FileExistsError):
        link_or_copy(tmp_path / "one", tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "none", tmp_path / "third")
    assert (tmp_path / "other").read_bytes() == b"others"
    assert not (tmp_path / "third").exists()
