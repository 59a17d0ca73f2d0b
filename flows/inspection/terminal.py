"""Print folder scans and previews in a terminal: colours in a terminal, marks in a pipe, and long texts shortened."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from flows.inspection.scan import FolderScan
from flows.metrics.escaping import escaped, escaped_line
from flows.metrics.formatting import format_bytes, format_count
from flows.metrics.text_diff import (
    ADDED,
    EVEN_PIECE,
    ODD_PIECE,
    REMOVED,
    SAME,
    SHARED,
    UNKNOWN_PIECE,
    Segments,
    TokenizedText,
)
from flows.reports.document import PAGE_WIDTH, Table
from tasks.common.text import counted
from tasks.sample.formats import named_record

if TYPE_CHECKING:
    from flows.inspection.preview import View

MOST_UNREADABLE = 10

STYLES = {
    SAME: "",
    REMOVED: "red strike",
    ADDED: "green",
    SHARED: "cyan",
    ODD_PIECE: "reverse",
    EVEN_PIECE: "",
    UNKNOWN_PIECE: "bold white on red",
}

PLAIN_MARKS = {
    SAME: ("", ""),
    REMOVED: ("[-", "-]"),
    ADDED: ("{+", "+}"),
    SHARED: ("<", ">"),
    ODD_PIECE: ("", "|"),
    EVEN_PIECE: ("", "|"),
    UNKNOWN_PIECE: ("", "|"),
}

CONTEXT_CHARS = 120
"""Characters shown on each side of a change."""

MAX_CHARS = 1200

SHORTEST_GAP = 40


def scan_values(scan: FolderScan) -> dict[str, Any]:
    """Return the scan as `init --json` prints it."""
    return {
        "folder": str(scan.folder),
        "sources": [
            {
                "group": source.group,
                "format": source.format,
                "files": len(source.files),
                "stored_bytes": source.stored_bytes,
                "text_bytes": source.plain_bytes,
                "documents": source.records.records,
                "documents_exact": source.records.exact,
                "text_field": source.fields.text if source.fields else None,
                "id_field": source.fields.id if source.fields else None,
                "fields": list(source.fields.all) if source.fields else [],
                "languages": dict(source.languages.most_common()),
            }
            for source in scan.sources
        ],
        "empty_files": scan.empty,
        "files_in_packages": dict(scan.installed),
        "files_in_roots": dict(scan.made),
        "unreadable": [{"path": str(bad.path), "hint": bad.hint} for bad in scan.unreadable],
        "looked_files": scan.looked_files,
        "looked_bytes": scan.looked_bytes,
    }


def print_scan(scan: FolderScan, recipe: Path, remarks: Sequence[str], console: Console) -> None:
    """Print a line for each source, the files that cannot be read, what may surprise, and the next commands."""
    rows = [
        (
            source.group[:16],
            source.format,
            format_count(len(source.files)),
            f"{'' if source.records.exact else '~'}{format_count(source.records.records)}",
            format_bytes(source.plain_bytes),
            (source.fields.text or "") if source.fields else "",
            ", ".join(
                f"{code} {count / source.languages.total():.0%}" for code, count in source.languages.most_common(3)
            ),
        )
        for source in scan.sources
    ]
    columns = ("in", "format", "files", "documents", "text", "text field", "languages")
    texts = ("format", "text field", "languages")
    console.print(Table(columns, rows, texts=texts).rich(PAGE_WIDTH))
    unread = scan.unread()
    for names, _, hint in unread[:MOST_UNREADABLE]:
        console.print(f"[yellow]not read[/] {escape(names)}: {escape(hint)}", width=PAGE_WIDTH)
    if left := sum(number for _, number, _ in unread[MOST_UNREADABLE:]):
        console.print(f"[yellow]not read[/] ... and {left} more; all: --json")
    for name, count in sorted(scan.installed.items()):
        console.print(f"[yellow]not read[/] {counted(count, 'file')} in {name}: packages that were installed or made")
    for name, count in sorted(scan.made.items()):
        console.print(f"[yellow]not read[/] {counted(count, 'file')} in {escape(name)}: artifacts and runs of Bessemer")
    empty = f"; {counted(scan.empty, 'empty file')} skipped" if scan.empty else ""
    console.print(
        f"[dim]from the beginnings of {counted(scan.looked_files, 'file')} ({format_bytes(scan.looked_bytes)} read);"
        f" languages are shares of the sampled texts{empty}[/]",
        width=PAGE_WIDTH,
    )
    for remark in remarks:
        console.print(f"[yellow]![/] {escape(remark)}", width=PAGE_WIDTH)
    console.print(f"\nwrote {escape(str(recipe))}; next:")
    for command in ("check", "estimate", "run"):
        console.print(f"  bessemer {command} {escape(shlex.quote(str(recipe)))}", soft_wrap=True)


def print_views(views: "Sequence[View | TokenizedText]", console: Console, *, full: bool) -> None:
    """Print each view with its heading; `full` prints whole texts."""
    for view in views:
        _print_view(view, console, full)
        for text in view.get("as_read", ()):
            console.print(Text(text["title"], style="dim"))
            _print_segments(text["segments"], console, full)
        if "survivor" in view:
            _print_view(view["survivor"], console, full)
        if "item" in view:
            console.print(Text("the item: " + " ".join(str(view["item"]["match_text"]).split()), style="dim"))
        console.print()


def _print_view(view: "View | TokenizedText", console: Console, full: bool) -> None:
    console.print(Text(view["title"], style="bold"), soft_wrap=True)
    if "doc_id" in view:
        place = f"{escaped_line(view['path'])} {named_record(view['path'], view['record'])}"
        where = f"{view['doc_id'][:12]}  {view['source']}: {place}"
        if kind := view.get("text_kind"):
            where += f", kind of text: {kind.replace('_', ' ')}"
        console.print(Text(where, style="dim"), soft_wrap=True)
    for span in view.get("spans", ()):
        place = f"{span['doc_id'][:12]}/{span['piece']} bytes {span['start']:,} to {span['end']:,}"
        console.print(Text(f"{place}, {span['tok_len']} tokens", style="dim"))
    _print_segments(view["segments"], console, full)


def _print_segments(whole: Segments, console: Console, full: bool) -> None:
    segments, hidden = (whole, 0) if full else fitted(whole)
    line = Text()
    for kind, text in segments:
        opening, closing = ("", "") if console.is_terminal else PLAIN_MARKS[kind]
        line.append(f"{opening}{escaped(text)}{closing}", style=STYLES[kind] or None)
    console.print(line)
    if hidden:
        console.print(Text(f"({hidden:,} characters not shown; --full shows all)", style="dim"))


def fitted(segments: Segments) -> tuple[Segments, int]:
    """Shorten unchanged text so that segments fit on a screen, and return them with the number of hidden characters."""
    changed = any(kind in (REMOVED, ADDED) for kind, _ in segments)
    shown: Segments = []
    hidden = used = 0
    for index, (kind, text) in enumerate(segments):
        available = MAX_CHARS - used
        if available <= 0:
            hidden += len(text)
            continue
        short = text
        if kind == SAME and changed and len(text) > 2 * CONTEXT_CHARS + SHORTEST_GAP:
            head = "" if index == 0 else text[:CONTEXT_CHARS]
            tail = "" if index == len(segments) - 1 else text[-CONTEXT_CHARS:]
            hidden += len(text) - len(head) - len(tail)
            short = f"{head} … {tail}"
        if len(short) > available:
            hidden += len(short) - available
            short = short[:available] + "…"
        shown.append((kind, short))
        used += len(short)
    return shown, hidden
