"""Markdown of tables and pictures that Prefect's artifacts show."""

import base64
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; its first column is text, the others are numbers and stand to the right."""
    marks = [":--", *("--:" for _ in columns[1:])]
    lines = [columns, marks, *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(svg: str, words: str) -> str:
    """An SVG picture that stands in the text itself; `words` say what it shows to those who cannot see it."""
    return f"![{words}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def code(words: object) -> str:
    """Text that is to be copied as it stands: paths, commands."""
    return f"`{words}`"


def _cell(value: object) -> str:
    words = f"{value:,}" if isinstance(value, int) else str(value)
    return words.replace("|", "\\|").replace("\n", " ")
