"""What the proofs under faults share: their plan, the environment of processes, and a disk small enough to fill up."""

import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


class NoChance(Exception):
    """The moment for a fault did not come, it had no effect, or cannot be brought about here; it counts as no fault."""


def plan(kinds: Sequence[str], faults: int, seed: int) -> Iterator[str]:
    """Yield `faults` kinds in shuffled rounds, so that each comes as often as the others."""
    chance, kinds = random.Random(f"{seed}: kinds"), list(kinds)
    while faults > 0:
        chance.shuffle(kinds)
        yield from kinds[:faults]
        faults -= len(kinds)


def project_environment() -> dict[str, str]:
    """Return the environment of a process that imports this checkout."""
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def mounted(disk: Path, size: int) -> bool:
    """Mount a file system of `size` bytes at `disk`, if there is none; return whether there is one now."""
    if os.path.ismount(disk):
        return True
    image = disk.with_suffix(".img")
    if not image.exists():
        with image.open("wb") as sparse:
            sparse.truncate(size)
        if subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], capture_output=True, check=False).returncode != 0:
            return False
    mount = ["mount", "-o", "loop", str(image), str(disk)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0
