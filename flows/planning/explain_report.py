"""Print forecasts, proposals to accept, and verifications in a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from flows.planning.explain import BUILD, DEPENDS, Forecast
from flows.reports.document import Styled, Table
from flows.reports.progress import OUTCOME_STYLES
from flows.runs.verify import Verification
from tasks.artifacts.reuse import Alias

VERDICT_STYLES = {**OUTCOME_STYLES, BUILD: "green", DEPENDS: "dim"}

VERDICT_LABELS = {BUILD: "will be built", DEPENDS: "depends"}

MAX_DIFFERENCES = 12

BYTES_PER_GIGABYTE = 1e9


def print_forecasts(forecasts: list[Forecast], console: Console, *, every: bool) -> None:
    """Print a line for each stage with its forecast and cause; `every` prints all differences instead of the first."""
    rows = []
    for forecast in forecasts:
        causes = forecast.differences if every and forecast.differences else (forecast.cause,)
        more = len(forecast.differences) - len(causes)
        text = "\n".join(causes) + (f" (and {more} more: --all)" if more > 0 else "")
        label = VERDICT_LABELS.get(forecast.verdict, forecast.verdict)
        rows.append((forecast.stage, Styled(label, VERDICT_STYLES[forecast.verdict]), text))
    columns = ("stage", "forecast", "cause")
    console.print(Table(columns, rows, texts=columns).rich())


def print_sizes(changed: Mapping[str, tuple[Any, Any]], console: Console) -> None:
    """Print the settings in which a shrunk twin differs from its recipe."""
    rows = [
        (key, *("by its files" if value is None else str(value) for value in values)) for key, values in changed.items()
    ]
    console.print(Table(("size", "recipe", "here"), rows).rich())
    console.print()


def print_proposal(alias: Alias, console: Console) -> None:
    """Print the differences between an existing artifact and the one that would be built."""
    console.print(
        f"[bold]{alias.stage}[/]: the artifact {alias.accepted} would be accepted in place of {alias.identity}. They"
        f" differ in"
    )
    for line in alias.differences[:MAX_DIFFERENCES]:
        console.print(f"  {escape(line)}")
    if len(alias.differences) > MAX_DIFFERENCES:
        console.print(f"  [dim]and {len(alias.differences) - MAX_DIFFERENCES} more[/]")


def print_verification(found: Verification, moved: list[str], console: Console) -> None:
    """Print what was hashed, and a line for each damage."""
    size = f"{found.bytes / BYTES_PER_GIGABYTE:.3f} GB"
    hashed = f"{found.artifacts} artifacts, {found.files} files, {size} hashed, {found.records} records"
    console.print(f"{hashed}: {_result(found)}")
    if found.trusted:
        console.print(f"  {found.trusted} files not hashed: their sizes and times are as published")
    for damage in found.damages:
        place = f"{damage.place.parent.name}/{damage.place.name}/{damage.file}" if damage.file else str(damage.place)
        console.print(f"  [bold red]damaged[/] {escape(place)}: {escape(damage.problem)}", soft_wrap=True)
    for path in moved:
        console.print(f"  set aside: {escape(path)}")
    if found.damages and not moved:
        console.print(
            "  No run uses these. Set them aside with `bessemer store verify --set-aside`, and the next run builds them"
            " again."
        )


def _result(found: Verification) -> str:
    if not found.damages:
        return "[green]all as published[/]"
    artifacts, records = (len({one.place for one in found.damages if bool(one.file) is of}) for of in (True, False))
    damaged = [
        f"{count} damaged {what}{'s' if count > 1 else ''}"
        for count, what in ((artifacts, "artifact"), (records, "record"))
        if count
    ]
    return f"[bold red]{', '.join(damaged)}[/]"
