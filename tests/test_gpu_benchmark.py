"""`benchmarks/gpu.py`, rehearsed on the processor: it needs no more packages than it says, and resumes exactly."""

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]

ALLOWED = """
numpy pyarrow safetensors blake3 pydantic pydantic_core annotated_types typing_inspection typing_extensions
numba llvmlite scipy yaml colorama cloudpickle
"""
"""Besides torch and what it brings; the second line is numba and what it imports where it is installed."""


def test_a_rehearsal_prints_speeds_and_resumes_exactly(tmp_path: Path) -> None:
    program = PROJECT / "benchmarks" / "gpu.py"
    figures = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, program, "--device", "cpu", "--only", "gpt2-small", "--json", figures],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
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
