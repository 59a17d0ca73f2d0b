"""Unreadable records by file and source, collected part by part for the report."""

from collections import Counter
from collections.abc import Iterable

from tasks.artifacts.results import RejectedFile

EMPTY_FILE = "empty file"
NO_FILE = "not a file but "
"""Reasons of rejects that lost no record; the second begins one."""
UNREADABLE = "unreadable_records"
"""Fact: source -> number of unreadable records; empty files, FIFOs and the like have none."""
REJECTED = "rejected_files"
"""Fact: source -> path, number of rejects and first reason of the files with the most rejects."""
SOURCES_READ = "sources_read"
"""Fact of an unfinished report: the sources that were read to their end."""
MOST_NAMED = 5
"""Files that the report names for each source, those with the most rejects first."""


def is_record(reason: str) -> bool:
    """Return whether a reject lost a record."""
    return reason != EMPTY_FILE and not reason.startswith(NO_FILE)


class RejectedFiles:
    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[tuple[str, str], str] = {}

    def add(self, rejects: Iterable[tuple[str, str, str]]) -> None:
        """Add rejects as (source, path, reason), in order."""
        for source, path, reason in rejects:
            self._counts[source, path] += is_record(reason)
            if reason != EMPTY_FILE:
                self._reasons.setdefault((source, path), reason)

    def named(self) -> dict[str, list[RejectedFile]]:
        """Return the files with the most rejects, by source."""
        named: dict[str, list[RejectedFile]] = {}
        for key in sorted(self._reasons, key=lambda key: (-self._counts[key], key)):
            files = named.setdefault(key[0], [])
            if len(files) < MOST_NAMED:
                files.append({"path": key[1], "records": max(1, self._counts[key]), "reason": self._reasons[key]})
        return named
