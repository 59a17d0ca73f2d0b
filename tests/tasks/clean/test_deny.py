"""Denied documents are dropped by domain, id or hash, with a row each, and a new entry makes another identity."""

import json

import blake3
import pytest

from model.errors import InputError, RecipeError
from tasks.artifacts.build import RunContext
from tasks.clean.config import CleanConfig, DenyConfig
from tasks.clean.filters.blocklist import read_deny_list
from tasks.clean.stage import build_clean
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample

TEXTS = [("web", "The first page, and nothing else."), ("web", "The second\u200b page."), ("web", "The third page.")]


def hash_of(text):
    return blake3.blake3(text.encode()).hexdigest(length=16)


def test_a_domain_covers_its_subdomains():
    deny = read_deny_list(DenyConfig(domains=("Example.org",)))
    assert deny.match(bytes(16), "www.example.org", bytes(16)) == ("deny_domain", "example.org")
    assert deny.match(bytes(16), "example.org", bytes(16)) == ("deny_domain", "example.org")
    assert deny.match(bytes(16), "notexample.org", bytes(16)) is None
    assert deny.match(bytes(16), "", bytes(16)) is None


def test_ids_and_hashes_as_read_and_as_cleaned_reach_the_ledger(context, make_documents):
    parent = make_documents([TEXTS])
    first_id = parent.table("documents").column("doc_id")[0].as_py()
    deny = DenyConfig(ids=(first_id.hex().upper(),), hashes=(hash_of("The second page."),))
    artifact = build_clean(context, parent, CleanConfig(preset="minimal", deny=deny))
    rows = {row["rule"]: row for row in artifact.table("ledger").to_pylist() if row["action"] == "drop"}
    assert rows["deny_id"]["evidence"] == first_id.hex()
    assert rows["deny_hash"]["evidence"] == hash_of("The second page.")
    assert artifact.table("documents").column("text").to_pylist() == ["The third page."]


def test_the_file_counts_by_its_entries(context, make_documents, tmp_path):
    parent = make_documents([TEXTS])
    path = tmp_path / "deny.txt"
    path.write_text(f"# removed on request\nhash {hash_of(TEXTS[2][1])}\n")
    config = CleanConfig(preset="minimal", deny=DenyConfig(path=str(path)))
    before = build_clean(context, parent, config)
    moved = tmp_path / "moved.txt"
    moved.write_text(f"hash {hash_of(TEXTS[2][1])}  # the same entry\n")
    same = build_clean(context, parent, CleanConfig(preset="minimal", deny=DenyConfig(path=str(moved))))
    assert same.identity == before.identity
    path.write_text(f"hash {hash_of(TEXTS[2][1])}\nhash {hash_of(TEXTS[0][1])}\n")
    after = build_clean(RunContext(context.root, "later night"), parent, config)
    assert after.identity != before.identity
    assert after.rows("documents") == before.rows("documents") - 1


@pytest.mark.parametrize(
    ("letters", "punycode"),
    [("Пример.рф", "xn--e1afmkfd.xn--p1ai"), ("faß.de", "xn--fa-hia.de"), ("例え.jp.", "xn--r8jz45g.jp")],
)
def test_a_domain_is_the_same_in_letters_and_in_punycode(letters: str, punycode: str):
    for listed in (letters.rstrip("."), punycode):
        deny = read_deny_list(DenyConfig(domains=(listed,)))
        for host in (letters, f"www.{punycode.upper()}"):
            assert deny.match(bytes(16), host, bytes(16)) == ("deny_domain", letters.lower().rstrip("."))
        assert deny.match(bytes(16), "xn--.рф", bytes(16)) is None


@pytest.mark.parametrize("line", ["domain", "id 12", "hash xyz", "url http://a.b", "domain http://a.b"])
def test_a_malformed_entry_stops_before_work(tmp_path, line):
    path = tmp_path / "deny.txt"
    path.write_text(f"domain a.org\n{line}\n")
    with pytest.raises(InputError, match="line 2"):
        read_deny_list(DenyConfig(path=str(path)))


def test_what_the_recipe_names_must_make_sense_and_exist(tmp_path):
    with pytest.raises(RecipeError, match="not a valid domain"):
        read_deny_list(DenyConfig(domains=("http://a.org/x",)))
    with pytest.raises(InputError, match="cannot be read"):
        read_deny_list(DenyConfig(path=str(tmp_path / "none.txt")))


def test_a_domain_is_denied_from_the_address_in_the_file_to_the_ledger(context, tmp_path):
    pages = [
        {"text": "A page that may be learned from.", "url": "https://good.example/a"},
        {"text": "A page of a host that wants none of it.", "url": "http://deep.banned.example:8080/b?c=d"},
        {"text": "A page without an address."},
        {"text": "A page with an address that names no host.", "url": "http://[banned.example/"},
    ]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    source = Source(name="web", paths=(str(tmp_path / "pages.jsonl"),), weight=1, url_field="url")
    sample = build_sample(context, SampleConfig(sources=(source,), budget_tokens=10**6))
    config = CleanConfig(preset="minimal", deny=DenyConfig(domains=("banned.example",)))
    cleaned = build_clean(context, sample, config)
    assert cleaned.table("documents").column("text").to_pylist() == [pages[row]["text"] for row in (0, 2, 3)]
    (row,) = cleaned.table("ledger").to_pylist()
    assert (row["action"], row["rule"], row["evidence"]) == ("drop", "deny_domain", "banned.example")
