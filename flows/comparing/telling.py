"""The comparison of two runs on a screen of the terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.comparing.differing import APART, OTHER_TEXT, SAME
from flows.wording import shots_word

MOST_SETTINGS, MOST_RULES, SETTING_LETTERS = 15, 8, 40
VERDICTS = {"better": "green", "worse": "red"}


def tell_comparison(found: dict[str, Any], console: Console) -> None:
    """Stages, settings, training, held-out text, scores, and the rules whose removals differ most."""
    for number, run in enumerate(found["runs"]):
        word = "second" if number else "first"
        console.print(f"[bold]{word:<7}[/] {escape(run['recipe'])} {run['run_id']} ({run['state']})")
    console.print()
    for table in (_stages(found), _settings(found), _numbers(found), _scores(found)):
        if table is not None:
            console.print(table)
            console.print()
    if found["heldout"] is not None:
        console.print(f"[dim]{OTHER_TEXT}[/]")
    if any(line["how"] == APART for line in found["scores"]):
        console.print("[dim]* from standard errors, as if the items were others: a run did not keep every item's[/]")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column in NUMBERS else "left", overflow="fold")
    return table


NUMBERS = ("first", "second", "difference", "items")


def _stages(found: dict[str, Any]) -> Table:
    table = _table("stages", "stage", "", "why")
    for line in found["stages"]:
        style = "dim" if line["verdict"] == SAME else "yellow"
        table.add_row(line["stage"], f"[{style}]{line['verdict']}[/]", escape("; ".join(line["causes"][:3])))
    return table


def _settings(found: dict[str, Any]) -> Table | None:
    if not found["recipe"]:
        return None
    table = _table(f"settings that differ ({len(found['recipe'])})", "setting", "first", "second")
    for line in found["recipe"][:MOST_SETTINGS]:
        table.add_row(escape(line["path"]), *(escape(_cut(str(value))) for value in line["values"]))
    if len(found["recipe"]) > MOST_SETTINGS:
        table.add_row(f"... and {len(found['recipe']) - MOST_SETTINGS} more", "", "")
    return table


def _numbers(found: dict[str, Any]) -> Table | None:
    """Training, bits per byte, and removals, one below the other."""
    removed = sorted(found["removed"], key=lambda pair: -abs(_apart(pair) or 0))[:MOST_RULES]
    groups = (
        ("", found["training"]),
        ("bits per byte, ", found["bits_per_byte"]),
        ("", found["heldout"] or []),
        ("dropped by ", [pair for pair in removed if _apart(pair)]),
    )
    rows = [(f"{words}{pair['name']}", pair) for words, pairs in groups for pair in pairs]
    rows = [(name, pair) for name, pair in rows if any(value is not None for value in pair["values"])]
    if not rows:
        return None
    table = _table("numbers", "", "first", "second", "difference")
    for name, pair in rows:
        apart = _apart(pair)
        table.add_row(escape(name), *map(_told, pair["values"]), "-" if apart is None else _signed(apart))
    return table


def _scores(found: dict[str, Any]) -> Table | None:
    if not found["scores"]:
        return None
    table = _table("scores", "benchmark", "first", "second", "difference", "items", "second is")
    for line in found["scores"]:
        interval = "" if line["low"] is None else f" ({100 * line['low']:+.1f} to {100 * line['high']:+.1f})"
        style = VERDICTS.get(line["verdict"], "default")
        table.add_row(
            escape(f"{line['task']} {shots_word(line['shots'])}"),
            *(f"{value:.1%}" for value in line["values"]),
            f"{100 * line['mean']:+.1f}{interval}{'*' if line['how'] == APART else ''}",
            f"{line['n']:,}",
            f"[{style}]{line['verdict']}[/]",
        )
    return table


def _apart(pair: dict[str, Any]) -> float | None:
    first, second = pair["values"]
    return None if first is None or second is None else second - first


def _told(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def _signed(value: float) -> str:
    return "0" if not value else f"{'+' if value > 0 else '-'}{_told(abs(value))}"


def _cut(words: str) -> str:
    return words if len(words) <= SETTING_LETTERS else f"{words[: SETTING_LETTERS - 1]}…"
