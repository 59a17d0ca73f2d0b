"""MediaWiki markup becomes plain text; malformed markup loses no words and takes no longer than other text."""

import gc
import gzip
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig
from tasks.clean.document import DocumentContext
from tasks.clean.edits.wikitext import is_wikitext, plain_text, wikitext_to_text

DATA = Path(os.environ.get("BESSEMER_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
WIKI = DATA / "en_wiki" / "part-000.jsonl.gz"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Anna''' was a ''[[Physics|physicist]]'' of [[Bonn]].", "Anna was a physicist of Bonn."),
        ("{{Infobox|name={{small|A}}\n|born=1900}}\nShe sang.", "She sang."),
        ("One.<ref name=a>Book {{cite|x}}</ref> Two.<ref name=a/> Three.<REF>x</Ref>", "One. Two. Three."),
        ("[[File:a.jpg|thumb|A [[cat]] here]]Text [[Category:Cats]][[fr:Chat]][[zh-min-nan:Niau]]", "Text"),
        ("[[Файл:а.jpg|мини|Кот]]Текст[[Категория:Коты]]", "Текст"),
        ("see [http://a.org the page], [http://b.org] and [[:Category:Cats]]", "see the page, and Category:Cats"),
        ("[[Help:Foo (bar)|]] and [[Bonn, Germany|]]", "Foo and Bonn"),
        ("=a\n= b =\n====c==\nx", "=a\n\nb\n\n==c\n\nx"),
        ("One.<ref name=\"a/b\">x <ref name=\"c/d\">y</ref> z</ref>", "One.x z"),
        ("== Life ==\ntext\n=== Early ===\n== Death ==\nmore", "Life\n\ntext\n\nDeath\n\nmore"),
        ("* one\n** two\n# a\n# b\n; term : what\n: said", "- one\n  - two\n1. a\n2. b\nterm: what\nsaid"),
        (
            "{| class=x\n|+ Towns\n! Name !! Size\n|-\n| [[Bonn|B]] || style=\"a\" | 3\n|-\n|\n| 4\n|}",
            "Towns\nName | Size\nB | 3\n | 4",
        ),
        ("{| class=\"navbox\"\n| a\n|}after", "after"),
        ("a<!-- b -->c <nowiki>''[[x]]'' &amp;</nowiki> <math>x^{2}</math>", "ac ''[[x]]'' & $x^{2}$"),
        ("<syntaxhighlight lang=py>a = [[1]]</syntaxhighlight>", "a = [[1]]"),
        ("{{convert|10|km}}, {{lang|fr|mot}}, {{nowrap|a b}}, {{circa|1900}}", "10 km, mot, a b, c. 1900"),
        ("{{frac|1|2}} {{convert|2|-|3|km}} {{unknown|x}}{{snd}}", "1/2 2-3 km –"),
        ("Anna ({{IPA|x}}; born 1900) and Bob ({{lang-x}}) left.", "Anna (born 1900) and Bob left."),
        ("__TOC__ &nbsp;&mdash; a<br>b H<sub>2</sub>O", "— a\nb H2O"),
        ("#REDIRECT [[Bonn]]", ""),
        ("#перенаправление [[Бонн]]", ""),
        ("generic List<T> and a<b", "generic List<T> and a<b"),
    ],
)  # fmt: skip
def test_markup_becomes_plain_text(markup, text):
    assert plain_text(markup) == text


@pytest.mark.parametrize(
    ("markup", "words"),
    [
        ("{{cite a [[b]] c", "a b c"),
        ("[[a b {{x}} c", "a b c"),
        ("{| x\n| a b\nc d", "a b c d"),
        ("a <ref>b c <ref>d</ref> e", "a b c e"),
        ("a <!-- b c", "a b c"),
        ("a }} b ]] c |} d", "a b c d"),
        ("[http://x.org a b\nc d", "a b c d"),
        ("<nowiki>a b", "a b"),
        ("'''''a'' b", "a b"),
    ],
)
def test_malformed_markup_keeps_its_words(markup, words):
    assert set(words.split()) <= set(re.findall(r"\w+", plain_text(markup)))


MARKS = st.sampled_from(
    ["{{", "}}", "[[", "]]", "|", "||", "\n|", "\n|-", "\n{|", "\n|}", "\n!", "!!", "<ref>", "</ref>", "<!--", "-->",
     "''", "'''", "\n== ", " ==\n", "<nowiki>", "</nowiki>", "[http://a ", "]", "word ", "слово ", "字", "\n* ", "&lt;",
     "<br>", "{{{", "File:", "Category:", ":", " "]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(MARKS, max_size=30).map("".join))
def test_no_markup_raises(markup):
    assert "\x00" not in plain_text(markup)
    is_wikitext(markup)


@pytest.mark.parametrize(
    "piece",
    ["{", "{{a|", "[[", "[[a|{{", "{|\n", "\n|", "\n|-", "<ref>", "<ref>x</ref", "<b>", "<!--", "'", "=", "== a",
     "[http://a ", "(", "( ", "* ", "&", "|}", "}}", "<ref a=\"", "__A", "a=b |", "\n", " "],
)  # fmt: skip
def test_a_quarter_of_a_megabyte_of_unclosed_marks_takes_under_a_second(piece):
    _check_time("{|\n|" + piece * ((1 << 18) // len(piece)))


@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [("=", " ", "a"), ("== a", " \t", "b"), ("<ref>a<ref ", '"', "</ref>"), ("<ref>a<ref ", ' b="c"', "</ref>"),
     ("[[a", " ", "b|]]"), ("[[a (", " ", "|]]")],
)  # fmt: skip
def test_a_quarter_of_a_megabyte_inside_one_mark_takes_under_a_second(before, piece, after):
    _check_time(before + piece * ((1 << 18) // len(piece)) + after)


def _check_time(text):
    # A pass of the collector goes over all that other tests of this process have left, which is not the reader's cost.
    gc.disable()
    try:
        begin = time.process_time()
        plain_text(text)
        is_wikitext(text)
        seconds = time.process_time() - begin
    finally:
        gc.enable()
    assert seconds < 1


PAGE = "'''Bonn''' is a [[city]] on the [[Rhine|river Rhine]].\n\n== History ==\nIt is old.{{citation needed}}\n"


def test_wikitext_is_recognised_by_its_structure_alone():
    assert is_wikitext(PAGE)
    assert not is_wikitext("Obsidian notes: [[one]] and [[two]], {{jinja}} and == value")
    assert not is_wikitext("x = [[1, 2], [3, 4]]; y = [[a], [b]]; '''docstring'''")
    assert not is_wikitext("plain prose without any markup")
    assert wikitext_to_text(PAGE, DocumentContext("markdown")) == PAGE
    assert wikitext_to_text("''a''", DocumentContext("text")) == "''a''"
    assert wikitext_to_text("''a''", DocumentContext("wikitext")) == "a"


@pytest.mark.parametrize("kind", ["text", "wikitext"])
def test_the_chain_converts_recognised_texts_and_documents_of_the_kind(kind):
    chain = Chain.of(CleanConfig(), "minimal")
    text, verdicts = chain.clean(PAGE, DocumentContext(kind, "en"))
    assert text == "Bonn is a city on the river Rhine.\n\nHistory\n\nIt is old."
    assert verdicts.edits == {0: ["wikitext"]}
    # A document of the kind needs no flag of the scan.
    assert chain.clean("''a''", DocumentContext(kind, "en"))[0] == ("a" if kind == "wikitext" else "''a''")


@pytest.mark.skipif(not WIKI.exists(), reason="needs the real corpora")
def test_words_of_real_pages_are_those_of_mwparserfromhell():
    """Of the words of paragraphs outside tables, which the library drops or keeps by other rules, 97% are in both."""
    parser = pytest.importorskip("mwparserfromhell")
    with gzip.open(WIKI, "rt", encoding="utf-8") as lines:
        pages = [record["text"] for record in map(json.loads, lines) if record["format"] == "mediawiki wikitext"]
    pages = [page for page in pages if 2000 < len(page) < 40_000 and not re.search(r"\{\||\[\[(?:File|Image):", page)][
        :8
    ]
    assert len(pages) >= 5
    for page in pages:
        assert is_wikitext(page)
        ours = plain_text(page)
        without = re.sub(r"\[\[Category:[^\]]*\]\]", "", page)
        theirs = parser.parse(without, skip_style_tags=True).strip_code()
        mine, other = (Counter(re.findall(r"[^\W\d_]{2,}", text)) for text in (ours, theirs.replace("'''", "")))
        assert (mine & other).total() >= 0.97 * mine.total()
        assert (mine & other).total() >= 0.9 * other.total()
        assert not re.search(r"\{\{|\}\}|\[\[|<ref|'''", ours)
