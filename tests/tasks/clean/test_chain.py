"""The stage as a whole: presets, ledger, digests, conservation, and the same bytes for any number of workers."""

import blake3
import pyarrow as pa
import pytest
from pydantic import ValidationError

from model.errors import GuardError
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.map_parts import unit_name
from tasks.artifacts.tables.schema import DOCUMENTS, LEDGER
from tasks.clean import batch as part_rows
from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig, WordListConfig
from tasks.clean.document import DocumentContext
from tasks.clean.pipeline import clean_part
from tasks.clean.stage import build_clean, read_user_resources
from tasks.common.config import StrictConfig

PROSE = (
    "The old mill stood beside the river, and every spring the children of the village came to watch how its great"
    " wheel began to turn again. Nobody could say who had built it. Some believed that a monk had drawn the plans;"
    " others held that the stones were older than the church. In summer it was quiet, and the miller slept."
)


def documents(*rows) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "doc_id": number.to_bytes(16, "big"),
                "piece": 0,
                "source": source,
                "lang": "en",
                "text": text,
                "text_digest": blake3.blake3(text.encode()).digest(length=16),
                "origin": {"path": "a", "record": number, "byte": 0},
                "meta": None if kind == "text" else f'{{"format":"{kind}"}}',
            }
            for number, (source, kind, text) in enumerate(rows)
        ],
        schema=DOCUMENTS,
    )


def parent(root, *parts: pa.Table):
    def run(workspace):
        together = StageReport()
        for index, rows in enumerate(parts):
            with workspace.unit(unit_name(index)) as unit:
                write_table(unit, "documents", rows, table_file_name("documents", unit_name(index)))
            for row in rows.to_pylist():
                counts, size = together.source(row["source"]), len(row["text"].encode())
                counts.documents_in += 1
                counts.documents_out += 1
                counts.bytes_in += size
                counts.bytes_out += size
        return together

    return build_artifact(
        RunContext(root, "r"), Stage("sample", ("tasks.artifacts.tables.schema",), ()), StrictConfig(), {}, run
    )


def test_an_empty_list_of_edits_means_none():
    context = DocumentContext("html", "en")
    page = f"<html><body><article><p>{PROSE}</p></article></body></html>"
    assert Chain.of(CleanConfig(edits=(), rules=()), "gopher").clean(page, context)[0] == page
    named = Chain.of(CleanConfig(edits=("nfc",), rules=()), "gopher")
    assert named.clean(page, context)[0] == PROSE
    kept = CleanConfig(edits=("nfc",), rules=(), without=("html_to_text",))
    assert Chain.of(kept, "gopher").clean(page, context)[0] == page


def test_an_empty_list_of_rules_means_none():
    context = DocumentContext("text", "en")
    assert Chain.of(CleanConfig(), "gopher").clean("two words", context)[1].names == ["gopher_words_min"]
    assert Chain.of(CleanConfig(rules=()), "gopher").clean("two words", context)[1].is_kept.all()


def test_kept_edited_and_dropped_documents_have_their_ledger_rows():
    untouched, edited, short = (
        ("s", "text", PROSE),
        ("s", "text", PROSE + " Write to jo@mill.org\u200b!"),
        ("s", "text", "x"),
    )
    result = clean_part(CleanConfig(preset="gopher"), documents(untouched, edited, short), 0)
    out = result.tables["documents"]
    assert out.schema.equals(DOCUMENTS)
    assert out.column("text").to_pylist() == [PROSE, PROSE + " Write to <email>!"]
    assert out.column("text_digest").to_pylist() == [
        blake3.blake3(text.encode()).digest(length=16) for text in out.column("text").to_pylist()
    ]
    assert [origin["record"] for origin in out.column("origin").to_pylist()] == [0, 1]
    assert result.tables["ledger"].schema.equals(LEDGER)
    edit, drop = result.tables["ledger"].to_pylist()
    assert (edit["action"], edit["rule"]) == ("edit", "control_characters+email")
    assert edit["bytes_in"] - edit["bytes_out"] == len("jo@mill.org") + 3 - len("<email>")
    assert (drop["action"], drop["rule"], drop["value"], drop["limit"]) == ("drop", "gopher_words_min", 1, 50)
    counts = result.report.source("s")
    assert (counts.documents_in, counts.documents_out) == (3, 2)
    assert counts.edited == {"control_characters": 1, "email": 1}
    result.report.check_conservation("clean")


def test_code_goes_through_the_code_preset_and_a_source_may_choose():
    code = "def f(x):\n    return x  # <b>&amp;</b> :-)\n"
    config = CleanConfig()
    assert clean_part(config, documents(("c", "code", code)), 0).tables["documents"].column("text").to_pylist() == [
        code
    ]
    gopher = CleanConfig(presets={"c": "gopher"})
    assert clean_part(gopher, documents(("c", "code", code)), 0).report.source("c").dropped == {"gopher_words_min": 1}


def test_a_page_without_text_is_dropped_under_its_own_name():
    result = clean_part(CleanConfig(preset="minimal"), documents(("w", "html", "<html><body></body></html>")), 0)
    (row,) = result.tables["ledger"].to_pylist()
    assert (row["rule"], row["value"], row["evidence"]) == ("html_no_text", None, "no main text found")
    assert result.tables["documents"].num_rows == 0


def test_nothing_left_is_dropped_as_empty():
    result = clean_part(CleanConfig(preset="minimal"), documents(("s", "text", "\u200b\u200b")), 0)
    assert result.report.source("s").dropped == {"empty": 1}


def test_limits_additions_and_omissions():
    context = DocumentContext("text", "en")
    longer = Chain.of(CleanConfig(limits={"gopher_words_min": 1000}), "gopher")
    assert longer.clean(PROSE, context)[1].limits == [1000]
    with_rule = Chain.of(CleanConfig(add=("c4_curly_bracket",)), "gopher")
    assert with_rule.clean(PROSE + "{", context)[1].values == [1]
    fewer = Chain.of(CleanConfig(without=("gopher_words_min", "gopher_stop_words")), "gopher")
    assert fewer.clean("one", context)[1].is_kept.all()
    assert (
        Chain.of(CleanConfig(emoji="keep", preset="minimal"), "gopher").clean(PROSE + " 🙂 :-)", context)[1].edits == {}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": {"gopher_word": 1}},
        {"add": ("grammar",)},
        {"edits": ("gopher_hashes",)},
        {"rules": ("email",)},
        {"without": ("grammar",)},
    ],
)
def test_unknown_names_are_refused(fields):
    with pytest.raises(ValidationError, match="there is no"):
        CleanConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({"edits": ("nfc",), "add": ("homoglyphs",)}, "homoglyphs"),
        ({"rules": (), "add": ("c4_curly_bracket",)}, "c4_curly_bracket"),
        ({"edits": ("nfc",), "spelling": ({"path": "words.tsv"},)}, "spelling"),
    ],
)
def test_what_a_list_of_edits_or_rules_leaves_idle_is_refused(fields, idle):
    with pytest.raises(ValidationError, match=f"`{idle}` would not run"):
        CleanConfig(**fields)
    listed = {name: (*fields[name], idle) for name in ("edits", "rules") if name in fields}
    assert CleanConfig(**{**fields, **listed})


def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    first = documents(("s", "text", PROSE), ("s", "text", "short"), ("w", "markdown", f"<b>{PROSE}</b> 😀"))
    second = documents(*(("s", "text", f"{PROSE} {number}") for number in range(20)))
    artifact = parent(tmp_path / "root", first, second)
    one = build_clean(RunContext(tmp_path / "root", "r"), artifact, CleanConfig(workers=1))
    two = build_clean(RunContext(tmp_path / "root", "r", forced=frozenset({"clean"})), artifact, CleanConfig(workers=2))
    assert one.content == two.content
    assert one.report.total().documents_out == 22
    assert one.table("documents").column("text")[1].as_py() == f"{PROSE} grinning face"


def test_a_wiped_out_source_stops_the_stage(tmp_path):
    artifact = parent(tmp_path / "root", documents(*(("tweets", "text", "short") for _ in range(120))))
    context = RunContext(tmp_path / "root", "r")
    with pytest.raises(GuardError, match=r"tweets.*gopher_words_min"):
        build_clean(context, artifact, CleanConfig(preset="gopher"))
    allowed = CleanConfig(preset="gopher", wipe_out_overrides={"tweets": 1.0})
    assert build_clean(context, artifact, allowed).report.source("tweets").dropped == {"gopher_words_min": 120}


def test_a_recipe_may_give_the_order_and_the_limits_of_edits():
    context = DocumentContext("text", "en")
    repeated = "a line\n" * 4 + PROSE
    assert Chain.of(CleanConfig(), "gopher").clean(repeated, context)[0] == "a line\n" + PROSE
    assert Chain.of(CleanConfig(limits={"repeated_lines": 6}), "gopher").clean(repeated, context)[1].edits == {}
    masked_first = Chain.of(CleanConfig(edits=("email", "entities"), rules=()), "gopher")
    assert masked_first.clean("jo&#64;mill.org", context)[0] == "jo@mill.org"
    undone_first = Chain.of(CleanConfig(edits=("entities", "email"), rules=()), "gopher")
    assert undone_first.clean("jo&#64;mill.org", context)[0] == "<email>"
    rules = ("gopher_stop_words", "gopher_words_min")
    assert Chain.of(CleanConfig(rules=rules), "gopher").clean("xyzzy", context)[1].names == [rules[0]]
    assert Chain.of(CleanConfig(rules=rules[::-1]), "gopher").clean("xyzzy", context)[1].names == [rules[1]]


def test_fineweb_looks_at_lines():
    context = DocumentContext("text", "en")
    chain = Chain.of(CleanConfig(preset="fineweb", without=("c4_short_lines",)), "fineweb")
    assert chain.clean(PROSE, context)[1].is_kept.all()
    listing = "\n".join(f"The house of the {word} and its garden" for word in PROSE.split()[:40])
    only_lines = CleanConfig(rules=("fineweb_finished_lines",))
    assert Chain.of(only_lines, "fineweb").clean(listing, context)[1].values == [0]


def test_word_lists_are_the_users(tmp_path):
    (tmp_path / "words.txt").write_text("Monk\nold mill\n磨坊\n")
    lists = (WordListConfig(name="trades", path=str(tmp_path / "words.txt"), limit=0.01),)
    resources, digests = read_user_resources(CleanConfig(word_lists=lists))
    assert set(digests) == {"words trades"}
    chain = Chain.of(CleanConfig(preset="minimal", word_lists=lists), "minimal", resources)
    _, verdicts = chain.clean(PROSE, DocumentContext("text", "en"))
    assert verdicts.names == ["words_trades"]
    assert verdicts.values == pytest.approx([2 / len(PROSE.split())])
    assert chain.clean("The miller slept.", DocumentContext("text", "en"))[1].is_kept.all()
    assert chain.clean("在磨坊里", DocumentContext("text", "zh"))[1].names == ["words_trades"]


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    (tmp_path / "words.txt").write_text("monk\n", encoding="utf-8-sig")
    lists = (WordListConfig(name="trades", path=str(tmp_path / "words.txt")),)
    resources, _ = read_user_resources(CleanConfig(word_lists=lists))
    assert resources.word_lists["trades"].words == {"monk"}


@pytest.mark.parametrize("entry", ["नमक", "मन", "हिन्दी", "cafe\u0301"])
def test_marks_are_part_of_their_word_in_a_list(tmp_path, entry):
    (tmp_path / "words.txt").write_text(f"{entry}\n")
    lists = (WordListConfig(name="trades", path=str(tmp_path / "words.txt")),)
    chain = Chain.of(
        CleanConfig(preset="minimal", word_lists=lists),
        "minimal",
        read_user_resources(CleanConfig(word_lists=lists))[0],
    )
    for text, names in ((f"एक {entry} दो", ["words_trades"]), ("एक नमकीन मनी हिन्दीी cafés दो", [])):
        assert chain.clean(text, DocumentContext("text", "hi"))[1].names == names


def test_an_unknown_language_is_written_where_it_is_sure():
    unknown = DOCUMENTS.field("lang")
    rows = documents(("s", "text", PROSE)).set_column(3, unknown, pa.nulls(1, unknown.type))
    result = clean_part(CleanConfig(), rows, 0)
    assert result.tables["documents"].column("lang").to_pylist() == ["en"]
    assert result.report.facts["languages"] == {"en": 1}


def many_kinds() -> pa.Table:
    """Documents of several kinds and presets, in an order that mixes them, the language of every other unknown."""
    texts = (
        ("s", "text", PROSE),
        ("s", "markdown", f"![a map](m.png) {PROSE} <b>bold</b> 😀 &amp;"),
        ("c", "code", "def f(x):\n    return x  # :-)\n" * 3),
        ("w", "html", f"<html><body><article><p>{PROSE}</p></article></body></html>"),
        ("s", "text", ""),
        ("s", "text", f"{PROSE}\u200b caf\u00c3\u00a9 jo@mill.org"),
        ("w", "html", "<html><body></body></html>"),
        ("s", "text", "word " * 60),
        ("t", "text", "委员会下周将再次开会，讨论应该如何处理那座老桥，以及由谁来承担维修的费用。" * 4),
        ("s", "text", f"[1] {PROSE}\n\nshort line\n{PROSE} :-)"),
        ("t", "text", " \n\u3000"),
    )
    rows = documents(*texts)
    languages = pa.array([None if number % 2 else "en" for number in range(len(texts))], pa.string())
    field = DOCUMENTS.field("lang")
    return rows.set_column(3, field, languages.dictionary_encode().cast(field.type))


def test_the_decision_on_a_document_does_not_depend_on_its_neighbours():
    rows = many_kinds()
    config = CleanConfig(presets={"t": "fineweb"})
    together = clean_part(config, rows, 0)
    alone = [clean_part(config, rows.slice(number, 1), 0) for number in range(rows.num_rows)]
    for name in ("documents", "ledger"):
        one_by_one = [row for result in alone for row in result.tables[name].to_pylist()]
        assert together.tables[name].to_pylist() == one_by_one
    together.report.check_conservation("clean")
    assert StageReport.merged(result.report for result in alone).total() == together.report.total()
    assert together.report.total().documents_out >= 4
    assert together.report.total().edited["emoji"] == 1


def test_a_part_without_documents():
    result = clean_part(CleanConfig(), documents(), 0)
    assert result.tables["documents"].schema.equals(DOCUMENTS)
    assert result.tables["ledger"].schema.equals(LEDGER)
    assert result.tables["documents"].num_rows == result.tables["ledger"].num_rows == 0


def test_batches_hold_all_documents_in_order(monkeypatch):
    monkeypatch.setattr(part_rows, "BATCH_BYTES", len(PROSE) + 10)
    rows = pa.concat_tables([many_kinds().slice(1), many_kinds()])
    batches = list(part_rows.iter_batches(rows, "name"))
    assert len(batches) > 5
    assert [batch.first for batch in batches] == [
        sum(len(earlier) for earlier in batches[:number]) for number in range(len(batches))
    ]
    texts = [batch.texts.text(row) for batch in batches for row in range(len(batch))]
    assert texts == rows.column("text").to_pylist()
