"""`bessemer check`: what a sample of each source shows, and what the rules of a run would drop of it."""

import gzip
import json
from pathlib import Path
from typing import Any

import numba
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.planning import check
from flows.planning.check import RecipeCheck, RuleDrops, SourceCheck, _losses, check_recipe
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from model.errors import InputError
from tasks.clean.config import CleanConfig
from tasks.clean.pipeline import clean_part
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import find_files
from tasks.sample.document_columns import DocumentColumns, document_id
from tasks.sample.readers.files import read_records
from tasks.sample.readers.records import Record

ENGLISH = (
    "The furnace was lit before dawn, and white iron ran into the sand of every mould. Later the master counted what"
    " the night had given. Two castings were cracked; the others rang clear under his hammer. He wrote their weights"
    " into a narrow book, signed the page and went home along the canal, where boats with coal were waiting for the"
    " lock. "
)
RUSSIAN = (
    "Печь затопили ещё до рассвета, и белое железо потекло в песчаные формы на дворе. Потом мастер пересчитал всё, что"
    " дала ночь. Две отливки треснули, остальные звонко отвечали молотку. Он записал вес каждой в узкую книгу, поставил"
    " подпись и пошёл домой вдоль канала, где баржи с углём ждали шлюза. "
)
RECIPE = """
format = 1
name = "mine"
budget_tokens = "10K"

[[sources]]
name = "letters"
paths = ["{recipe}/letters"]
weight = 0.5

[[sources]]
name = "messages"
paths = ["{recipe}/messages.jsonl"]
weight = 0.5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "letters").mkdir()
    for number in range(4):
        (tmp_path / "letters" / f"{number}.txt").write_text(ENGLISH + str(number))
    (tmp_path / "letters" / "old.txt").write_bytes(RUSSIAN.encode("cp1251"))
    lines = [json.dumps({"text": RUSSIAN + str(number)}) for number in range(3)]
    lines += [json.dumps({"text": "ok"}), "{broken", json.dumps({"body": "no text"})]
    (tmp_path / "messages.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path / "mine.toml"


def test_a_sample_of_each_source_is_read_and_cleaned(recipe: Path) -> None:
    letters, messages = check_recipe(load_recipe(recipe, recipe.parent)).sources
    assert (letters.files, letters.files_read, letters.documents) == (5, 5, 5)
    assert letters.place.endswith("mine.toml, line 7")
    assert letters.encodings == {"cp1251": 1}
    assert letters.languages["en"] == 4
    assert sum(letters.languages.values()) == 5
    assert letters.kinds
    assert sum(letters.kinds.values()) == letters.bytes
    assert letters.drops == []
    assert messages.documents == 4
    assert [(bad.records, bad.first) for bad in messages.unreadable] == [
        (1, "messages.jsonl, record 4, byte 1"),
        (1, "messages.jsonl, record 5, byte 0"),
    ] or sum(bad.records for bad in messages.unreadable) == 2
    (rule,) = messages.drops
    assert (rule.documents, rule.bytes, rule.examples[0].excerpt) == (1, 2, "ok")
    assert (rule.examples[0].path, rule.examples[0].record) == ("messages.jsonl", 3)


def test_reading_ends_at_its_limit_and_is_spread_over_files(tmp_path: Path, recipe: Path) -> None:
    big = "\n".join(json.dumps({"text": ENGLISH}) for _ in range(40_000))
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text(big)
    recipe.write_text(RECIPE.replace("{recipe}/messages.jsonl", "{recipe}/*.jsonl"))
    most = 16_000_000
    _, messages = check_recipe(load_recipe(recipe, recipe.parent), most).sources
    assert messages.files_read == 4
    assert 0.2 * most < messages.bytes < most / 2 + 4 * 2**20


def test_a_file_that_unpacks_to_more_than_the_limit_is_read_up_to_it(tmp_path: Path, recipe: Path) -> None:
    text = "\n".join(json.dumps({"text": f"{number} {ENGLISH}"}) for number in range(30_000))
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert (tmp_path / "packed.jsonl.gz").stat().st_size < 2_000_000 < len(text) / 4
    recipe.write_text(RECIPE.replace("{recipe}/messages.jsonl", "{recipe}/packed.jsonl.gz"))
    _, packed = check_recipe(load_recipe(recipe, recipe.parent), 4_000_000).sources
    assert 1_800_000 < packed.bytes < 2_000_000
    assert packed.unreadable == []


def test_a_document_longer_than_the_limit_is_reported(tmp_path: Path, recipe: Path) -> None:
    (tmp_path / "letters" / "long.txt").write_text(ENGLISH * 10_000)
    letters, _ = check_recipe(load_recipe(recipe, recipe.parent), 2_000_000).sources
    assert (letters.files, letters.unseen_files, letters.documents) == (6, 1, 2)
    shown = CliRunner().invoke(app, ["check", str(recipe), "--root", str(recipe.parent / "root")])
    assert "not looked at" not in shown.output


def test_a_field_that_no_record_has_is_named_with_its_line(recipe: Path) -> None:
    recipe.write_text(RECIPE + 'text_field = "content"\n')
    shown = CliRunner().invoke(app, ["check", str(recipe), "--root", str(recipe.parent / "root")])
    assert shown.exit_code == InputError.exit_code
    assert "mine.toml, line 15" in shown.output
    assert "content" in shown.output


def test_the_command_says_once_that_it_waits_for_kernels_that_are_compiled(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = numba.njit(lambda x: x + x)

    def compile_kernels(*_: Any) -> RecipeCheck:
        for kind in (int, float) if unknown else ():
            double(kind())
        return RecipeCheck(())

    monkeypatch.setattr(check, "check_recipe", compile_kernels)
    for unknown in (True, False):
        shown = CliRunner().invoke(app, ["check", str(recipe), "--root", str(recipe.parent / "root"), "--json"])
        assert shown.exit_code == 0, shown.output
        assert shown.stderr.splitlines() == unknown * ["compiling kernels, once after an installation: up to a minute"]


def test_the_command_prints_what_it_found_and_json(recipe: Path) -> None:
    words = ["check", str(recipe), "--root", str(recipe.parent / "root")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "documents decoded from cp1251 (1)" in shown.output
    assert "letters  (" in shown.output
    assert "cleaning would drop nothing" in shown.output
    assert "4 documents, 1.6 kB, from 1 file" in shown.output
    assert "cleaning would drop 1 document, 0.1% of the text" in shown.output
    assert "messages.jsonl record 3, 1 below 7: ok" in shown.output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [source["documents"] for source in found["sources"]] == [5, 4]
    assert not (recipe.parent / "root").exists(), "nothing is built"


def test_a_dropped_page_is_shown_by_its_text(recipe: Path) -> None:
    page = "<html><head><script>var x = 1;</script></head><body><p>Only six words are on it.</p></body></html>"
    (recipe.parent / "messages.jsonl").write_text(json.dumps({"text": page}) + "\n")
    recipe.write_text(RECIPE + 'content = "html"\n')
    (rule,) = check_recipe(load_recipe(recipe, recipe.parent)).sources[1].drops
    assert [(example.value, example.excerpt) for example in rule.examples] == [(6, "Only six words are on it.")]


def test_what_a_run_could_not_start_from_is_reported(recipe: Path) -> None:
    given = ["vocab.base={recipe}/gone.model"]
    with pytest.raises(InputError, match=r"vocab\.base: .*gone\.model does not exist"):
        check_recipe(load_recipe(recipe, recipe.parent / "root", given))


def test_empty_files_are_no_losses(recipe: Path) -> None:
    for number in range(20):
        (recipe.parent / "letters" / f"empty-{number}.txt").touch()
    (recipe.parent / "messages.jsonl").write_text(
        "".join(json.dumps({"text": RUSSIAN * n}) + "\n" for n in range(1, 9))
    )
    found = check_recipe(load_recipe(recipe, recipe.parent / "root"))
    assert not [loss for loss in found.losses if "cannot be read" in loss]


@pytest.mark.usefixtures("shared_server")
def test_rejected_records_are_those_that_count_and_files_without_any_are_named_as_files(recipe: Path) -> None:
    """The limit of rejects counts the two lines and not the files: `2 of 11 records`, with 5 letters and 4 messages."""
    for number in range(20):
        (recipe.parent / "letters" / f"empty-{number}.txt").touch()
    root = str(recipe.parent / "root")
    shown = CliRunner().invoke(app, ["check", str(recipe), "--root", root]).output
    assert "rejected 20 files: empty file; the first in empty-0.txt" in shown
    assert "rejected 1 record: broken JSON" in shown
    assert "rejected 1 record: no field `text`" in shown
    stopped = CliRunner().invoke(app, ["run", str(recipe), "--root", root, "--until", "sample"])
    assert stopped.exit_code == 4
    assert "sample: 2 of 11 records (18.2%) were rejected" in stopped.output


def test_a_file_has_one_line_whatever_its_name(recipe: Path) -> None:
    (recipe.parent / "letters" / "a\nwell  (forged)\x1b.txt").write_text("Short.")
    shown = CliRunner().invoke(app, ["check", str(recipe)]).output
    assert "      a\\u000awell  (forged)\\u001b.txt record 0, 1 below 7: Short.\n" in shown


def test_losses_for_which_a_run_would_stop_are_said(recipe: Path) -> None:
    words = ["check", str(recipe), "--root", str(recipe.parent / "root")]
    assert "! about 18% of all records cannot be read" in CliRunner().invoke(app, words).output
    kept = [*words, "--set", "sample.max_reject_share=0.2", "--set", "clean.limits.kind_words=50"]
    shown = CliRunner().invoke(app, kept).output
    assert "cannot be read, and a run stops" not in shown
    assert "! cleaning would drop 100% of the documents of messages, most by kind_words" in shown
    assert "documents of letters, most" not in shown
    intended = CliRunner().invoke(app, [*kept, "--set", "clean.wipe_out_overrides.messages=1.0"]).output
    assert "cleaning would drop 4 documents, 100.0% of the text" in intended
    assert "documents of messages, most" not in intended


def test_the_rule_that_drops_most_documents_is_named() -> None:
    """It is not always the one that drops most text."""
    drops = [RuleDrops("kind_long", 1, 9000), RuleDrops("kind_words", 98, 2000)]
    source = SourceCheck("notes", "mine.toml, line 3", 1, 1, documents=100, bytes=12_000, drops=drops)
    sample, clean = SampleConfig.model_construct(max_reject_share=0.0), CleanConfig(wipe_out_limit=0.5)
    (loss,) = _losses((source,), Recipe.model_construct(sample=sample, clean=clean))
    assert "would drop 99% of the documents of notes, most by kind_words: a run" in loss


def test_a_source_of_short_lines_that_cleaning_drops_may_be_verse(recipe: Path) -> None:
    """Lines that begin with capitals and lack punctuation are those of a menu as well."""
    lines = "The Old Mill\nBy The River\nIts White Wheel\nAnd The Rain\n"
    shape = [{"text": f"{lines}Number {number}\n"} for number in range(3)]
    (recipe.parent / "messages.jsonl").write_text("".join(json.dumps(text) + "\n" for text in shape))
    words = ["check", str(recipe), "--root", str(recipe.parent / "root")]
    hint = (
        "! most documents of messages consist of short lines, and cleaning would drop 3 of them, for it takes them for"
        ' menus or titles. If they are poems or songs, write under [clean]: kinds = { messages = "verse" }\n'
    )
    assert hint in CliRunner().invoke(app, words).output
    kept = CliRunner().invoke(app, [*words, "--set", 'clean.kinds={ messages = "verse" }']).output
    assert "short lines" not in kept
    assert kept.count("cleaning would drop nothing") == 2
    assert "of letters consist" not in kept


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_network_that_cannot_be_exported_says_what_to_set(command: str, recipe: Path) -> None:
    words = [command, str(recipe), "--root", str(recipe.parent / "root")]
    normed = CliRunner().invoke(app, [*words, "--set", "train.model.embedding_norm=true"])
    assert normed.exit_code == 0, normed.output
    assert "it has embedding_norm = true" in normed.output
    assert "Train with train.model.embedding_norm = false to be able to export the model" in normed.output
    assert "export" not in CliRunner().invoke(app, words).output


def test_verdicts_are_those_of_the_clean_stage(recipe: Path) -> None:
    loaded = load_recipe(recipe, recipe.parent)
    _, listing = find_files(loaded.sample)
    (file,) = listing.files
    texts = [found.text for found in read_records(file, listing.source, 0, lambda _: None) if isinstance(found, Record)]
    columns = DocumentColumns()
    for number, text in enumerate(texts):
        record = Record(number, 0, text)
        columns.add(document_id("messages", file.relative, number, None), listing.source, file, record, text.encode())
    report = clean_part(CleanConfig(), columns.table(), 0).report.sources["messages"]
    checked = check_recipe(loaded).sources[1]
    assert report.documents_in - report.documents_out == sum(rule.documents for rule in checked.drops)
