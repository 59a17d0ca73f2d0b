"""Names as Plotly shows them: it reads what looks like HTML in its labels as such."""

import html

MOST_LETTERS = 40


def plot_text(words: object, most_letters: int = MOST_LETTERS) -> str:
    """The words as plain text, cut where they are longer than `most_letters`."""
    told = " ".join(str(words).split())
    return html.escape(told if len(told) <= most_letters else f"{told[: most_letters - 1]}…", quote=False)
