"""Commands whose reader closes the pipe (`| head`) end quietly."""

import os
import subprocess
import sys
from pathlib import Path

from flows.commands.common import CLOSED_PIPE


def test_a_closed_pipe_is_no_fault_of_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "estimate", "--json", "--tokens", "300B", "--parameters", "100B"]
    whole = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert whole.returncode == 0, whole.stderr
    read, write = os.pipe()
    os.close(read)
    cut = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (cut.returncode, cut.stderr) == (CLOSED_PIPE, b"")
