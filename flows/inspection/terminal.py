"""What a survey found, as tables for a terminal.

Views in a terminal: colours where there are some, marks in a pipe, and never more text than fits.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.inspection.scan import FolderSurvey
from flows.metrics.escaping import escaped
from flows.metrics.formatting import format_bytes, format_count
from flows.metrics.text_diff import ADDED, EVEN_PIECE, ODD_PIECE, REMOVED, SAME, SHARED, UNKNOWN_PIECE

PAGE_WIDTH = 80

MOST_UNREADABLE = 10


def survey_told(survey: FolderSurvey) -> dict[str, Any]:
    """The survey as plain values."""
    return {
        "folder": str(survey.folder),
        "sources": [
            {
                "group": source.group,
                "format": source.format,
                "files": len(source.files),
                "stored_bytes": source.stored_bytes,
                "text_bytes": source.text_bytes,
                "documents": source.records.records,
                "documents_exact": source.records.exact,
                "text_field": source.fields.text if source.fields else None,
                "id_field": source.fields.id if source.fields else None,
                "fields": list(source.fields.all) if source.fields else [],
                "languages": dict(source.languages.most_common()),
            }
            for source in survey.sources
        ],
        "empty_files": survey.empty,
        "unreadable": [{"path": str(bad.path), "hint": bad.hint} for bad in survey.unreadable],
        "looked_files": survey.looked_files,
        "looked_bytes": survey.looked_bytes,
    }


def tell_survey(survey: FolderSurvey, recipe: Path, console: Console) -> None:
    """A line a source, what cannot be read, how much was looked at, and the two commands that come next."""
    table = Table(box=None, header_style="bold", pad_edge=False, width=PAGE_WIDTH)
    table.add_column("in", no_wrap=True)
    table.add_column("format", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("documents", justify="right", no_wrap=True)
    table.add_column("text", justify="right", no_wrap=True)
    table.add_column("text field", no_wrap=True)
    table.add_column("languages", ratio=1)
    for source in survey.sources:
        about = "" if source.records.exact else "~"
        judged = source.languages.total()
        table.add_row(
            escape(source.group[:16]),
            source.format,
            format_count(len(source.files)),
            f"{about}{format_count(source.records.records)}",
            format_bytes(source.text_bytes),
            escape(source.fields.text or "") if source.fields else "",
            ", ".join(f"{code} {count / judged:.0%}" for code, count in source.languages.most_common(3)),
        )
    console.print(table)
    for bad in survey.unreadable[:MOST_UNREADABLE]:
        shown = escape(str(bad.path.relative_to(survey.folder)))
        console.print(f"[yellow]not read[/] {shown}: {escape(bad.hint)}", width=PAGE_WIDTH)
    if len(survey.unreadable) > MOST_UNREADABLE:
        console.print(f"[yellow]not read[/] ... and {len(survey.unreadable) - MOST_UNREADABLE} more; all: --json")
    empty = f"; {survey.empty} empty files passed over" if survey.empty else ""
    console.print(
        f"[dim]judged by the beginnings of {survey.looked_files} files ({format_bytes(survey.looked_bytes)} read);"
        f" languages are shares of the texts looked at{empty}[/]",
        width=PAGE_WIDTH,
    )
    console.print(f"\nwrote {escape(str(recipe))}; what comes next:")
    console.print(f"  bessemer estimate {escape(str(recipe))}", soft_wrap=True)
    console.print(f"  bessemer run {escape(str(recipe))}", soft_wrap=True)


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

AROUND_CHANGE = 120
"""Characters shown on each side of a change."""

MOST_CHARS = 1200

SHORTEST_GAP = 40


def tell_views(views: list[dict[str, Any]], console: Console, *, full: bool) -> None:
    """Each view with its heading; `full` shows whole texts."""
    for view in views:
        _tell_view(view, console, full)
        for text in view.get("as_read", []):
            console.print(Text(text["title"], style="dim"))
            _tell_segments(text["segments"], console, full)
        if "survivor" in view:
            _tell_view(view["survivor"], console, full)
        if "item" in view:
            console.print(Text("the item: " + " ".join(str(view["item"]["match_text"]).split()), style="dim"))
        console.print()


def _tell_view(view: dict[str, Any], console: Console, full: bool) -> None:
    heading = Text(view["title"], style="bold")
    console.print(heading, soft_wrap=True)
    if "doc_id" in view:
        where = f"{view['doc_id'][:12]}  {view['source']}: {view['path']} record {view['record']}"
        console.print(Text(where, style="dim"), soft_wrap=True)
    for span in view.get("spans", []):
        place = f"{span['doc_id'][:12]}/{span['piece']} bytes {span['start']:,} to {span['end']:,}"
        told = f"{place}, {span['tok_len']} tokens"
        console.print(Text(told, style="dim"))
    _tell_segments(view["segments"], console, full)


def _tell_segments(whole: list[tuple[str, str]], console: Console, full: bool) -> None:
    segments, hidden = (whole, 0) if full else fitted(whole)
    line = Text()
    for kind, text in segments:
        opening, closing = ("", "") if console.is_terminal else PLAIN_MARKS[kind]
        line.append(f"{opening}{escaped(text)}{closing}", style=STYLES[kind] or None)
    console.print(line)
    if hidden:
        console.print(Text(f"({hidden:,} characters not shown; --full shows all)", style="dim"))


def fitted(segments: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], int]:
    """Segments that fit on a screen, and how many characters were left out: changes stay, what is between is cut."""
    changed = any(kind in (REMOVED, ADDED) for kind, _ in segments)
    shown: list[tuple[str, str]] = []
    hidden = used = 0
    for index, (kind, text) in enumerate(segments):
        room = MOST_CHARS - used
        if room <= 0:
            hidden += len(text)
            continue
        short = text
        if kind == SAME and changed and len(text) > 2 * AROUND_CHANGE + SHORTEST_GAP:
            head = "" if index == 0 else text[:AROUND_CHANGE]
            tail = "" if index == len(segments) - 1 else text[-AROUND_CHANGE:]
            hidden += len(text) - len(head) - len(tail)
            short = f"{head} … {tail}"
        if len(short) > room:
            hidden += len(short) - room
            short = short[:room] + "…"
        shown.append((kind, short))
        used += len(short)
    return shown, hidden
