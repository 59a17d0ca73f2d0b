"""The way of documents from their sources to training as a Sankey diagram."""

from typing import Any

from flows.page.plot_text import plot_text
from tasks.report import SourceCounts, StageReport

PASSED = {"sample": "sampled", "clean": "cleaned", "dedup": "unique", "decontaminate": "unleaked", "chunk": "packed"}
"""Stage -> how what it let through is called."""
LOST = {
    "sample": "dropped",
    "clean": "filtered",
    "dedup": "copies",
    "decontaminate": "leaks",
    "chunk": "too short to pack",
}
"""Stage -> how what it dropped is called."""
UNREADABLE, HELD_OUT = "unreadable", "held out"
OF_SOURCE = "source "
"""Begins the node of a source, which may be called as a fate is."""


def funnel_figure(reports: dict[str, StageReport], colours: dict[str, int]) -> dict[str, Any] | None:
    """Documents of each source through the stages, each fate a node; None where nothing was sampled.

    What the mixture had no need of is left out: it would hide the rest.

    `narrow` in the figure is the same for a phone: from source to fate, without the stages between. `colours` are the
    sources' numbers on the page.
    """
    stages = [stage for stage in PASSED if stage in reports]
    if not stages or not reports[stages[0]].total().documents_out:
        return None
    wide, narrow = _Flows(), _Flows()
    kept = PASSED[stages[-1]]
    # A stage that let everything through is no node of its own.
    told = [stage for stage in stages if any(_fates(stage, reports[stage].total()).values())] or stages[-1:]
    for source in colours:
        at = begin = f"{OF_SOURCE}{source}"
        for stage in told:
            counts = reports[stage].sources.get(source, SourceCounts())
            end = kept if stage == told[-1] else PASSED[stage]
            for fate, lost in _fates(stage, counts).items():
                wide.add(at, fate, lost, source)
                narrow.add(begin, fate, lost, source)
            wide.add(at, end, counts.documents_out, source)
            at = end
        narrow.add(begin, kept, reports[told[-1]].sources.get(source, SourceCounts()).documents_out, source)
    return {
        **_sankey(wide, colours, kept, height=300 + 24 * len(colours)),
        "narrow": _sankey(narrow, colours, kept, height=240 + 24 * len(colours)),
    }


def _fates(stage: str, counts: SourceCounts) -> dict[str, int]:
    return {
        LOST[stage]: counts.dropped.total(),
        UNREADABLE: counts.rejected,
        HELD_OUT: counts.held_out,
    }


class _Flows:
    """Documents that went from one node to another, by source."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.links: dict[tuple[str, str, str], int] = {}
        self.amounts: dict[str, int] = {}

    def add(self, begin: str, end: str, documents: int, source: str) -> None:
        if documents:
            for name in (begin, end):
                self.nodes.setdefault(name, len(self.nodes))
            self.links[begin, end, source] = self.links.get((begin, end, source), 0) + documents
            self.amounts[end] = self.amounts.get(end, 0) + documents
            if begin.startswith(OF_SOURCE):
                self.amounts[begin] = self.amounts.get(begin, 0) + documents


def _sankey(flows: _Flows, colours: dict[str, int], kept: str, height: int) -> dict[str, Any]:
    links = list(flows.links.items())
    trace = {
        "type": "sankey",
        "arrangement": "snap",
        "node": {
            "label": [f"{plot_text(name.removeprefix(OF_SOURCE))} {flows.amounts[name]:,}" for name in flows.nodes],
            "align": "left",
            "pad": 14,
            "thickness": 12,
            "hovertemplate": "%{label} documents<extra></extra>",
        },
        "link": {
            "source": [flows.nodes[begin] for (begin, _, _), _ in links],
            "target": [flows.nodes[end] for (_, end, _), _ in links],
            "value": [documents for _, documents in links],
            "customdata": [f"{plot_text(source)}: {plot_text(end)}" for (_, end, source), _ in links],
            "hovertemplate": "%{customdata}, %{value:,} documents<extra></extra>",
        },
        "meta": {
            "node_roles": [
                f"s{colours[name.removeprefix(OF_SOURCE)]}"
                if name.startswith(OF_SOURCE)
                else "good"
                if name in (kept, HELD_OUT)
                else "muted0"
                for name in flows.nodes
            ],
            "link_roles": [f"s{colours[source]}" for (_, _, source), _ in links],
        },
    }
    return {"data": [trace], "layout": {"height": height, "margin": {"l": 4, "r": 4, "t": 10, "b": 16}}}
