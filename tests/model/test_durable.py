"""Digests of files."""

import subprocess
import sys
from pathlib import Path

import blake3
import pytest

from model.durable import digest_file

SIZE = 128 * 1024**2
PEAK = """
import re, sys
from pathlib import Path
from model.durable import digest_file
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
    told = subprocess.run([sys.executable, "-c", PEAK, str(path)], check=True, capture_output=True, text=True).stdout
    digest, more = told.split()
    assert digest == blake3.blake3(bytes(SIZE)).hexdigest(length=16) == digest_file(path)
    assert int(more) < SIZE / 4
