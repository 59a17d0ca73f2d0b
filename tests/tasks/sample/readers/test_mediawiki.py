"""Exports of a MediaWiki are read page by page; damage costs one page, and bzip2 is read as gzip is."""

import bz2
import io

import pytest

from tasks.sample.config import Source
from tasks.sample.readers.byte_stream import Gap, blocks_and_gaps
from tasks.sample.readers.mediawiki_reader import mediawiki_records
from tasks.sample.readers.records import BadRecord, Record, Skipped

SOURCE = Source(name="wiki", paths=("x",))
HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en"><siteinfo>'
    "<base>https://en.wikipedia.org/wiki/Main_Page</base></siteinfo>\n"
)


def page(number, text="Text &lt;ref/&gt; [[a]]", ns=0, extra="", model="wikitext"):
    return (
        f"<page><title>Page {number}</title><ns>{ns}</ns><id>{number}</id>{extra}<revision><id>1</id>"
        f'<model>{model}</model><text xml:space="preserve">{text}</text></revision></page>\n'
    )


def read(text, size=37, source=SOURCE):
    raw = text.encode() if isinstance(text, str) else text
    return list(mediawiki_records((raw[place : place + size] for place in range(0, len(raw), size)), source))


@pytest.mark.parametrize("size", [1, 37, 100_000])
def test_a_page_above_the_limit_is_named_by_the_byte_where_it_begins(size):
    small = Source(name="wiki", paths=("x",), max_file_bytes=1000)
    bad, _ = read(HEAD + page(1, "x" * 200_000) + page(2), size, small)
    assert bad.byte == len(HEAD)


@pytest.mark.parametrize("size", [1, 37, 100_000])
def test_articles_are_documents_with_title_id_and_address(size):
    text = (
        HEAD + page(1) + page(2, ns=1) + page(3, extra='<redirect title="x" />') + page(4, model="css") + page(5, "B")
    )
    found = read(text, size)
    assert [type(record) for record in found] == [Record, Skipped, Skipped, Skipped, Record]
    assert [record.number for record in found] == [0, 1, 2, 3, 4]
    first = found[0]
    assert (first.text, first.key, first.kind) == ("= Page 1 =\n\nText <ref/> [[a]]", "1", "wikitext")
    assert first.url == "https://en.wikipedia.org/wiki/Page_1"
    assert first.byte == len(HEAD)
    assert [record.what for record in found[1:4]] == [
        "pages outside the namespace of articles", "redirects", "pages without wikitext",
    ]  # fmt: skip


def test_the_last_revision_counts():
    text = page(1).replace("</page>", "<revision><text>new</text></revision></page>")
    assert read(HEAD + text)[0].text == "= Page 1 =\n\nnew"


def test_damage_costs_one_page():
    broken = page(2).replace("</revision>", "")
    cut = page(3)[:60]
    found = read(HEAD + page(1) + broken + page(4) + cut + page(5) + page(6) + page(7)[:50])
    kinds = [(type(record), getattr(record, "reason", "")[:12]) for record in found]
    assert kinds == [
        (Record, ""), (BadRecord, "invalid XML:"), (Record, ""), (BadRecord, "the page has"), (Record, ""),
        (Record, ""), (BadRecord, "the page has"),
    ]  # fmt: skip
    assert [record.number for record in found] == list(range(7))
    assert [record.key for record in found if isinstance(record, Record)] == ["1", "4", "5", "6"]
    text = HEAD + page(1) + broken + page(4) + cut + page(5) + page(6) + page(7)[:50]
    assert [text[record.byte :][:19] for record in found] == [f"<page><title>Page {n}" for n in (1, 2, 4, 3, 5, 6, 7)]


def test_a_page_above_the_limit_and_a_gap_are_rejected_alone():
    small = Source(name="wiki", paths=("x",), max_file_bytes=1000)
    found = read(HEAD + page(1) + page(2, "x" * 200_000) + page(3), 5000, small)
    assert [type(record) for record in found] == [Record, BadRecord, Record]
    assert found[1].reason == "larger than max_file_bytes (1000)"
    blocks = [(HEAD + page(1) + page(2)[:40]).encode(), Gap("lost"), (page(2)[40:] + page(3)).encode()]
    found = list(mediawiki_records(blocks, SOURCE))
    assert [type(record) for record in found] == [Record, BadRecord, Record]


def test_a_document_type_is_never_read():
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
    found = read(bomb + HEAD + page(1, "&b;") + page(2))
    assert isinstance(found[0], BadRecord)
    assert "undefined entity" in found[0].reason
    assert isinstance(found[1], Record)


def unpack(raw):
    return list(blocks_and_gaps(io.BytesIO(raw), "bzip2", lambda count: None))


def test_bzip2_of_several_streams_is_read_and_damage_is_named():
    text = b"".join(f"line {number}\n".encode() for number in range(200_000))
    whole = bz2.compress(text[:1_000_000]) + bz2.compress(text[1_000_000:])
    assert b"".join(unpack(whole)) == text
    assert unpack(whole[:-10])[-1] == Gap("bzip2 stream ends early")
    first = bz2.compress(text[:1_000_000])
    broken = bytearray(first + bz2.compress(text[1_000_000:]))
    broken[len(first) // 2] ^= 0xFF
    found = unpack(bytes(broken))
    assert any(isinstance(block, Gap) and block.reason.startswith("damaged bzip2 data") for block in found)
    assert b"".join(block for block in found if isinstance(block, bytes)).endswith(text[1_000_000:])


@pytest.mark.parametrize("before_the_border", range(1, 12))
def test_after_damage_a_bzip2_stream_is_found_across_the_border_of_two_blocks(before_the_border):
    damaged = bz2.compress(b"first")[:10].ljust((1 << 16) - before_the_border, b"\0")
    found = unpack(damaged + bz2.compress(b"second"))
    assert found == [Gap("damaged bzip2 data: Invalid data stream"), b"second"]
