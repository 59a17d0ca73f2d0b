"""Processes of a training, found in /proc: its ranks are the forks of its supervisor's only child, with names."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class RankProcess(NamedTuple):
    """A process that trains or diagnoses."""

    rank: int
    pid: int
    local: int
    trains: bool


def rank_processes(supervisor: int) -> list[RankProcess]:
    """Return the ranks of a supervisor, in their order; one that starts has no name for a moment, and is left out."""
    found = []
    for template in _children(supervisor):
        for pid in _children(template):
            with suppress(OSError, ValueError):
                kind, rank, _, local = Path(f"/proc/{pid}/comm").read_text().split()
                found.append(RankProcess(int(rank), pid, int(local), kind == "rank"))
    return sorted(found)


def is_alive(pid: int) -> bool:
    """Return whether a process runs, or is paused: one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []
