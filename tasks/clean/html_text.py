"""The main text of a web page, without navigation and boilerplate, by trafilatura (Barbaresi 2021).

Its own deduplication stays off: it remembers what earlier pages held, and a document's text must not depend on its
neighbours.
"""

from trafilatura import extract


def html_to_text(page: str) -> tuple[str | None, str]:
    """(text, "") of a page, or (None, why there is none); tables are kept, comments of readers are not."""
    try:
        text = extract(page, include_comments=False, include_tables=True, deduplicate=False)
    except Exception as error:
        # The parser behind it knows many ways to fail on broken pages; the ledger says which it was.
        return None, f"{type(error).__name__}: {error}"
    return (text, "") if text and text.strip() else (None, "no main text found")
