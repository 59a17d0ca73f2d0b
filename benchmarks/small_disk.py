"""A file system of its own for a proof, small enough to be filled up."""

import os
import subprocess
from pathlib import Path


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
