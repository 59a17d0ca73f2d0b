"""The memory of the four data stages does not grow with their input: 0.5, 1 and 2 GB under the same ceiling."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.prove_data

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "data_memory.py"
STAGES = ("sample", "clean", "dedup", "decontaminate")
CEILING_MB = 2000
GROWTH, GROWTH_MB = 1.15, 64

Measured = Callable[..., None]


@pytest.fixture(scope="module")
def peaks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A row per stage, number of workers and size. BESSEMER_SCRATCH names a folder on a disk for 8 GB."""
    scratch = Path(os.environ.get("BESSEMER_SCRATCH", tmp_path_factory.mktemp("memory")))
    rows = scratch / "peaks.json"
    words = ["--data", str(data), "--scratch", str(scratch), "--json", str(rows)]
    done = subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=False)
    assert rows.exists(), done.stderr
    return json.loads(rows.read_text())


@pytest.mark.parametrize("stage", STAGES)
def test_peak_memory_does_not_grow_with_the_input(stage: str, peaks: list[dict[str, Any]], measured: Measured) -> None:
    for workers in (1, 2):
        of_stage = [peak for peak in peaks if (peak["stage"], peak["workers"]) == (stage, workers)]
        least, *_, most = sorted(of_stage, key=lambda peak: peak["size"])
        assert most["size"] > 3.5 * least["size"]
        for peak in of_stage:
            what = f"peak MB at {peak['size']:.1f} GB, {workers} workers"
            note = f"{peak['documents']:,} documents, {peak['own']:.0f} MB without mapped files"
            measured(stage, what, round(peak["memory"]), at_most=CEILING_MB, note=note)
        what = f"peak MB at the most input, {workers} workers"
        note = f"{least['memory']:.0f} MB at {least['size']:.1f} GB"
        measured(stage, what, round(most["memory"]), at_most=round(GROWTH * least["memory"] + GROWTH_MB), note=note)
