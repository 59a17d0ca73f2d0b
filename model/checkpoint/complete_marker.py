"""Folders that are all there or not there: COMPLETE is written last, and holds the digest of every other file.

Checkpoints, the trained model that the trainer leaves, and decisions with their journals are such folders. Loads no
PyTorch, so that the supervisor and `bessemer store verify` can ask too.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from model.checkpoint.run_folder import COMPLETE
from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import digest_file, read_bytes
from model.files import write_synced


def marker(digests: Mapping[str, str]) -> bytes:
    """The contents of COMPLETE, given the digest of each file by its name."""
    return seal({"files": digests}, sort_keys=True, indent=None)


def complete(folder: Path) -> None:
    """Write COMPLETE for the files that stand in a folder, all of them durable."""
    digests = {path.name: digest_file(path) for path in folder.iterdir() if path.name != COMPLETE}
    write_synced(folder / COMPLETE, [marker(digests)])


def why_damaged(folder: Path) -> str | None:
    """Why a folder cannot be believed; None where every byte agrees with its digest."""
    if not (folder / COMPLETE).is_file():
        return f"{COMPLETE} is missing"
    try:
        digests = json.loads(unseal(read_bytes(folder / COMPLETE)))["files"]
    except BrokenSeal:
        return f"{COMPLETE} does not agree with its digest"
    there = {file.name for file in folder.iterdir()} - {COMPLETE}
    for name in sorted(digests.keys() | there):
        file = folder / name
        if name not in there:
            return f"{name} is missing"
        if name not in digests:
            return f"{name} is not one of its files"
        if not file.is_file() or digest_file(file) != digests[name]:
            return f"{name} does not agree with its digest"
    return None
