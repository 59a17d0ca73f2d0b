"""`benchmarks/gpu.py`, rehearsed on the processor: it needs no more packages than it says, and resumes exactly."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.processes import captured, run_file

PROJECT = Path(__file__).parents[1]

ALLOWED = """
numpy pyarrow safetensors blake3 pydantic pydantic_core annotated_types typing_inspection typing_extensions
numba llvmlite scipy yaml colorama cloudpickle
"""
"""Besides torch and what it brings; the second line is numba and what it imports where it is installed."""


def rehearse(program: Path, words: list[str]) -> None:
    """Run the benchmark in a fork, and each of its trainers as a fork of that: PyTorch is imported already."""
    # Threads of OpenMP do not survive a fork.
    torch.set_num_threads(1)
    sys.path.insert(0, str(program.parent / "trainers"))
    import setting

    def run(words: list[Any], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        _, trainer, *more = words
        return captured(functools.partial(run_file, trainer, more), env)

    setting.subprocess = SimpleNamespace(run=run)
    run_file(program, words)


def test_a_rehearsal_prints_speeds_and_resumes_exactly(tmp_path: Path) -> None:
    program = PROJECT / "benchmarks" / "gpu.py"
    figures = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--only", "gpt2-small", "--json", str(figures)]
    done = captured(functools.partial(rehearse, program, words), os.environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert found["resumes"] is True
    assert found["parity"] == {}
    assert "not compared" in done.stdout
    assert [one["trainer"] for one in found["speeds"]] == [
        "by hand, eager",
        "Bessemer's step, eager",
        "Bessemer's trainer, eager",
        "Bessemer's step, eager",
    ]
    assert all(one["tokens_s"] > 0 and one["mfu"] is None for one in found["speeds"])


def test_it_imports_no_package_that_it_does_not_name() -> None:
    code = (
        "import sys, importlib.metadata as metadata, runpy\n"
        "import torch\n"
        "before = set(sys.modules)\n"
        f"runpy.run_path({str(PROJECT / 'benchmarks' / 'gpu.py')!r}, run_name='not main')\n"
        "import ours, model.train.trainer\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(tops & set(metadata.packages_distributions())))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - set(ALLOWED.split()) == set()
