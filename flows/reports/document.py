"""What a report shows, described once: sections of text, tables and figures, for a terminal, as Markdown and as a page.

Reports about runs and studies are functions from numbers to a `Document` or a `Table`; this file alone lays them out.
Markdown (files, Prefect's artifacts, model cards) and terminals have the tables; figures are on the page.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from flows.metrics.formatting import escape_markdown, format_cell, markdown_table

if TYPE_CHECKING:
    from flows.reports.charts.figure import Figure


PAGE_WIDTH = 80
"""Columns of tables in a terminal, whatever its width."""


@dataclass(frozen=True)
class Styled:
    """Words of a cell, and their style in a terminal."""

    words: str
    style: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Table:
    """Rows of cells: texts, whole numbers (which get separators), or None, shown as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    texts: Collection[str] = ()
    """Columns that are aligned left, besides the first; all others hold numbers."""
    note: str = ""
    """A sentence below the table."""
    marked: Collection[int] = ()
    """Rows that a terminal shows in bold."""

    def markdown(self) -> str:
        """Return the table, with its title and note as paragraphs."""
        table = markdown_table(self.columns, self.rows, self.texts)
        return "\n\n".join(filter(None, (escape_markdown(self.title), table, escape_markdown(self.note))))

    def rich(self, width: int | None = None) -> RichTable:
        """Return the table for a terminal, `width` columns wide where given; texts wrap, names and numbers do not."""
        table = RichTable(
            title=escape(self.title) or None,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
            header_style="dim" if self.title else "bold",
            width=width,
            caption=self.note or None,
            caption_justify="left",
        )
        for number, column in enumerate(self.columns):
            is_text = column in self.texts
            justify = "left" if number == 0 or is_text else "right"
            table.add_column(escape(column), justify=justify, no_wrap=not is_text, overflow="fold")
        for number, row in enumerate(self.rows):
            cells = (Text(format_cell(cell), style=cell.style if isinstance(cell, Styled) else "") for cell in row)
            table.add_row(*cells, style="bold" if number in self.marked else "")
        return table


@dataclass(frozen=True)
class Chart:
    """A figure by its name on the page, and what it shows in words; without a figure it is left out."""

    name: str
    figure: "Figure | None"
    words: str = ""


Part = str | Table | Chart


@dataclass(frozen=True)
class Section:
    """A title, a sentence that says how to read what follows, and the parts."""

    title: str
    parts: Sequence[Part]
    why: str = ""

    @property
    def has_content(self) -> bool:
        """Whether there is anything to show."""
        return any(not isinstance(part, Chart) or part.figure is not None for part in self.parts)


@dataclass(frozen=True)
class Tile:
    """A key figure."""

    value: str
    name: str
    note: str = ""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    sections: Sequence[Section]
    badge: str = ""
    lead: str = ""
    tiles: Sequence[Tile] = ()
    problems: Sequence[tuple[str, str]] = ()
    """What failed, and the error."""

    def markdown(self) -> str:
        """Return the report as Markdown, without figures."""
        parts = [f"# {escape_markdown(self.title)}", escape_markdown(self.lead)]
        parts += ["\n".join(f"- {escape_markdown(what)}: {escape_markdown(error)}" for what, error in self.problems)]
        for section in self.sections:
            texts = [part for part in section.parts if not isinstance(part, Chart)]
            shown = [part.markdown() if isinstance(part, Table) else escape_markdown(part) for part in texts]
            parts += [f"## {escape_markdown(section.title)}", escape_markdown(section.why), *shown] if shown else []
        return "\n\n".join(filter(None, parts)) + "\n"

    def print(self, console: Console) -> None:
        """Print the report without figures."""
        console.print(escape(self.title), style="bold")
        for line in filter(None, (self.lead, *(f"{what}: {error}" for what, error in self.problems))):
            console.print(line, markup=False)
        for section in self.sections:
            shown = [part for part in section.parts if not isinstance(part, Chart)]
            if shown:
                console.print(f"\n[bold]{escape(section.title)}[/]")
            for part in shown:
                if isinstance(part, Table):
                    console.print(part.rich())
                else:
                    console.print(part, markup=False)

    def write_page(self, path: Path) -> None:
        """Write the report as one HTML file."""
        from flows.reports.page.render import write_figures

        parts = [part for section in self.sections for part in section.parts]
        figures = {part.name: part.figure for part in parts if isinstance(part, Chart)}
        write_figures("document.html", figures, path, document=self, kind_of=lambda part: type(part).__name__)
