"""What it takes to make a model again, beside its data: kept with it, as OPT-175B's logbook was with its runs.

A run's checkpoints are read by the code and the libraries that wrote them; a model that outlives both needs to say what
they were.
"""

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from model.code_digest import code_digest
from model.config.environment import FIXED
from model.config.machine import machine_parts
from model.config.train import TrainerRun
from model.files import write_atomically
from model.guard.decisions import Decision

REPRODUCTION, LOCK = "reproduction.json", "packages.lock"

DRIVER = Path("/proc/driver/nvidia/version")

DECIDING = ("CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NCCL_", *FIXED)
"""Beginnings of environment variables that pass, that libraries read and that may change a bit. Of others only those
are kept that `train.environment` gives: they hold credentials."""


def write_reproduction(folder: Path, run: TrainerRun, decisions: Sequence[Decision], run_file: Path) -> None:
    """Write `packages.lock`, a line `name==version` for each installed distribution, and `reproduction.json`.

    `run` is the run as it began, `run_file` where it stood.
    """
    write_atomically(folder / LOCK, "".join(f"{line}\n" for line in installed()).encode())
    told: dict[str, Any] = {
        "launch": [Path(sys.executable).name, "-m", "model.train", run_file.name],
        "run": run.model_dump(mode="json"),
        "interventions": [decision.model_dump(mode="json") for decision in decisions],
        "code_digest": code_digest(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine_parts(run.train),
        "driver": driver(),
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith(DECIDING) or name in run.train.given
        },
    }
    write_atomically(folder / REPRODUCTION, (json.dumps(told, indent=1, sort_keys=True) + "\n").encode())


def installed() -> list[str]:
    """`name==version` of all installed distributions, in alphabetical order; of two versions that stand on the path
    the first, which is what Python imports."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        found.setdefault(one.metadata["Name"].lower().replace("_", "-"), one.version)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def driver() -> str | None:
    """What the kernel's graphics driver says of itself in its first line; None where there is none."""
    return DRIVER.read_text().splitlines()[0].strip() if DRIVER.is_file() else None
