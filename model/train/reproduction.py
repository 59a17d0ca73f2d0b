"""Record what is needed to train the same model again: launch command, run, code, packages and machine.

A run's checkpoints are read by the code and the libraries that wrote them, and a model outlives both. The record is
published with the model, as OPT-175B's logbook was with its runs (Zhang et al. 2022).
"""

import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from model.checkpoint.run_folder import RUN_FILE
from model.code_digest import code_digest
from model.config.machine import machine_parts
from model.config.train import TrainerRun
from model.environment import FIXED
from model.files import write_atomically
from model.guard.decisions import Decision

REPRODUCTION, LOCK = "reproduction.json", "packages.lock"

DRIVER = Path("/proc/driver/nvidia/version")

RECORDED_PREFIXES = ("CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NCCL_", *FIXED)
"""Prefixes of environment variables that libraries read and that may change a bit. Of all others only those that
`train.environment` sets are recorded: the rest may hold credentials."""


def write_reproduction(folder: Path, run: TrainerRun, decisions: Sequence[Decision]) -> None:
    """Write `packages.lock`, a line `name==version` for each installed distribution, and `reproduction.json`.

    `run` is the run as it began.
    """
    write_atomically(folder / LOCK, "".join(f"{line}\n" for line in installed_packages()).encode())
    record: dict[str, Any] = {
        "launch": [Path(sys.executable).name, "-m", "model.train", RUN_FILE],
        "run": run.model_dump(mode="json"),
        "interventions": [decision.model_dump(mode="json") for decision in decisions],
        "code_digest": code_digest(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine_parts(run.train),
        "driver": driver_version(),
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(RECORDED_PREFIXES) or name in run.train.given
        },
    }
    write_atomically(folder / REPRODUCTION, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())


def installed_packages() -> list[str]:
    """Return `name==version` of all installed distributions, sorted; of two versions on the path, the first, which
    Python imports."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # Parsing all of its fields, as `one.metadata` does, takes seven times as long.
        header, _, _ = (one.read_text("METADATA") or one.read_text("PKG-INFO") or "").partition("\n\n")
        name, version = (re.search(rf"^{field}:\s*(\S+)", header, re.MULTILINE) for field in ("Name", "Version"))
        if name is None or version is None:
            continue  # Left by an installation that broke off.
        found.setdefault(name[1].lower().replace("_", "-"), version[1])
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def driver_version() -> str | None:
    """Return the first line of the NVIDIA kernel driver's version file; None without a driver."""
    return DRIVER.read_text().splitlines()[0].strip() if DRIVER.is_file() else None
