"""A tag before each document that says where it comes from, so that words with other meanings there can be told apart.

`Source: NAME` or `URL: DOMAIN` on a line of its own, as in metadata conditioning (Gao et al. 2025, MeCo). It is part of
the text from here on: dedup sees it too.
"""

from tasks.clean.about import About


def tag_source(text: str, about: About) -> str:
    """`Source: ` and the name of the source before the text."""
    return f"Source: {about.source}\n\n{text}"


def tag_domain(text: str, about: About) -> str:
    """`URL: ` and the host of the document's address before the text; where it has none, the source's name."""
    return f"URL: {about.domain}\n\n{text}" if about.domain else tag_source(text, about)
