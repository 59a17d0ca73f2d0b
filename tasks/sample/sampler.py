"""Sample documents: groups of files, read side by side, become parts of a configured size.

Groups and parts depend on the input and the configuration alone. An id that comes from the records may occur in several
groups; these are known when all were read, and groups after the first are then read again without its documents.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from tasks.artifacts.report import StageReport
from tasks.artifacts.results import SampleResult
from tasks.artifacts.tables.map_parts import OrderedMerge
from tasks.artifacts.tables.rows import DOC_ID_BYTES
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor, Work
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import SourceFiles
from tasks.sample.group_reader import DECODED, PARTS, SKIPPED_RECORDS, part_column, part_name, read_group
from tasks.sample.groups import Group, group_files
from tasks.sample.mixture import mixture_remarks, plan_mixture
from tasks.sample.rejects import REJECTED, SOURCES_READ, UNREADABLE, RejectedFiles
from tasks.sample.seen_ids import SeenIds, id_array


def sample_documents(
    listings: list[SourceFiles],
    config: SampleConfig,
    workspace: Workspace,
    executor: Executor,
    kept_sizes: Mapping[str, int] | None = None,
) -> StageReport:
    """Read every file of `listings` and write DOCUMENTS, REJECTS and an empty LEDGER part by part.

    `kept_sizes` are the bytes of text of sources that an earlier run measured.
    """
    plans = plan_mixture(config, listings, kept_sizes)
    groups = group_files(listings, plans, config.part_bytes)
    rates = {name: plan["rate"] for name, plan in plans.items()}
    read = functools.partial(_read_groups, groups, config, rates, workspace, executor)
    progress = _Progress(listings, groups, workspace)
    reports: dict[int, StageReport] = {}
    for index, found in read(range(len(groups)), {}):
        reports[index] = found
        progress.add(index, found)
    if taken := _taken_ids(groups, reports, workspace):
        for index in taken:
            for number in reversed(range(reports[index].facts[PARTS])):
                workspace.discard(part_name(index, number))
        reports |= dict(read(sorted(taken), taken))
        progress = _Progress(listings, groups, workspace)
        for index in range(len(groups)):
            progress.add(index, reports[index])
    report = progress.report
    for listing in listings:
        report.source(listing.source.name)
    report.facts = SampleResult(
        mixture_plan=plans,
        mixture_remarks=mixture_remarks(config, plans),
        records_passed_over=report.facts.get(SKIPPED_RECORDS, {}),
        unreadable_records=report.facts.get(UNREADABLE, {}),
        decoded_records=report.facts.get(DECODED, {}),
        rejected_files=progress.rejected.named(),
        files={
            listing.source.name: {"read": len(listing.files), **dict(sorted(listing.skipped.items()))}
            for listing in listings
        },
    ).facts()
    return report


def _read_groups(
    groups: Sequence[Group],
    config: SampleConfig,
    rates: Mapping[str, float],
    workspace: Workspace,
    executor: Executor,
    indices: Sequence[int],
    taken: Mapping[int, frozenset[bytes]],
) -> Iterator[tuple[int, StageReport]]:
    """Yield (group, report) for the groups `indices` as they are finished; `taken` are ids that earlier groups hold."""
    total = sum(groups[index].bytes for index in indices)
    advance = _Advance(workspace, total)
    work = Work(
        functools.partial(read_group, workspace.for_worker(), config, rates, advance),
        name=lambda index: _describe(groups[index]),
        arguments=lambda index: (groups[index], taken.get(index, frozenset())),
    )
    units: list[str] = []
    with closing(executor.map(work, indices)) as results:
        for index, report in results:
            advance.finished += groups[index].bytes
            workspace.advance(advance.finished, total, "bytes")
            units += [part_name(index, number) for number in range(report.facts[PARTS])]
            yield index, report
    workspace.await_units(units, executor)


class _Advance:
    """Reports bytes read of the group that this process reads; in another process it reports nothing."""

    def __init__(self, workspace: Workspace | None, total: int) -> None:
        self.finished = 0
        self._workspace, self._total = workspace, total

    def __call__(self, read: int) -> None:
        if self._workspace is not None:
            self._workspace.advance(self.finished + read, self._total, "bytes")

    def __reduce__(self) -> tuple[Any, ...]:
        return _Advance, (None, self._total)


def _describe(group: Group) -> str:
    (_, first), count = group.files[0], len(group.files)
    return f"{first.source}: {first.relative}" + (f" and {count - 1} files after it" if count > 1 else "")


class _Progress(OrderedMerge):
    """The state after the groups so far, in their order: their report, their rejects, and the sources that were read to
    their end. `add` raises GuardError if one of these exceeds a limit."""

    def __init__(self, listings: list[SourceFiles], groups: Sequence[Group], workspace: Workspace) -> None:
        super().__init__(workspace, self._merged)
        self.rejected = RejectedFiles()
        source_ends = itertools.accumulate(len(listing.files) for listing in listings)
        self._source_ends = {listing.source.name: end for listing, end in zip(listings, source_ends, strict=True)}
        self._group_ends = list(itertools.accumulate(len(group.files) for group in groups))

    def _merged(self, index: int, group: StageReport) -> None:
        if group.total().rejected:
            for number in range(group.facts[PARTS]):
                columns = (
                    part_column(self._workspace, "rejects", index, number, name)
                    for name in ("source", "path", "reason")
                )
                self.rejected.add(zip(*columns, strict=True))
        read = [name for name, end in self._source_ends.items() if end <= self._group_ends[index]]
        self.report.facts |= {SOURCES_READ: read, REJECTED: self.rejected.named()}


def _taken_ids(
    groups: Sequence[Group], reports: Mapping[int, StageReport], workspace: Workspace
) -> dict[int, frozenset[bytes]]:
    """Return for each group the ids of its documents that an earlier group holds, if there are any."""
    taken: dict[int, frozenset[bytes]] = {}
    seen = SeenIds()
    with_ids = [index for index, group in enumerate(groups) if group.has_ids]
    for index in with_ids if len(with_ids) > 1 else ():
        doc_ids: list[bytes] = []
        for number in range(reports[index].facts[PARTS]):
            doc_ids += part_column(workspace, "documents", index, number, "doc_id")
        if known := seen.extend(id_array(doc_ids)).tolist():
            # numpy leaves out zero bytes at the end.
            taken[index] = frozenset(doc_id.ljust(DOC_ID_BYTES, b"\0") for doc_id in known)
    return taken
