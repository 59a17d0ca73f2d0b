"""Views in a terminal: colours where there are some, marks in a pipe, and never more text than fits."""

from typing import Any

from rich.console import Console
from rich.text import Text

from flows.escaping import escaped
from flows.peek.difference import ADDED, EVEN_PIECE, ODD_PIECE, REMOVED, SAME, SHARED, UNKNOWN_PIECE

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
