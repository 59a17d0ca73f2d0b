"""Tables of nightly runs and of promotions for the terminal."""

from collections.abc import Sequence

from flows.metrics.formatting import format_count, shorten
from flows.nightly.history import BLOCKED, FAILED, PROMOTED, Night
from flows.reports.document import Styled, Table
from flows.runs.model_registry import Promotion

STYLES = {PROMOTED: "green", BLOCKED: "red", FAILED: "red"}

WHY_CHARACTERS = 90

BASE_CHARACTERS = 6
"""Last characters of a run id that distinguish it; the beginning is the time."""


def table_of_nights(nights: Sequence[Night], current: str | None) -> Table:
    """Return a row for each nightly run, oldest first; `current` is the run whose model is the current one.

    The column `from` has the last characters of the run whose model it continued from.
    """
    rows = [
        (
            night.run_id,
            night.base[-BASE_CHARACTERS:] if night.base else None,
            sum(map(len, night.files.values())),
            night.documents,
            None if night.tokens is None else format_count(night.tokens),
            format_bits(night),
            Styled(f"{night.state}{' (current)' if night.run_id == current else ''}", STYLES.get(night.state, "")),
            _cut(night.why),
        )
        for night in nights
    ]
    texts = ("from", "bits a byte", "end", "why")
    columns = ("run (UTC)", "from", "files", "documents", "tokens", "bits a byte", "end", "why")
    return Table(columns, rows, texts=texts)


def table_of_promotions(promotions: Sequence[Promotion]) -> Table:
    """Return a row for each promotion, oldest first."""
    rows = [
        (
            str(one.number),
            one.run_id,
            one.when,
            one.who,
            _cut(f"{one.why} (undoes {one.number - 1})" if one.restores is not None else one.why),
        )
        for one in promotions
    ]
    columns = ("", "run", "when", "who", "why")
    return Table(columns, rows, texts=columns)


def format_bits(night: Night) -> str:
    """Return `2.514 -> 2.498`, or the one that there is; a dash where there is none."""
    numbers = [f"{value:.3f}" for value in (night.bits_before, night.bits_after) if value is not None]
    return " -> ".join(numbers) or "-"


def describe_nightly_run(night: Night) -> str:
    """Return what the command prints at the end of a nightly run."""
    lines = [f"nightly run {night.run_id}: {night.state}; {night.why}"]
    if night.documents is not None:
        lines.append(
            f"{night.documents:,} new documents, {format_count(night.tokens or 0)} tokens, bits per byte"
            f" {format_bits(night)}"
        )
    lines += [f"warning: {one}." for one in night.warnings]
    lines += [f"notification by {one}" for one in night.notified]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return shorten(" ".join(text.split()), WHY_CHARACTERS)
