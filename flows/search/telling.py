"""A study on the terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.search.proposing import told_value
from flows.search.study import Study
from flows.search.verdict import lines
from flows.wording import duration


def tell_study(study: Study, found: dict[str, Any], console: Console) -> None:
    """The trials as a table, the best one's settings, and how to run them."""
    best = found["best"]
    console.print(trials_table(study, None if best is None else best["trial"]))
    if best is None:
        console.print(escape(found["told"]))
        return
    console.print(f"best: trial {best['trial']}, {escape(study.config.objective.told)} [bold]{best['value']:.4f}[/]")
    for key, value in best["settings"].items():
        console.print(f"    {key} = {told_value(value)}", markup=False)
    console.print(f"run it: bessemer run {found['recipe']} --root {study.root}", markup=False)
    if found["page"]:
        console.print(f"page: {found['page']}", markup=False)


def trials_table(study: Study, best: int | None) -> Table:
    """A line a trial; `built` are the stages that no earlier run had built."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    keys = list(study.config.space)
    for column in (
        "trial",
        "by",
        *(key.rpartition(".")[2] for key in keys),
        "of training",
        "loss",
        "objective",
        "time",
    ):
        table.add_column(column, justify="left" if column == "by" else "right")
    table.add_column("built")
    table.add_column("became")
    for line in lines(study.trials):
        error = "" if line["stderr"] is None else f" ± {line['stderr']:.4f}"
        table.add_row(
            str(line["trial"]),
            escape(line["by"]),
            *(escape(told_value(line["settings"][key])) if key in line["settings"] else "" for key in keys),
            f"{line['share']:.0%}",
            "" if line["loss"] is None else f"{line['loss']:.4f}",
            "" if line["value"] is None else f"{line['value']:.4f}{error}",
            duration(line["seconds"]),
            ", ".join(line["built"]),
            escape(line["cause"] or line["state"]),
            style="bold" if line["trial"] == best else "",
        )
    return table
