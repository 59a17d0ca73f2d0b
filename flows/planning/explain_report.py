"""Forecasts, proposals to accept, and verifications, in words for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.planning.explain import BUILD, DEPENDS, Forecast
from flows.reports.progress import OUTCOME_STYLES
from flows.runs.verify import Verification
from tasks.artifacts.reuse import Alias

VERDICT_STYLES = {**OUTCOME_STYLES, BUILD: "green", DEPENDS: "dim"}

VERDICT_WORDS = {BUILD: "will be built", DEPENDS: "depends"}

MOST_DIFFERENCES = 12

_PER_GIGABYTE = 1e9


def tell_forecasts(forecasts: list[Forecast], console: Console, *, every: bool) -> None:
    """One line a stage: what will become of it, and why; `every` difference, or the first alone."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("forecast", no_wrap=True)
    table.add_column("cause")
    for forecast in forecasts:
        causes = forecast.differences if every and forecast.differences else (forecast.cause,)
        more = len(forecast.differences) - len(causes)
        told = "\n".join(map(escape, causes)) + (f" [dim](and {more} more: --all)[/]" if more > 0 else "")
        word = VERDICT_WORDS.get(forecast.verdict, forecast.verdict)
        table.add_row(forecast.stage, f"[{VERDICT_STYLES[forecast.verdict]}]{word}[/]", told)
    console.print(table)


def tell_proposal(alias: Alias, console: Console) -> None:
    """All that differs between what stands and what would be built."""
    console.print(
        f"[bold]{alias.stage}[/]: {alias.accepted} stands and would answer for {alias.identity}. They differ in"
    )
    for line in alias.differences[:MOST_DIFFERENCES]:
        console.print(f"  {escape(line)}")
    if len(alias.differences) > MOST_DIFFERENCES:
        console.print(f"  [dim]and {len(alias.differences) - MOST_DIFFERENCES} more[/]")


def tell_verification(found: Verification, moved: list[str], console: Console) -> None:
    """What was hashed, and a line for each damage."""
    size = f"{found.bytes / _PER_GIGABYTE:.3f} GB"
    hashed = f"{found.artifacts} artifacts, {found.files} files, {size} hashed, {found.records} records"
    console.print(f"{hashed}: {_health(found)}")
    if found.trusted:
        console.print(f"  {found.trusted} files not hashed: their sizes and times are as published")
    for damage in found.damages:
        place = f"{damage.place.parent.name}/{damage.place.name}/{damage.file}" if damage.file else str(damage.place)
        console.print(f"  [bold red]damaged[/] {escape(place)}: {escape(damage.problem)}", soft_wrap=True)
    for path in moved:
        console.print(f"  set aside: {escape(path)}")
    if found.damages and not moved:
        console.print(
            "  No run computes anything from these. Put them out of the way with `bessemer store verify --set-aside`,"
            " and the"
            " next run builds them again."
        )


def _health(found: Verification) -> str:
    if not found.damages:
        return "[green]all as published[/]"
    artifacts, records = (len({one.place for one in found.damages if bool(one.file) is of}) for of in (True, False))
    told = [
        f"{count} damaged {what}{'s' if count > 1 else ''}"
        for count, what in ((artifacts, "artifact"), (records, "record"))
        if count
    ]
    return f"[bold red]{', '.join(told)}[/]"
