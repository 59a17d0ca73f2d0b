"""Markdown of tables and pictures that Prefect's artifacts show."""

import base64
import html
import re
from collections.abc import Iterable, Sequence

from flows.escaping import escaped

LONGEST_NUMBER = 16
_ACTIVE = re.compile(r"[\\`*\[\]|~@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""An underscore within a word is none of Markdown's (CommonMark 6.2, rules 2 and 6); bare addresses become links in
GitHub's dialect (section 6.9), which Prefect's UI reads."""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: Sequence[str] = ()) -> str:
    """A table; its first column and those named in `texts` are text, the others are numbers and stand to the right."""
    marks = [":--" if number == 0 or column in texts else "--:" for number, column in enumerate(columns)]
    lines = [columns, marks, *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(words: object) -> str:
    """Text from data or a recipe as Markdown that shows it as it is: no HTML, link, emphasis or row comes of it."""
    told = escaped(" ".join(str(words).split()))
    return html.escape(_ACTIVE.sub(r"\\\g<0>", told), quote=False)


def picture(svg: str, words: str) -> str:
    """An SVG picture that stands in the text itself; `words` say what it shows to those who cannot see it."""
    return f"![{plain(words)}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def code(words: object) -> str:
    """Text that is to be copied as it stands: paths, commands."""
    told = escaped(" ".join(str(words).split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", told)), default=0))
    return f"`{told}`" if fence == "`" else f"{fence} {told} {fence}"


def _cell(value: object) -> str:
    words = plain(f"{value:,}" if isinstance(value, int) else value)
    # A short number keeps its unit on its line.
    return words.replace(" ", "\N{NO-BREAK SPACE}") if len(words) <= LONGEST_NUMBER else words
