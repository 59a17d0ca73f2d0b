"""Accepted artifacts: `aliases/STAGE/IDENTITY.json` says that an artifact of another identity may stand for this one.

Written by `bessemer accept` when a person judges that what changed cannot change the result. Manifests are never
touched: the alias names who accepted what, when and why, and removing its file takes the word back.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from model.sealed import read_sealed, write_sealed

CURE = "Remove the file: the stage is built then, or accepted again."


@dataclass(frozen=True)
class Alias:
    """`identity` is answered by the artifact `accepted`, whose content was `content` at the time."""

    stage: str
    identity: str
    accepted: str
    content: str
    differences: tuple[str, ...]
    who: str
    when: str
    because: str

    def words(self) -> str:
        """Who accepted it when and why, and the first thing that differs."""
        return f"accepted by {self.who} on {self.when}: {self.because} ({self.differences[0]})"


def alias_path(root: Path, stage: str, identity: str) -> Path:
    """Where the alias of an identity stands, if there is one."""
    return root / "aliases" / stage / f"{identity}.json"


def write_alias(root: Path, alias: Alias) -> Path:
    """Write an alias; returns its file."""
    path = alias_path(root, alias.stage, alias.identity)
    write_sealed(path, asdict(alias))
    return path


def read_alias(root: Path, stage: str, identity: str) -> Alias | None:
    """The alias of an identity, None where nobody accepted one; IntegrityError where its file is damaged."""
    try:
        data = read_sealed(alias_path(root, stage, identity), CURE)
    except FileNotFoundError:
        return None
    return Alias(**{**data, "differences": tuple(data["differences"])})


def now() -> str:
    """The time as aliases write it: UTC to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
