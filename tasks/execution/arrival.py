"""Files that other machines wrote into a folder that all share: waited for until this machine sees them."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from model.errors import Infra

SEEN_SECONDS = 120.0
"""NFS tells of new entries of a folder after 60 s at the latest, by default."""
POLL_SECONDS = 0.5


def await_files(folder: Path, names: Iterable[str], seconds: float = SEEN_SECONDS) -> None:
    """Returns once `folder` lists all of `names`; what it does not list would be missing from what is made of them.

    Raises Infra where some are not to be seen for `seconds`.
    """
    wanted = set(names)
    deadline = time.monotonic() + seconds
    while missing := wanted.difference(os.listdir(folder)):
        if time.monotonic() > deadline:
            raise Infra(
                f"{folder}: {len(missing)} files that other machines wrote ({min(missing)} among them) are not to be"
                f" seen here {seconds:.0f} s later. Is the artifact root one file system for all machines? Finished"
                f" parts are kept: mend it and run again."
            )
        time.sleep(POLL_SECONDS)
