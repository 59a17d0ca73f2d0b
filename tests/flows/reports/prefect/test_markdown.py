"""Tables keep their columns whatever is in a cell."""

import re

import pytest
from markdown_it import MarkdownIt

from flows.metrics.formatting import escape_markdown, markdown_code, markdown_table

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "a | b\n| --- |\n| c",
    "[here](http://elsewhere) ![x](http://elsewhere/x.png)",
    "`markdown_code` ``two`` \\` and **bold** _soft_ ~~gone~~",
    "[a](javascript:alert(1)) <http://elsewhere> &lt;b&gt; &amp;",
    "gopher_words_min: 3 < 50",
    "https://elsewhere/a_b?c=d www.elsewhere.example WWW.elsewhere.example mailto@elsewhere.example",
]
TEXT_ONLY = {"paragraph", "inline", "text", "table", "thead", "tbody", "tr", "th", "td", "softbreak", "text_special"}


def read(markdown: str) -> tuple[set[str], list[str]]:
    """Kinds of elements and the text of each inline one, as a parser of Markdown with HTML and tables sees them."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(markdown)
    inner = [(token, token.children or []) for token in tokens if token.type == "inline"]
    kinds = {one.type for one in [*tokens, *(child for _, children in inner for child in children)]}
    return {kind.removesuffix("_open").removesuffix("_close") for kind in kinds}, [
        "".join(child.content for child in children) for _, children in inner
    ]


@pytest.mark.parametrize("words", HOSTILE)
def test_text_from_data_is_shown_as_it_is(words: str):
    kinds, texts = read(f"x {escape_markdown(words)}")
    assert kinds <= TEXT_ONLY
    assert texts == [f"x {' '.join(words.split())}"]


@pytest.mark.parametrize("words", HOSTILE)
def test_text_from_data_stays_in_its_cell(words: str):
    kinds, texts = read(markdown_table(("source", "why"), [(words, "kept"), ("other", words)], texts=("why",)))
    assert kinds <= TEXT_ONLY
    shown = " ".join(words.split())
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts] == [
        "source",
        "why",
        shown,
        "kept",
        "other",
        shown,
    ]


@pytest.mark.parametrize("words", HOSTILE)
def test_text_to_be_copied_is_one_piece_of_code(words: str):
    kinds, texts = read(markdown_code(words))
    assert kinds == {"paragraph", "inline", "code_inline"}
    assert texts == [" ".join(words.split())]


@pytest.mark.parametrize(
    "words", ["https://a.example", "ftp://a.example", "www.a.example", "HTTPS://a", "me@a.example"]
)
def test_bare_addresses_of_data_become_no_links(words: str):
    """GitHub's dialect, section 6.9: a link begins with a scheme or `www.`, or is letters around an `@`."""
    shown = escape_markdown(f"see {words}")
    assert re.search(r"\w://|www\.|\w@", shown, re.IGNORECASE) is None
    kinds, texts = read(shown)
    assert kinds <= TEXT_ONLY
    assert texts == [f"see {words}"]


def test_text_from_data_cannot_reverse_a_line_or_hide_in_it():
    for show in (escape_markdown, markdown_code):
        assert "\u202e" not in show("a\u202eb\x1b[8mc")
        assert "b" in show("a\u202eb")


def test_the_parser_sees_what_is_not_escaped():
    kinds, _ = read(f"x {HOSTILE[0]} {HOSTILE[3]} {HOSTILE[4]}")
    assert {"html_inline", "link", "image", "code_inline", "strong", "s"} <= kinds


def test_numbers_are_right_and_texts_left():
    made = markdown_table(
        ("source", "documents", "why"), [("a|b", 12345, "a longer sentence\nin two lines")], texts=("why",)
    )
    assert made.splitlines() == [
        "| source | documents | why |",
        "| :-- | --: | :-- |",
        "| a\\|b | 12,345 | a longer sentence in two lines |",
    ]


def test_a_number_keeps_its_unit_on_its_line():
    assert "3\N{NO-BREAK SPACE}min\N{NO-BREAK SPACE}20\N{NO-BREAK SPACE}s" in markdown_table(
        ("time",), [("3 min 20 s",)]
    )
