"""Groups of files that are read side by side: consecutive files that together give about one part of text.

Groups depend on the files and the configuration alone, so that parts are the same for any number of workers. A file is
in one group, however large it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.artifacts.results import PlannedSource
from tasks.sample.config import Source
from tasks.sample.discovery import InputFile, SourceFiles

FILLED_SHARE = 7 / 8
"""Share of a part that a group is expected to fill: the text of packed files is estimated, and where a group has a
little more than a part, it makes a second, small one."""

MOST_READ = 16
"""Bytes, in parts, that a group of several files reads at most where little of them is selected."""


@dataclass(frozen=True)
class Group:
    """Consecutive files, each with its source."""

    files: tuple[tuple[Source, InputFile], ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files as stored."""
        return sum(max(0, file.size) for _, file in self.files)

    @property
    def has_ids(self) -> bool:
        """Whether ids of documents may repeat: those that come from the records."""
        return any(
            source.id_field is not None or source.thread is not None or file.format == "mediawiki"
            for source, file in self.files
        )


def group_files(listings: Sequence[SourceFiles], plans: Mapping[str, PlannedSource], part_bytes: int) -> list[Group]:
    """Return all files in groups, in reading order."""
    groups: list[Group] = []
    open_files: list[tuple[Source, InputFile]] = []
    selected = read = 0.0
    for listing in listings:
        plan = plans[listing.source.name]
        text_per_byte = plan["bytes"] / max(1, listing.bytes)
        for file in listing.files:
            stored = max(0, file.size)
            text = stored * text_per_byte
            reads = max(stored, text)
            is_full = (
                selected + text * plan["rate"] > FILLED_SHARE * part_bytes or read + reads > MOST_READ * part_bytes
            )
            if open_files and is_full:
                groups.append(Group(tuple(open_files)))
                open_files, selected, read = [], 0.0, 0.0
            open_files.append((listing.source, file))
            selected += text * plan["rate"]
            read += reads
    return [*groups, Group(tuple(open_files))] if open_files else groups
