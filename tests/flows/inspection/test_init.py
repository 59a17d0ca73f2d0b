"""Folders of somebody's own text: what is found in them, and that the recipe for them runs."""

import bz2
import gzip
import io
import json
import mailbox
import os
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import app
from flows.inspection import convert, unpack
from flows.inspection.all_keys import EXAMPLES, write_recipe
from flows.inspection.fields import judge_fields
from flows.inspection.file_head import RecordCount, StoredFile, count_records
from flows.inspection.recipe_writer import scan_remarks, write_short_recipe
from flows.inspection.scan import ScannedSource, scan_folder
from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS
from model.config.rules import check_compatible_architecture
from model.errors import InputError, RecipeError
from tasks.artifacts.build import RunContext
from tasks.artifacts.results import SampleResult
from tasks.evaluate.config import GateConfig
from tasks.train.base_model import network_in
from tests.flows.inspection.test_sizes import LLAMA, write_published

ENGLISH = "The furnace was lit before dawn and the iron ran white into the sand of the moulds. "
RUSSIAN = "Печь затопили ещё до рассвета, и железо потекло белым ручьём в песчаные формы на дворе. "
CHINESE = "天还没有亮，炉子就已经点着了，白热的铁水慢慢流进院子里的沙模之中，工人们都站在旁边看着。"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every kind of file: text, gzip, Markdown, code, jsonl with odd fields, parquet, and what cannot be read."""
    mine = tmp_path / "my [own] text"
    for name in ("books", "русский", "web dump", "programs"):
        (mine / name).mkdir(parents=True)
    for number in range(6):
        (mine / "books" / f"{number}.txt").write_text(ENGLISH * 20 + str(number))
        (mine / "русский" / f"{number}.txt").write_text(RUSSIAN * 20 + str(number))
    (mine / "books" / "packed.txt.gz").write_bytes(gzip.compress((ENGLISH * 50).encode()))
    (mine / "books" / "chinese.md").write_text(f"# 铁\n\n{CHINESE * 9}")
    (mine / "books" / "empty.txt").touch()
    (mine / "books" / "latin.txt").write_bytes("Der Ofen glüht. ".encode("latin-1") * 9)
    (mine / "books" / "short-latin.txt").write_bytes("Ofen glüht.".encode("latin-1"))
    (mine / "books" / "scan.pdf").write_bytes(b"%PDF-1.4\0\0")
    (mine / "books" / "log of a night").write_text(ENGLISH * 3)
    (mine / "programs" / "forge.py").write_text("def forge(iron):\n    return iron\n" * 20)
    (mine / "programs" / "core.bin").write_bytes(bytes(range(256)))
    records = [{"uid": f"n{n}", "title": "Iron", "artikel": CHINESE * 4 + str(n), "lang": "zh"} for n in range(30)]
    (mine / "web dump" / "crawl.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    table = pa.table({"url": [f"http://x/{n}" for n in range(9)], "content": [ENGLISH * 5 + str(n) for n in range(9)]})
    pq.write_table(table, mine / "web dump" / "pages.parquet")
    (mine / ".hidden.txt").write_text("not looked at")
    return mine


def found(folder: Path) -> dict[tuple[str, str], ScannedSource]:
    return {(source.group, source.format): source for source in scan_folder(folder).sources}


def test_subfolders_and_formats_become_sources(folder: Path):
    assert {key: len(source.files) for key, source in found(folder).items()} == {
        ("books", "text"): 9,
        ("books", "markdown"): 1,
        ("русский", "text"): 6,
        ("programs", "code"): 1,
        ("web dump", "jsonl"): 1,
        ("web dump", "parquet"): 1,
    }


def test_languages_fields_and_counts_are_reported(folder: Path):
    sources = found(folder)
    assert sources["books", "text"].languages.most_common(1)[0][0] == "en"
    assert sources["русский", "text"].languages.most_common(1)[0][0] == "ru"
    crawl, pages = sources["web dump", "jsonl"], sources["web dump", "parquet"]
    assert set(crawl.languages) == {"zh"}
    assert crawl.fields is not None
    assert (crawl.fields.text, crawl.fields.id) == ("artikel", "uid")
    assert (crawl.records.records, crawl.records.exact) == (30, True)
    assert pages.fields is not None
    assert (pages.fields.text, pages.fields.id, pages.records.records) == ("content", None, 9)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_the_text_of_compressed_tables_counts_as_it_is_read(tmp_path: Path, suffix: str):
    table = pa.table({"text": [f"{number:04} iron " * 100 for number in range(500)]})
    if suffix == "parquet":
        pq.write_table(table, tmp_path / "pages.parquet", compression="zstd")
    else:
        pyarrow.feather.write_feather(table, str(tmp_path / "pages.arrow"), compression="zstd")
    (source,) = scan_folder(tmp_path).sources
    assert source.stored_bytes < 100_000
    assert source.text_bytes == 500 * 100 * len("0000 iron ")


def test_a_share_of_unreadable_records_below_one_percent_is_not_called_none(tmp_path: Path):
    lines = [json.dumps({"text": f"{ENGLISH} {line}"}) for line in range(150)]
    (tmp_path / "broken.jsonl").write_text("\n".join(["{", *lines]))
    (tmp_path / "whole.jsonl").write_text("\n".join(lines))
    (remark,) = [one for one in scan_remarks(scan_folder(tmp_path)) if "cannot be read" in one]
    assert remark == "<1% of the records of jsonl that were looked at cannot be read."


@pytest.mark.parametrize(
    ("name", "header", "good", "bad"),
    [
        ("wide.csv", "id|text\n", f"7|{ENGLISH.replace(',', '')}\n", f"7|one, two and {ENGLISH}\n"),
        ("narrow.csv", "id,text\n", f'7,"{ENGLISH}"\n', "7\n"),
        ("null.jsonl", "", json.dumps({"text": ENGLISH}) + "\n", '{"text": null}\n'),
        ("other.jsonl", "", json.dumps({"text": ENGLISH}) + "\n", '{"body": "Iron."}\n'),
        ("blank.jsonl", "", json.dumps({"text": ENGLISH}) + "\n", '{"text": " "}\n'),
    ],
    ids=["wide", "narrow", "null", "other", "blank"],
)
def test_records_that_a_run_rejects_are_counted_as_lost(name: str, header: str, good: str, bad: str, tmp_path: Path):
    """One of five is lost, and a recipe allows for twice as much."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text(header + (4 * good + bad) * 10)
    scan = scan_folder(folder)
    assert scan.sources[0].bad_share == 0.2
    assert "20% of the records of" in " ".join(scan_remarks(scan))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(write_short_recipe(scan, "mine"))
    sample = load_recipe(recipe, tmp_path / "root").sample
    built = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="init"), sample).report.total()
    assert (built.documents_out, built.rejected) == (40, 10)


def test_a_table_none_of_whose_rows_can_be_read_is_named(tmp_path: Path):
    (tmp_path / "wide.csv").write_text("id|text\n" + "7|one, two, three\n" * 9)
    with pytest.raises(InputError, match="can be read as csv: row of 3 fields under a header of 1"):
        scan_folder(tmp_path)


def test_what_cannot_be_read_is_named_with_a_hint(folder: Path):
    survey = scan_folder(folder)
    hints = {bad.path.name: bad.hint for bad in survey.unreadable}
    assert hints.keys() == {"short-latin.txt", "scan.pdf", "core.bin"}
    assert "iconv" in hints["short-latin.txt"]
    assert "PDF" in hints["scan.pdf"]
    assert survey.empty == 1


def test_the_recipe_loads_and_its_sample_holds_every_document(folder: Path, tmp_path: Path):
    recipe = tmp_path / "recipe.toml"
    result = CliRunner().invoke(app, ["init", str(folder), "--output", str(recipe)])
    assert result.exit_code == 0, result.output
    assert f"bessemer run {recipe}" in result.output
    assert max(map(len, result.output.split("wrote")[0].splitlines())) <= 80
    loaded = load_recipe(recipe, tmp_path)
    sampled = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="init"), loaded.sample).report.total()
    assert sampled.documents_out == 9 + 1 + 6 + 1 + 30 + 9
    assert "source_ru" in {source.name for source in loaded.sample.sources}


def test_of_web_pages_the_text_counts_and_not_the_markup(tmp_path: Path):
    (tmp_path / "web").mkdir()
    for number in range(12):
        paragraphs = "".join(f"<p>{ENGLISH}{line} {number}</p>" for line in range(40))
        script = "<script>" + "let furnace = lit(1);" * 600 + "</script>"
        page = f"<!DOCTYPE html><html><head>{script}</head><body><article>{paragraphs}</article></body></html>"
        (tmp_path / "web" / f"{number}.html").write_text(page)
    (tmp_path / "plain.txt").write_text(ENGLISH * 12)
    scan = scan_folder(tmp_path)
    web, plain = (next(one for one in scan.sources if one.format == kind) for kind in ("html", "text"))
    # 3,400 of the 16,000 bytes of a page are text.
    assert 0.15 < web.text_share < 0.3
    assert plain.text_share == 1
    for text in (write_short_recipe(scan, "pages"), write_recipe(scan, "pages")):
        (tmp_path / "recipe.toml").write_text(text)
        recipe = load_recipe(tmp_path / "recipe.toml", tmp_path)
        assert recipe.sample.tokens_per_byte == {"web": float(f"{web.text_share / 3.5:.3g}")}
        share = next(source.weight for source in recipe.sample.sources if source.name == "web")
        assert share is not None
        assert abs(share - web.plain_bytes / (web.plain_bytes + plain.plain_bytes)) < 1e-4
        sampled = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="init"), recipe.sample).report.total()
        assert sampled.documents_out == 13, "sampling leaves none of them out"


def test_a_parquet_file_with_a_damaged_name_of_a_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ENGLISH * 9)
    pq.write_table(pa.table({"text": [ENGLISH], "other": [{"inner": 1}]}), tmp_path / "b.parquet")
    raw = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(raw.replace(b"inner", b"\xffnner", 1))
    (bad,) = scan_folder(tmp_path).unreadable
    assert (bad.path.name, bad.hint[:37]) == ("b.parquet", "cannot be read: 'utf-8' codec can't d")


def test_all_writes_every_key_and_without_it_only_what_follows_from_the_text(folder: Path, tmp_path: Path):
    for name, words in (("short.toml", []), ("all.toml", ["--all"])):
        done = CliRunner().invoke(app, ["init", str(folder), "--output", str(tmp_path / name), *words])
        assert done.exit_code == 0, done.output
    short, every = ((tmp_path / name).read_text() for name in ("short.toml", "all.toml"))
    assert len(short.splitlines()) < 90 < 400 < len(every.splitlines())
    assert load_recipe(tmp_path / "short.toml", tmp_path).train == load_recipe(tmp_path / "all.toml", tmp_path).train
    unread = " ".join(short.partition("Not read: ")[2].partition("`")[0].split())
    assert all(name in unread for name in ("books/scan.pdf", "books/short-latin.txt", "programs/core.bin"))


@pytest.mark.parametrize(
    ("units", "bytes_of_text", "dtype"),
    [("avx512_bf16", 12_000_000, "bfloat16"), ("avx512_bf16", 200_000, "float32"), ("none", 12_000_000, "float32")],
    ids=["units", "a-small-network", "no-units"],
)
def test_bfloat16_is_written_where_the_processor_has_units_for_it(
    units: str, bytes_of_text: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.inspection.recipe_writer.narrow_products", lambda environment: units)
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number}.txt").write_text(ENGLISH * (bytes_of_text // 20 // len(ENGLISH)))
    for write in (write_short_recipe, write_recipe):
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(write(scan_folder(text), "mine"))
        assert load_recipe(recipe, tmp_path).train.dtype == dtype


def test_what_may_surprise_is_said_with_what_to_do(tmp_path: Path):
    (tmp_path / "one.txt").write_text(ENGLISH * 9)
    remarks = " ".join(scan_remarks(scan_folder(tmp_path)))
    assert "too little to learn a language from" in remarks
    assert "There is one document, so none can be held out" in remarks
    assert "split -C" in remarks


def test_a_file_above_the_limit_of_a_document_is_read_whole(tmp_path: Path):
    with (tmp_path / "huge.txt").open("wb") as file:
        file.write((ENGLISH * 4_000).encode())
        file.truncate(70 * 1024**2)
    scan = scan_folder(tmp_path)
    assert "huge.txt is read as one document of more than" in " ".join(scan_remarks(scan))
    assert "max_file_bytes = 268435456" in write_short_recipe(scan, "huge")


@pytest.mark.parametrize("name", ["escape.zip", "escape.tar.gz", "broken.zip", "bomb.zip"])
def test_archives_write_nothing_outside_their_folder_and_damaged_ones_nothing_at_all(name: str, tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    if name == "escape.tar.gz":
        (tmp_path / "secret").write_text("not ours")
        with tarfile.open(folder / name, "w:gz") as archive:
            for member in ("../outside.txt", "/tmp/outside.txt", "inside.txt"):
                info = tarfile.TarInfo(member)
                info.size = len(ENGLISH)
                archive.addfile(info, io.BytesIO(ENGLISH.encode()))
            link = tarfile.TarInfo("link.txt")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
            archive.addfile(link)
    else:
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            if name != "broken.zip":
                archive.writestr("../outside.txt", ENGLISH)
            archive.writestr("inside.txt", ENGLISH)
    if name == "broken.zip":
        data = bytearray((folder / name).read_bytes())
        data[60:80] = bytes(20)
        (folder / name).write_bytes(bytes(data))
    if name in ("broken.zip", "bomb.zip"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unpack, "FREE_BYTES", -(10**9) if name == "bomb.zip" else 1 << 30)
            with pytest.raises(InputError, match=r"cannot be unpacked|would unpack to"):
                unpack.unpack_archives(folder)
        assert [path.name for path in folder.rglob("*") if path.is_file()] == [name]
        return
    (target,) = unpack.unpack_archives(folder)
    assert [path.name for path in target.rglob("*")] == ["inside.txt"]
    assert not (folder / "unpacked" / "outside.txt").exists()
    assert not (tmp_path / "outside.txt").exists()


@pytest.mark.parametrize("link", ["unpacked", "unpacked/mail"])
def test_an_archive_is_not_unpacked_through_a_link_out_of_its_folder(tmp_path: Path, link: str):
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    for place in (folder / "mail", elsewhere, (folder / link).parent):
        place.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to(elsewhere)
    with zipfile.ZipFile(folder / "mail" / "start.zip", "w") as archive:
        archive.writestr("run.desktop", ENGLISH)
    with pytest.raises(InputError, match="outside of"):
        unpack.unpack_archives(folder)
    assert list(elsewhere.iterdir()) == []


def test_every_default_in_a_comment_may_be_switched_on(folder: Path, tmp_path: Path):
    text = write_recipe(scan_folder(folder), "mine")
    switched = [line.removeprefix("# ") if _is_setting(line) else line for line in text.splitlines()]
    (tmp_path / "all.toml").write_text("\n".join(switched))
    (tmp_path / "plain.toml").write_text(text)
    plain = load_recipe(tmp_path / "plain.toml", tmp_path)
    assert load_recipe(tmp_path / "all.toml", tmp_path).clean == plain.clean
    assert sum(map(_is_setting, text.splitlines())) > 60


def test_each_setting_in_a_comment_may_be_switched_on_alone_and_words_are_distinguished(folder: Path, tmp_path: Path):
    lines = write_recipe(scan_folder(folder), "mine").splitlines()
    commented = [number for number, line in enumerate(lines) if line.startswith("#") and not line.startswith("##")]
    assert all(_is_setting(lines[number]) or "priority = 1" in lines[number] for number in commented)
    for number in commented:
        assert _loads([*lines[:number], lines[number].removeprefix("# "), *lines[number + 1 :]], tmp_path)


def test_each_example_of_a_key_without_a_default_is_accepted(folder: Path, tmp_path: Path):
    lines = write_recipe(scan_folder(folder), "mine").splitlines()
    examples = [number for number, line in enumerate(lines) if "for example: " in line]
    assert len(examples) == len(EXAMPLES)
    for number in examples:
        setting, _, instead = lines[number].partition("for example: ")[2].partition(", instead of ")
        replaced = {
            "": "no line",
            "vocab_size": "vocab_size =",
            "the weights of all sources": "weight =",
            "muon": 'kind = "muon"',
        }[instead]
        setting, _, beside = setting.partition(", beside ")
        needed = [index for index in examples if beside and f"for example: {beside} = " in lines[index]]
        kept = [*lines[:number], setting, *lines[number + 1 :]]
        for index in needed:
            kept[index] = lines[index].partition("for example: ")[2]
        assert bool(needed) == bool(beside)
        assert _loads([line for line in kept if not line.startswith(replaced)], tmp_path), setting


def _loads(lines: list[str], folder: Path) -> bool:
    (folder / "tried.toml").write_text("\n".join(lines))
    return load_recipe(folder / "tried.toml", folder).name == "mine"


def _is_setting(line: str) -> bool:
    key, equals, value = line.removeprefix("# ").partition(" = ")
    return line.startswith("# ") and bool(equals) and key.isidentifier() and bool(value) and key != "priority"


def test_a_recipe_is_not_overwritten_unless_forced(folder: Path, tmp_path: Path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("precious")
    refused = CliRunner().invoke(app, ["init", str(folder), "--output", str(recipe)])
    assert (refused.exit_code, recipe.read_text()) == (2, "precious")
    assert CliRunner().invoke(app, ["init", str(folder), "--output", str(recipe), "--force", "--json"]).exit_code == 0


def _nothing(folder: Path) -> Path:
    return folder / "nowhere"


def _no_file(folder: Path) -> Path:
    (folder / "bare").mkdir()
    return folder / "bare"


def _only_binaries(folder: Path) -> Path:
    for kind in ("a", "bin", "class", "o", "pyc", "so", "ttf"):
        (folder / f"noise.{kind}").write_bytes(bytes(100))
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_nothing, "does not exist"),
        (_no_file, "is empty"),
        (_only_binaries, r"nothing in it can be read \((noise\.\w+: [^;]*binary[^;]*(; )?){5}\)$"),
    ],
)
def test_folders_without_text_are_input_errors(tmp_path: Path, make: Callable[[Path], Path], message: str):
    with pytest.raises(InputError, match=message):
        scan_folder(make(tmp_path))


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"text": "a b", "id": 1}, {"text": "c", "id": 2}], ("text", "id")),
        ([{"prose": "long words here", "id": 1}, {"prose": "more", "id": 1}], ("prose", None)),
        ([{"text": "x", "html": "a very long page of many words"}], ("html", None)),
        ([{"n": 1}], (None, None)),
    ],
)
def test_the_text_is_the_longest_field_unless_its_name_says_so(
    records: list[dict[str, Any]], expected: tuple[Any, Any]
):
    fields = judge_fields(records)
    assert (fields.text, fields.id) == expected


def test_lines_of_a_big_file_are_estimated_from_its_beginning(tmp_path: Path):
    big = tmp_path / "big.jsonl.gz"
    lines = "".join(json.dumps({"text": f"{number:x}" * 40, "n": number**5}) + "\n" for number in range(200_000))
    big.write_bytes(gzip.compress(lines.encode(), 1))
    counted = count_records([StoredFile(big, "jsonl", "gzip", big.stat().st_size)])
    assert not counted.exact
    assert counted.records == pytest.approx(200_000, rel=0.25)


def test_lines_of_a_long_file_of_long_ones_are_not_counted_as_those_of_a_short_file(tmp_path: Path):
    files = []
    for name, text, number in (("long", ENGLISH * 90, 400), ("short", "lit", 20_000)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": f"{text}{n}"}) + "\n" for n in range(number)))
        files.append(StoredFile(path, "jsonl", None, path.stat().st_size))
    assert count_records(files).records == pytest.approx(20_400, rel=0.02)


@pytest.mark.parametrize("name", ["posts.jsonl", "posts.csv"])
def test_only_the_text_of_records_counts_as_text(name: str, tmp_path: Path):
    if name.endswith(".csv"):
        lines = ["body,other", *(f"{ENGLISH}{n},{'x' * 200}" for n in range(99))]
    else:
        lines = [json.dumps({"body": f"{ENGLISH}{n}", "other": ["x" * 200]}) for n in range(99)]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    (source,) = scan_folder(tmp_path).sources
    assert source.text_bytes == pytest.approx(99 * len(ENGLISH), rel=0.1)


def test_exports_of_a_wiki_and_records_of_wikitext_are_recognised(tmp_path: Path):
    markup = f"'''Iron''' is a [[metal]] of the [[forge]].\n== Use ==\n{ENGLISH}"
    pages = "".join(
        f"<page><title>{n}</title><ns>0</ns><id>{n}</id><revision><text>{markup}</text></revision></page>\n"
        for n in range(9)
    )
    (tmp_path / "wiki").mkdir()
    packed = bz2.compress(f'<mediawiki xml:lang="en">\n{pages}</mediawiki>'.encode())
    (tmp_path / "wiki" / "articles.xml.bz2").write_bytes(packed)
    (tmp_path / "lines").mkdir()
    lines = "".join(json.dumps({"text": f"{markup} {n}"}) + "\n" for n in range(9))
    (tmp_path / "lines" / "pages.jsonl").write_text(lines)
    sources = found(tmp_path)
    assert set(sources) == {("wiki", "mediawiki"), ("lines", "jsonl")}
    assert sources["wiki", "mediawiki"].records.records == 9
    assert sources["lines", "jsonl"].content == "wikitext"
    recipe = write_recipe(scan_folder(tmp_path), "wiki")
    assert 'format = "mediawiki"' in recipe
    assert 'content = "wikitext"' in recipe


def test_tables_with_other_columns_are_sources_of_their_own_and_their_rows_are_counted(tmp_path: Path):
    folder = tmp_path / "tables"
    folder.mkdir()
    for number in range(2):
        rows = "".join(f'{n};"{ENGLISH}\n{ENGLISH}{number}"\n' for n in range(30))
        (folder / f"comments-{number}.csv").write_text(f"\ufeffcomment;Comment Body\n{rows}")
    (folder / "reviews.2024.csv").write_text("id,review\n" + "".join(f"r{n},{ENGLISH}{n}\n" for n in range(20)))
    scan = scan_folder(folder)
    assert [(source.fields.text, source.records) for source in scan.sources if source.fields] == [
        ("Comment Body", RecordCount(60, True)),
        ("review", RecordCount(20, True)),
    ]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(write_short_recipe(scan, "tables"))
    sources = load_recipe(recipe, tmp_path / "root").sample.sources
    assert [source.name for source in sources] == ["csv", "reviews"]
    sampled = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="init"), load_recipe(recipe, tmp_path).sample)
    counts = sampled.report.sources
    assert {name: (of.documents_in, of.documents_out) for name, of in counts.items()} == {
        "csv": (60, 60),
        "reviews": (20, 20),
    }


def test_a_list_of_records_in_json_is_unpacked_as_a_record_a_line(tmp_path: Path):
    folder = tmp_path / "mine"
    folder.mkdir()
    records = [{"id": n, "page": {"title": "Iron", "body": f"{ENGLISH}{n}"}} for n in range(9)]
    (folder / "dump.json").write_text(json.dumps(records, indent=1))
    (folder / "settings.json").write_text('{"colour": "red"}')
    (folder / "notes.txt").write_text(ENGLISH)
    assert "init --unpack" in {bad.path.name: bad.hint for bad in scan_folder(folder).unreadable}["dump.json"]
    assert unpack.unpack_archives(folder) == [folder / "unpacked" / "dump"]
    lines = (folder / "unpacked" / "dump" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": n, "page.title": "Iron", "page.body": f"{ENGLISH}{n}"} for n in range(9)
    ]
    scan = scan_folder(folder)
    assert [bad.path.name for bad in scan.unreadable] == ["settings.json"], "what is unpacked is not called unread"
    assert [source.fields.text for source in scan.sources if source.fields] == ["page.body"]


def test_the_longest_list_in_a_json_object_is_unpacked_and_runs_of_a_text_are_joined(tmp_path: Path):
    runs = [["see ", {"type": "link", "text": "the forge"}, "."], "lit"]
    messages = [{"id": n, "text": runs[n], "tags": ["a", "b"]} for n in range(2)]
    (tmp_path / "result.json").write_text(json.dumps({"name": "chat", "actors": [{"n": 1}], "messages": messages}))
    (target,) = unpack.unpack_archives(tmp_path)
    lines = (target / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": 0, "text": "see the forge.", "tags": ["a", "b"]},
        {"id": 1, "text": "lit", "tags": ["a", "b"]},
    ]


def test_a_mailbox_is_unpacked_as_a_text_a_line_and_pages_of_html(tmp_path: Path):
    box = mailbox.mbox(tmp_path / "Sent.mbox")
    for number, (kind, encoding) in enumerate([("plain", "base64"), ("plain", "quoted-printable"), ("html", "8bit")]):
        message = EmailMessage()
        message["Message-ID"] = f"<{number}@forge>"
        message.set_content(f"From the forge: glühend.\n{ENGLISH * 3}\n", subtype=kind, cte=encoding)
        message.add_attachment("a,b\n" * 9, subtype="csv", filename="table.csv")
        box.add(message)
    box.add(b"Content-Type: text/plain; charset=nonsense\n\nplain\n")
    box.close()
    with pytest.raises(InputError, match="init --unpack"):
        scan_folder(tmp_path)
    (target,) = unpack.unpack_archives(tmp_path)
    lines = [json.loads(line) for line in (target / "messages.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["<0@forge>", "<1@forge>", ""]
    assert [line["text"].split(".")[0].strip() for line in lines] == ["From the forge: glühend"] * 2 + ["plain"]
    assert "glühend" in (target / "0.html").read_text()
    assert {(source.format, len(source.files)) for source in scan_folder(tmp_path).sources} == {
        ("jsonl", 1),
        ("html", 1),
    }


def test_mail_without_a_suffix_and_single_mails_are_unpacked_and_never_read_as_they_are(tmp_path: Path):
    box = mailbox.mbox(tmp_path / "Sent")
    message = EmailMessage()
    message["Message-ID"] = "<1@forge>"
    message.set_content(f"{ENGLISH}\n", cte="base64")
    box.add(message)
    box.close()
    (tmp_path / "one.eml").write_bytes(bytes(message))
    (tmp_path / "letter").write_text(f"From the forge, with love\nDear Ann: {ENGLISH}")
    scan = scan_folder(tmp_path)
    assert [file.path.name for source in scan.sources for file in source.files] == ["letter"]
    assert all("init --unpack" in bad.hint for bad in scan.unreadable)
    assert [target.name for target in unpack.unpack_archives(tmp_path)] == ["Sent", "one.eml"]
    for name in ("Sent", "one.eml"):
        (line,) = (tmp_path / "unpacked" / name / "messages.jsonl").read_text().splitlines()
        assert json.loads(line) == {"id": "<1@forge>", "text": f"{ENGLISH}\n"}
    assert scan_folder(tmp_path).unreadable == []


def test_a_notebook_is_unpacked_as_its_text_and_code(tmp_path: Path):
    cells = [
        {"cell_type": "markdown", "source": ["# Iron\n", "It glows."]},
        {"cell_type": "code", "source": "heat(iron)\n", "outputs": [{"data": {"image/png": "iVBORw0KGgo" * 99}}]},
        {"cell_type": "code", "source": []},
    ]
    notebook = {"cells": cells, "metadata": {"kernelspec": {"language": "julia"}}, "nbformat": 4}
    (tmp_path / "melt.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "old.ipynb").write_text(json.dumps({"worksheets": [], "nbformat": 3}))
    with pytest.raises(InputError, match=r"melt\.ipynb and 1 more \.ipynb: a notebook: `bessemer init --unpack`"):
        scan_folder(tmp_path)
    (target,) = unpack.unpack_archives(tmp_path)
    assert (target / "notebook.md").read_text() == "# Iron\nIt glows.\n\n```julia\nheat(iron)\n```\n"
    scan = scan_folder(tmp_path)
    assert [source.format for source in scan.sources] == ["markdown"]
    assert [bad.path.name for bad in scan.unreadable] == ["old.ipynb"]


def test_a_recipe_allows_for_files_like_the_unreadable_ones_that_were_looked_at(tmp_path: Path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:02}.txt").write_bytes(f"{number} {ENGLISH}".encode() + b"\x90\x81" * (number % 7 == 0))
    scan = scan_folder(folder)
    (source,) = scan.sources
    assert source.bad_share == pytest.approx(0.15, abs=0.05)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(write_short_recipe(scan, "mine"))
    sample = load_recipe(recipe, tmp_path / "root").sample
    built = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="init"), sample).report.total()
    assert (built.documents_out, built.rejected) == (85, 15 - len(scan.unreadable))


def test_sources_of_one_folder_skip_no_file_that_the_other_reads(tmp_path: Path):
    folder = tmp_path / "mine"
    for place in ("a", "a/b", ".", "c"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            (folder / place / f"{number}.txt").write_text(f"{place} {number} {ENGLISH}")
            (folder / place / f"{number}.md").write_text(f"# {place}\n\n{number} {ENGLISH}")
        (folder / place / "LICENSE").write_text(f"{place} {ENGLISH}")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(write_short_recipe(scan_folder(folder), "mine"))
    sample = load_recipe(recipe, tmp_path / "root").sample
    built = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="init"), sample)
    assert built.report.total().documents_out == 4 * 7
    assert {outcome for files in SampleResult.of(built.report).files.values() for outcome in files} == {
        "read",
        "of another source",
    }


@pytest.mark.parametrize(("text", "said"), [("ok", "too little for a run"), (ENGLISH * 9, "enough to try every stage")])
def test_little_text_is_called_so(text: str, said: str, tmp_path: Path):
    (tmp_path / "a.txt").write_text(text)
    assert said in scan_remarks(scan_folder(tmp_path))[0]


def test_what_unpacking_would_leave_compressed_is_called_so(tmp_path: Path):
    for name in ("box.mbox.gz", "Sent.gz", "all.tar.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"From a\nTo: b\n\nHi\n"))
    (tmp_path / "a.txt").write_text(ENGLISH)
    hints = {bad.path.name: bad.hint for bad in scan_folder(tmp_path).unreadable}
    assert hints["box.mbox.gz"].startswith("decompress it first; a mailbox")
    assert hints["Sent.gz"].startswith("decompress it first; a mailbox")
    assert hints["all.tar.gz"].startswith("an archive")


def test_a_mailbox_of_an_unknown_suffix_is_unpacked(tmp_path: Path):
    (tmp_path / "list.2001-01").write_text(f"From a@b Mon Jan  1 00:00:00 2001\nSubject: iron\n\n{ENGLISH * 9}\n")
    with pytest.raises(InputError, match="init --unpack"):
        scan_folder(tmp_path)
    (target,) = unpack.unpack_archives(tmp_path)
    assert json.loads((target / "messages.jsonl").read_text())["text"].startswith("The furnace")
    assert [source.format for source in scan_folder(tmp_path).sources] == ["jsonl"]


def test_the_chapters_of_a_book_are_unpacked(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "novel.epub", "w") as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr("OEBPS/content.opf", "<package/>")
        for number in range(3):
            book.writestr(f"OEBPS/{number}.xhtml", f"<html><body><p>{ENGLISH * 9}</p></body></html>")
    with pytest.raises(InputError, match=r"novel\.epub: EPUB: `bessemer init --unpack`"):
        scan_folder(tmp_path)
    unpack.unpack_archives(tmp_path)
    scan = scan_folder(tmp_path)
    assert [(source.format, len(source.files)) for source in scan.sources] == [("html", 3)]
    assert scan.unreadable == []


@pytest.mark.parametrize("notebook", ["[" * 100_000, '{"metadata": null, "cells": [{"cell_type": "raw"}]}'])
def test_a_damaged_notebook_does_not_end_the_unpacking_of_others(notebook: str, tmp_path: Path):
    (tmp_path / "a.ipynb").write_text(notebook)
    cell = {"cell_type": "markdown", "source": ["# Iron\n", ENGLISH]}
    (tmp_path / "b.ipynb").write_text(json.dumps({"metadata": None, "cells": [cell]}))
    assert unpack.unpack_archives(tmp_path) == [tmp_path / "unpacked" / "b.ipynb"]


def test_where_nothing_is_unpacked_no_folder_is_left(tmp_path: Path):
    settings = tmp_path / "a" / "b" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"furnace": "lit"}')
    assert unpack.unpack_archives(tmp_path) == []
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", settings.parent, settings]


@pytest.mark.parametrize("turn", [{"role": "user", "content": ENGLISH}, {"from": "human", "value": ENGLISH}])
def test_conversations_are_called_so(turn: dict[str, str], tmp_path: Path):
    (tmp_path / "talk.jsonl").write_text(f"{json.dumps({'model': 'gpt-of-others', 'turns': [turn]})}\n" * 9)
    with pytest.raises(InputError, match=r"talk\.jsonl: conversations: `bessemer model finetune`"):
        scan_folder(tmp_path)
    (tmp_path / "talk.jsonl").write_text(f"{json.dumps({'text': ENGLISH * 2, 'turns': [turn]})}\n" * 9)
    assert [source.fields.text for source in scan_folder(tmp_path).sources if source.fields] == ["text"]


def test_records_whose_text_is_in_another_field_are_sources_of_their_own(tmp_path: Path):
    """A field that some records lack makes no difference, and files whose first record is too long to compare stay."""
    for number, record in enumerate([{"a": ENGLISH}, {"a": ENGLISH, "n": 1}, {"a": ENGLISH * 999}, {"b": ENGLISH}]):
        (tmp_path / f"{number}.jsonl").write_text(f"{json.dumps(record)}\n" * 9)
    scan = scan_folder(tmp_path)
    assert [(len(source.files), source.fields.text) for source in scan.sources if source.fields] == [(3, "a"), (1, "b")]


@pytest.mark.parametrize(("size", "sources"), [(1_000, 1), (1_001_000, 11)])
def test_many_small_subfolders_are_one_source(size: int, sources: int, tmp_path: Path):
    for number in range(11):
        (tmp_path / f"paper{number}").mkdir()
        (tmp_path / f"paper{number}" / "a.txt").write_text((ENGLISH * (size // len(ENGLISH) + 1))[:size])
    assert len(scan_folder(tmp_path).sources) == sources


def test_json_under_another_suffix_is_no_text(tmp_path: Path):
    (tmp_path / "board.canvas").write_text('[\n {"nodes": []}\n]')
    (tmp_path / "set.txt2").write_text("{ a, b } is a set. " * 9)
    scan = scan_folder(tmp_path)
    assert [(bad.path.name, bad.hint[:4]) for bad in scan.unreadable] == [("board.canvas", "JSON")]
    assert len(scan.sources) == 1


def test_unpacking_says_where_to(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.srt").write_text(f"1\n00:00:01,000 --> 00:00:02,000\n{ENGLISH}\n")
    words = ["init", str(tmp_path / "mine"), "--output", str(tmp_path / "recipe.toml"), "--unpack"]
    assert f"unpacked 1 file into {tmp_path / 'mine' / 'unpacked'}\n" in CliRunner().invoke(app, words).stderr


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_the_amount_of_text_is_that_of_its_utf_8(encoding: str, tmp_path: Path):
    (tmp_path / "a.txt").write_text(ENGLISH * 20, encoding)
    assert scan_folder(tmp_path).sources[0].text_bytes == pytest.approx(len(ENGLISH) * 20, rel=0.01)


def test_rows_of_a_table_in_utf_16_are_counted(tmp_path: Path):
    rows = "".join(f"{number}\t{ENGLISH}\n" for number in range(7))
    (tmp_path / "excel.tsv").write_text("id\tcomment\n" + rows, encoding="utf-16")
    (source,) = scan_folder(tmp_path).sources
    assert source.records == RecordCount(7, True)


def test_lines_of_subtitles_that_are_one_sentence_are_joined():
    cues = ["He opened the", "door and", "- left.", "<i>Where is Ann?</i>", "At home,", "Bob said.", "Куда", "он"]
    srt = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{cue}\n\n" for n, cue in enumerate(cues))
    lines = "He opened the door and\n- left.\nWhere is Ann?\nAt home, Bob said.\nКуда\nон\n"
    assert convert.spoken(srt.encode()).decode() == lines


@pytest.mark.parametrize(
    ("subtitles", "said"),
    [
        ("WEBVTT\nKind: captions\nLanguage: en\n\n00:01.000 --> 00:02.000\nHello.\n", "Hello.\n"),
        ("WEBVTT\n00:01.000 --> 00:02.000\nHello.\n", "Hello.\n"),
        ("WEBVTT\nKind: captions", "\n"),
        (
            "\ufeffWEBVTT\n\nSTYLE\n::cue {\n  color: red }\n\nREGION\nid:a\n\nNOTE by Ann\n\nNOTE\nof\ntwo\n\nNOTES\n"
            "00:01.000 --> 00:02.000\nNOTE this.\n\nNOTE end",
            "NOTE this.\n",
        ),
        ("1\n00:00:01,000 --> 00:00:02,000\nHi.\n\nNOTE well.\n", "Hi.\nNOTE well.\n"),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nso<00:00:01.500><c> it</c><01:02.500> is\n", "so it is\n"),
        (
            "WEBVTT\n\n00:01.000 --> 00:02.000\n \nso<00:00:01.500><c> it</c>\n\n00:02.000 --> 00:02.010\nso it\n \n\n"
            "00:02.010 --> 00:03.000\nso it\nwas<00:02.500><c> lit</c>\n\n00:03.000 --> 00:03.010\nwas lit\n",
            "so it was lit\n",
        ),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nHi.\n\n00:02.000 --> 00:03.000\nHi.\n", "Hi.\nHi.\n"),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nHi there.\n00:02.000 --> 00:03.000\nYes.\n", "Hi there.\nYes.\n"),
        ("1\n00:00:01,000 --> 00:00:02,000\nHi.\n2\n00:00:02,000 --> 00:00:03,000\nYes.\n", "Hi.\nYes.\n"),
    ],
)
def test_subtitles_are_what_is_said_without_headers_and_notes(subtitles: str, said: str) -> None:
    assert convert.spoken(subtitles.encode()).decode() == said


def test_subtitles_are_unpacked_as_what_is_said_in_their_encoding(tmp_path: Path):
    srt = "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>Is it lit?</i>\r\n{\\an8}In 1900, glowing.\r\n\r\n"
    srt += "2\r\n00:00:03,000 --> 00:00:04,500\r\n7\r\n"
    vtt = "WEBVTT Kind: captions\n\n00:01.000 --> 00:02.000 align:start\n<v Ann>Glüht er?</v>\n\n"
    vtt += "last\n00:03.000 --> 00:04.000\nYes.\n"
    (tmp_path / "a.srt").write_bytes(srt.encode())
    (tmp_path / "a.vtt").write_bytes(vtt.encode("cp1252"))
    (tmp_path / "c.srt").write_bytes(srt.encode("utf-16"))
    found = {target.name: (target / "spoken.txt").read_bytes() for target in unpack.unpack_archives(tmp_path)}
    assert found == {
        "a.srt": b"Is it lit?\nIn 1900, glowing.\n7\n",
        "a.vtt": "Glüht er?\nYes.\n".encode("cp1252"),
        "c.srt": srt.encode("utf-16"),
    }


def test_folders_of_packages_are_no_text_of_ones_own(tmp_path: Path):
    mine = tmp_path / "mine"
    for name in ("docs", "docs/node_modules/pad", "node_modules"):
        (mine / name).mkdir(parents=True)
        (mine / name / "readme.md").write_text(ENGLISH * 20)
    (mine / "node_modules" / "damaged.zip").write_bytes(b"PK")
    assert unpack.unpack_archives(mine) == []
    (mine / "node_modules" / "damaged.zip").unlink()
    result = CliRunner().invoke(app, ["init", str(mine), "--output", str(tmp_path / "mine.toml"), "--json"])
    assert json.loads(result.stdout)["files_in_packages"] == {"node_modules": 2}
    recipe = load_recipe(tmp_path / "mine.toml", tmp_path)
    sample = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="run"), recipe.sample)
    assert SampleResult.of(sample.report).files == {"docs": {"excluded": 1, "read": 1}}


def test_files_that_are_alike_are_listed_in_one_line(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text(ENGLISH)
    for number in range(30):
        (tmp_path / "folder" / f"{number:02d}.png").write_bytes(bytes(range(256)))
    (tmp_path / "folder" / "README").write_bytes("Ofen glüht.".encode("latin-1"))
    (tmp_path / "folder" / "TODO").write_bytes("Glüht.".encode("latin-1"))
    words = ["init", str(tmp_path / "folder"), "--output", str(tmp_path / "recipe.toml")]
    shown = " ".join(CliRunner().invoke(app, words).output.split())
    assert (
        "not read 00.png and 29 more .png: a picture, sound or film not read README and 1 more: not UTF-8 (byte 7)"
        in shown
    )


def test_tables_with_long_cells_and_with_cells_beyond_the_header_are_read(tmp_path: Path):
    long = ENGLISH * 2000
    rows = f'1,"{long}"\n2,{ENGLISH},beside,the table\n'
    (tmp_path / "books.csv").write_text(f"id,book\n{rows}")
    scan = scan_folder(tmp_path)
    (source,) = scan.sources
    assert source.fields is not None
    assert (source.fields.text, source.fields.all) == ("book", ("id", "book"))
    assert source.records == RecordCount(2, True)
    assert "fields: id, book" in write_recipe(scan, "books")


def test_a_tar_that_is_damaged_within_is_named_and_leaves_nothing(tmp_path: Path):
    with tarfile.open(tmp_path / "texts.tar.xz", "w:xz") as archive:
        raw = bytes(hash((seed, "iron")) & 255 for seed in range(300_000))
        info = tarfile.TarInfo("inside.bin")
        info.size = len(raw)
        archive.addfile(info, io.BytesIO(raw))
    data = bytearray((tmp_path / "texts.tar.xz").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    (tmp_path / "texts.tar.xz").write_bytes(bytes(data))
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpack.unpack_archives(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["texts.tar.xz"]


@pytest.mark.parametrize("charset", ["klingon", "idna"])
def test_mail_in_a_character_set_that_cannot_be_read_is_taken_as_utf_8(charset: str, tmp_path: Path):
    head = f"Message-ID: <1@forge>\nContent-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n"
    (tmp_path / "one.eml").write_bytes(head.encode() + RUSSIAN.encode())
    unpack.unpack_archives(tmp_path)
    (line,) = (tmp_path / "unpacked" / "one.eml" / "messages.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == RUSSIAN


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The folder of a Llama of two blocks that reads up to 4,096 tokens."""
    write_published(tmp_path / "llama", LLAMA)
    (tmp_path / "llama" / "tokenizer.json").touch()
    return tmp_path / "llama"


def init_with_base(folder: Path, base: Path, recipe: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["init", str(folder), "--base-model", str(base), "--output", str(recipe), *words])


def test_a_base_model_is_trained_further_with_its_vocabulary_in_rows_of_a_thousand_tokens(
    folder: Path, published: Path, tmp_path: Path
):
    for name, words in (("short.toml", ()), ("all.toml", ("--all",))):
        done = init_with_base(folder, published, tmp_path / name, *words)
        assert done.exit_code == 0, done.output
        recipe = load_recipe(tmp_path / name, tmp_path)
        assert recipe.train.base_model == published
        assert recipe.train.schedule.peak_lr == 1e-4
        assert (recipe.vocab.base, recipe.vocab.embedding_rows) == (published / "tokenizer.json", 512)
        assert (recipe.train.model.context, recipe.train.model.width) == (1024, 16)
        assert (recipe.chunk.row_length, recipe.train.micro_batch_rows) == (1025, 1)
    short = tomllib.loads(re.sub(r"(?m)^# (?=\[evaluate|sources|max_rise)", "", (tmp_path / "short.toml").read_text()))
    assert [*short["evaluate"]["gate"]["sources"]] == [source["name"] for source in short["sources"]]
    assert short["evaluate"]["gate"]["max_rise"] == GateConfig(sources=("a",)).max_rise
    assert "Add text, megabytes at least." in " ".join(done.output.split()), "it continues a published model already"
    # Most texts are Chinese, for whose script the vocabulary can be extended.
    assert "# extend = { zh = 4000 }" in (tmp_path / "short.toml").read_text()


def test_a_base_model_with_a_table_of_positions_keeps_its_context(folder: Path, published: Path, tmp_path: Path):
    config = {"model_type": "gpt2", "vocab_size": 512, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 2048}
    write_published(published, config)
    # English, which the vocabulary is not extended for.
    assert init_with_base(folder / "programs", published, tmp_path / "it.toml").exit_code == 0
    assert "extend" not in (tmp_path / "it.toml").read_text()
    assert load_recipe(tmp_path / "it.toml", tmp_path).train.model.context == 2048
    shorter = load_recipe(tmp_path / "it.toml", tmp_path, ["train.model.context=1024"]).train.model
    with pytest.raises(RecipeError, match=r"has context = 2048, and this run asks for 1024"):
        check_compatible_architecture(published, network_in(published), shorter)


@pytest.mark.parametrize(
    ("file", "size", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("tokenizer.json", None, "vocabulary"),
        ("model.safetensors", None, "so it has no weights"),
        ("model.safetensors", 9_000, "is cut off"),
    ],
)
def test_a_base_model_that_is_none_is_refused_before_the_folder_is_read(
    file: str, size: int | None, message: str, folder: Path, published: Path, tmp_path: Path
):
    if size is None:
        (published / file).unlink()
    else:
        os.truncate(published / file, size)
    done = init_with_base(folder, published, tmp_path / "it.toml")
    assert done.exit_code == InputError.exit_code
    assert message in done.output
    assert not (tmp_path / "it.toml").exists()


def test_a_recipe_and_a_base_model_may_be_in_the_home_folder(
    folder: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A shell leaves `--output=~/recipe.toml` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    done = init_with_base(folder / "programs", Path("~") / published.name, Path("~/home.toml"))
    assert done.exit_code == 0, done.output
    assert load_recipe(tmp_path / "home.toml", tmp_path).train.base_model == published


def test_a_folder_that_does_not_exist_is_named_before_a_recipe_and_a_base_model_that_do(tmp_path: Path):
    (tmp_path / "recipe.toml").touch()
    done = init_with_base(tmp_path / "mine", tmp_path / "none", tmp_path / "recipe.toml", "--unpack")
    assert f"init {tmp_path / 'mine'}: does not exist" in done.output


def test_the_next_commands_quote_a_path_with_blanks(folder: Path, tmp_path: Path):
    done = CliRunner().invoke(app, ["init", str(folder), "--output", str(tmp_path / "my recipe.toml")])
    assert f"bessemer run '{tmp_path / 'my recipe.toml'}'" in done.output
