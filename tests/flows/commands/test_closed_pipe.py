"""Commands whose reader closes the pipe (`| head`) end quietly."""

import os
import subprocess
from pathlib import Path

import pytest

from flows.commands.common import CLOSED_PIPE
from tests.command import words


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "table"])
def test_a_closed_pipe_is_no_fault_of_the_program(tmp_path: Path, form: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = words("runs", "list", *form, "--root", tmp_path)
    cut = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (cut.returncode, cut.stderr) == (CLOSED_PIPE, b"")
