"""What a survey found, as tables for a terminal."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.survey.folder import FolderSurvey
from flows.wording import compact, size

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
            compact(len(source.files)),
            f"{about}{compact(source.records.records)}",
            size(source.text_bytes),
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
        f"[dim]judged by the beginnings of {survey.looked_files} files ({size(survey.looked_bytes)} read); languages"
        f" are shares of the texts looked at{empty}[/]",
        width=PAGE_WIDTH,
    )
    console.print(f"\nwrote {escape(str(recipe))}; what comes next:")
    console.print(f"  bessemer plan {escape(str(recipe))}", soft_wrap=True)
    console.print(f"  bessemer run {escape(str(recipe))}", soft_wrap=True)
