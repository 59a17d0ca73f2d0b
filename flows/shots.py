"""What the notes of SCORES say of how items were asked: those that were drawn of all, and the examples that they were
shown where fewer fit into the context than were asked for."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from flows.wording import shots_word

_ROOM = re.compile(r"([\d.]+) examples on average: (\d+) of (\d+) items leave room for less than (\d+)")
_DRAWN = re.compile(r"(\d+) of (\d+) items drawn")


def drawn_told(scores: Iterable[Mapping[str, Any]]) -> str:
    """One sentence without its full stop, from the notes of SCORES; empty where every benchmark was asked whole."""
    found: dict[str, str] = {}
    for row in scores:
        match = _DRAWN.search(row["note"] or "")
        if match:
            drawn, available = map(int, match.groups())
            found[row["task"]] = f"{row['task']} {drawn:,} of {available:,} items"
    return f"{', '.join(found.values())}, as many as its max_items lets be drawn" if found else ""


def shots_told(scores: Iterable[Mapping[str, Any]]) -> str:
    """One sentence without its full stop, from the notes of SCORES; empty where all examples fit."""
    found: dict[tuple[str, int], str] = {}
    for row in scores:
        match = _ROOM.search(row["note"] or "")
        if match:
            average, fewer, items, _ = match.groups()
            found[row["task"], row["shots"]] = (
                f"{row['task']} {shots_word(row['shots'])} shows {average} examples on average, for {fewer} of {items}"
                f" items leave no room for more"
            )
    if not found:
        return ""
    told = "; ".join(found[key] for key in sorted(found))
    return f"{told}. A larger train.model.context holds more"
