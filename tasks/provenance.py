"""Which commit of the project made an artifact, and whether the working tree had been edited."""

import functools
import subprocess
from pathlib import Path
from typing import Any


@functools.cache
def git_state(project: Path) -> dict[str, Any]:
    """`{"commit": ..., "dirty": ...}` of the project's checkout; both None outside of one."""
    commit = _git(project, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    status = _git(project, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "dirty": bool(status and status.strip())}


def _git(project: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
