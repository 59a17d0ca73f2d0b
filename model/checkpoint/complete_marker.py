"""Mark folders as complete and find damage in them: COMPLETE is written last and holds the digest of every other file.

Checkpoints, the trained model, and decisions of the guard are such folders. Loads no PyTorch, so that the supervisor
and `bessemer store verify` can use it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from model.checkpoint.run_folder import COMPLETE
from model.checksummed_json import BrokenSeal, seal, unseal
from model.digests import digest_file, read_bytes
from model.files import sync_directory, write_synced


def complete(folder: Path) -> None:
    """Write COMPLETE for the files of a folder, all of which must be durable; their entries then are, too."""
    digests = {path.name: digest_file(path) for path in folder.iterdir() if path.name != COMPLETE}
    write_synced(folder / COMPLETE, [marker(digests)])
    sync_directory(folder)


def marker(digests: Mapping[str, str]) -> bytes:
    """Return the contents of COMPLETE, given the digest of each file by its name."""
    return seal({"files": digests}, sort_keys=True, indent=None)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a folder, or None where every byte agrees with its digest."""
    if not (folder / COMPLETE).is_file():
        return f"{COMPLETE} is missing"
    try:
        digests = json.loads(unseal(read_bytes(folder / COMPLETE)))["files"]
    except BrokenSeal:
        return f"{COMPLETE} does not agree with its digest"
    present = {file.name for file in folder.iterdir()} - {COMPLETE}
    for name in sorted(digests.keys() | present):
        file = folder / name
        if name not in present:
            return f"{name} is missing"
        if name not in digests:
            return f"{name} is not one of its files"
        if not file.is_file() or digest_file(file) != digests[name]:
            return f"{name} does not agree with its digest"
    return None
