"""What could not be read, by file and source: the report's facts of it, gathered part by part."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tasks.sample.readers import EMPTY_FILE, NO_FILE

UNREADABLE = "unreadable_records"
"""Fact: source -> records that could not be read; empty files, and what is no file, hold none."""
REJECTED = "rejected_files"
"""Fact: source -> path, rejects and first reason of the files with the most rejects."""
SOURCES_READ = "sources_read"
"""Fact of an unfinished report: the sources that were read to their end."""
MOST_NAMED = 5
"""Files with rejects that the report names for each source, those with the most first."""


def is_record(reason: str) -> bool:
    """Whether a reject lost a record."""
    return reason != EMPTY_FILE and not reason.startswith(NO_FILE)


class RejectedFiles:
    """Rejects by file."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[tuple[str, str], str] = {}

    def add(self, rejects: Iterable[tuple[str, str, str]]) -> None:
        """Take in rejects as (source, path, reason), in their order."""
        for source, path, reason in rejects:
            self._counts[source, path] += is_record(reason)
            if reason != EMPTY_FILE:
                self._reasons.setdefault((source, path), reason)

    def named(self) -> dict[str, list[dict[str, Any]]]:
        """The files with the most rejects, by source."""
        named: dict[str, list[dict[str, Any]]] = {}
        for key in sorted(self._reasons, key=lambda key: (-self._counts[key], key)):
            files = named.setdefault(key[0], [])
            if len(files) < MOST_NAMED:
                files.append({"path": key[1], "records": max(1, self._counts[key]), "reason": self._reasons[key]})
        return named
