"""What the first records of sources and benchmarks show to be wrong is said before anything runs, with the recipe's
line."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.check import check_recipe
from flows.planning.explain import forecast_stages
from flows.planning.preconditions import check_prerequisites
from flows.recipe.errors import line_of
from flows.recipe.load import find_recipe, load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from model.errors import BessemerError, InputError, RecipeError
from tasks.sample import discovery, first_records
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.first_records import find_mismatch

RECIPE = """\
name = "small"
budget_tokens = "40K"

[[sources]]
name = "good"
paths = ["{recipe}/good.jsonl"]
weight = 0.5

[[sources]]
name = "books"
paths = [
    "{recipe}/books",  # a folder
]
weight = 0.5
%s

[[benchmarks]]
name = "quiz"
path = "{recipe}/quiz.jsonl"
%s
"""
SOURCE_LINE, PATHS_LINE, OWN_LINE = 9, 11, 15
QUIZ = [{"id": number, "question": f"Is {number} odd?", "choices": ["yes", "no"], "answer": "no"} for number in (2, 4)]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def recipe(folder: Path, source: str = "", benchmark: str = "", settings: tuple[str, ...] = ()) -> Recipe:
    (folder / "good.jsonl").write_text(lines({"text": "one"}))
    (folder / "books").mkdir(exist_ok=True)
    if not (folder / "quiz.jsonl").exists():
        (folder / "quiz.jsonl").write_text(lines(*QUIZ))
    (folder / "small.toml").write_text(RECIPE % (source, benchmark))
    return load_recipe(folder / "small.toml", folder / "root", settings)


def refused(recipe: Recipe, folder: Path, kind: type[BessemerError], message: str) -> None:
    with pytest.raises(kind, match=message):
        forecast_stages(recipe, folder / "root")
    with pytest.raises(kind, match=message):
        check_prerequisites(recipe, STAGES)


def jsonl(folder: Path) -> None:
    (folder / "books" / "a.jsonl").write_text(lines({"title": "x", "body": "one"}, {"title": "y", "body": "two"}))


def csv(folder: Path) -> None:
    (folder / "books" / "a.csv").write_text("title,body\nx,one\n")


def parquet(folder: Path) -> None:
    pq.write_table(pa.table({"title": ["x"], "body": ["one"]}), folder / "books" / "a.parquet")


@pytest.mark.parametrize("write", [jsonl, csv, parquet])
@pytest.mark.parametrize(
    ("asked", "line", "message"),
    [
        ('text_field = "content"', OWN_LINE, "`content`.*title.*body.*Correct `text_field`"),
        ("", SOURCE_LINE, "`text`.*Correct `text_field`"),
        ('text_field = "body"\nid_field = "key"', OWN_LINE + 1, "`key`.*Correct `id_field`"),
    ],
)
def test_a_field_that_no_record_has_is_said_with_its_line(
    tmp_path: Path, write: Any, asked: str, line: int, message: str
) -> None:
    (tmp_path / "books").mkdir()
    write(tmp_path)
    place = rf"small\.toml, line {line}: sample: source `books`"
    refused(recipe(tmp_path, asked), tmp_path, RecipeError, f"{place}.*{message}")
    forecast_stages(recipe(tmp_path, 'text_field = "body"\nid_field = "title"'), tmp_path / "root")


def test_the_commands_exit_with_two_and_leave_no_run(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    jsonl(tmp_path)
    recipe(tmp_path, 'text_field = "content"')
    for command in ("plan", "run"):
        words = [command, str(tmp_path / "small.toml"), "--root", str(tmp_path / "root")]
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 2
        assert "line 15" in ended.output
    assert not (tmp_path / "root" / "runs").exists()


def test_a_setting_is_named_where_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    jsonl(tmp_path)
    given = recipe(tmp_path, 'text_field = "body"', settings=("sources.books.text_field=content",))
    refused(given, tmp_path, RecipeError, r"--set sources\.books\.text_field=content: sample")


def test_a_path_that_has_moved_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    jsonl(tmp_path)
    moved = recipe(tmp_path, 'text_field = "body"')
    (tmp_path / "books").rename(tmp_path / "elsewhere")
    place = rf"small\.toml, line {PATHS_LINE}: sample: source `books` asks for "
    refused(moved, tmp_path, InputError, f"{place}.*books does not exist")
    with pytest.raises(InputError, match=f"{place}.*books does not exist"):
        check_recipe(moved)
    given = recipe(tmp_path, 'text_field = "body"', settings=("sources.books.paths=['gone/*.txt']",))
    refused(
        given, tmp_path, InputError, r"--set sources\.books\.paths=.*: sample: .* asks for .*gone/\*\.txt, and no file"
    )
    for command in ("plan", "check", "run"):
        words = [command, str(tmp_path / "small.toml"), "--set", "sources.books.paths=['gone/*.txt']"]
        assert CliRunner().invoke(app, [*words, "--root", str(tmp_path / "root")]).exit_code == 3
    assert not (tmp_path / "root" / "runs").exists()


def test_an_empty_folder_is_said_with_its_line(tmp_path: Path) -> None:
    refused(recipe(tmp_path), tmp_path, InputError, rf"line {PATHS_LINE}: sample: source `books` is empty")


@pytest.mark.parametrize("field", ["thread_field", "id_field"])
def test_the_fields_of_messages_are_looked_for(tmp_path: Path, field: str) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.jsonl").write_text(lines({"text": "one", "id": "1", "thread_id": "1"}))
    forecast_stages(recipe(tmp_path, "[sources.thread]"), tmp_path / "root")
    asked = recipe(tmp_path, f'[sources.thread]\n{field} = "messages"')
    refused(asked, tmp_path, RecipeError, rf"line {OWN_LINE + 1}: .*`messages`.*Correct `thread\.{field}`")


def test_files_of_another_format_are_the_inputs_fault_unless_the_recipe_names_the_format(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.jsonl").write_text("title,text\nx,one\ny,two\n")
    refused(recipe(tmp_path), tmp_path, InputError, rf"line {PATHS_LINE}: .*none of the first 3 records.*broken JSON")
    asked = recipe(tmp_path, 'format = "jsonl"')
    refused(asked, tmp_path, RecipeError, rf"line {OWN_LINE}: .*as jsonl.*Correct `format`")
    ended = CliRunner().invoke(app, ["plan", str(tmp_path / "small.toml"), "--set", "sources.books.format=auto"])
    assert ended.exit_code == 3


@pytest.mark.parametrize(
    "raw",
    [
        lines({"body": "one"}, {"text": "one good record is enough"}),
        lines({"text": ""}, {"text": " "}),
        '{"text": "' + "x" * (first_records.MOST_BYTES + (2 << 20)),
    ],
)
def test_what_one_record_or_too_little_cannot_show_passes(tmp_path: Path, raw: str) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.jsonl").write_text(raw)
    forecast_stages(recipe(tmp_path), tmp_path / "root")


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ('fields = { context = "q" }', RecipeError, "line 20: .*none of the first 2 records.*`q`.*`fields.context`"),
        ('fields = { choices = "options" }', RecipeError, "line 20: .*`options`.*`fields.choices`"),
        ('fields = { answer = "gold" }', RecipeError, r"line 20: .*none of the first 2 items fits.*`gold`"),
        ('adapter = "winograd_wsc"', RecipeError, "line 17: .*none of the first 2 items fits"),
    ],
)
def test_a_field_map_that_cannot_fit_is_said_with_its_line(
    tmp_path: Path, asked: str, kind: type[BessemerError], message: str
) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("Text.\n")
    refused(recipe(tmp_path, benchmark=asked), tmp_path, kind, message)
    forecast_stages(recipe(tmp_path), tmp_path / "root")


def test_a_benchmark_of_another_format_is_the_inputs_fault(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("Text.\n")
    (tmp_path / "quiz.jsonl").write_text("question,answer\nx,y\n")
    refused(recipe(tmp_path), tmp_path, InputError, "line 19: .*quiz.jsonl is not JSON")
    (tmp_path / "quiz.jsonl").write_text(lines(*QUIZ, {"question": "?"}))
    refused(recipe(tmp_path), tmp_path, InputError, "line 19: .*line 3 of .*has no field")


class Counted(io.RawIOBase):
    """Counts the bytes that are read of a file."""

    read_bytes = 0

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._stream.read(len(buffer))
        Counted.read_bytes += len(block)
        buffer[: len(block)] = block
        return len(block)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.txt", "a.warc", "a.arrow"])
def test_of_a_huge_file_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import zlib

    with (tmp_path / name).open("wb") as stream:
        if name.endswith(".gz"):
            packer = zlib.compressobj(wbits=31)
            stream.write(packer.compress(b"\0" * (1 << 28)) + packer.flush())
        else:
            stream.truncate(100 << 30)
    opened = discovery.open_file
    monkeypatch.setattr(discovery, "open_file", lambda path: Counted(opened(path)))
    Counted.read_bytes = 0
    source = Source(name="s", paths=(str(tmp_path / name),), weight=1)
    (listing,) = find_files(SampleConfig(sources=(source,), budget_tokens=1))
    find_mismatch(listing)
    assert 0 < Counted.read_bytes < 8 << 20


def test_a_remote_source_is_looked_at_as_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec
    from fsspec.implementations.memory import MemoryFile

    files = fsspec.filesystem("memory")
    body = io.BytesIO()
    texts = [str(number) * 500 for number in range(40_000)]
    pq.write_table(pa.table({"body": texts, "text": texts}), body, row_group_size=1000, compression="none")
    files.pipe("/look/a.parquet", body.getvalue())
    files.pipe("/look/b.jsonl", lines({"body": "x" * 1000}).encode() * 20_000)
    read = 0
    whole = MemoryFile.read

    def counted(self: Any, *size: int) -> bytes:
        nonlocal read
        block = whole(self, *size)
        read += len(block)
        return block

    monkeypatch.setattr(MemoryFile, "read", counted)
    for name in ("a.parquet", "b.jsonl"):
        for field, fits in (("body", True), ("words", False)):
            read = 0
            source = Source(name="s", paths=(f"memory://look/{name}",), text_field=field, weight=1)
            (listing,) = find_files(SampleConfig(sources=(source,), budget_tokens=1))
            misfit = find_mismatch(listing)
            assert (misfit is None) == fits
            assert misfit is None or misfit.setting == "text_field"
            assert 0 < read < 8 << 20


def test_lines_are_those_on_which_a_value_begins() -> None:
    text = RECIPE % ('text_field = """\nbody"""\nthread = { id_field = "x" }', "")
    assert line_of(text, ("budget_tokens",)) == 2
    assert line_of(text, ("sources", 0)) == 4
    assert line_of(text, ("sources", 1, "paths")) == PATHS_LINE
    assert line_of(text, ("sources", 1, "text_field")) == OWN_LINE
    assert line_of(text, ("sources", 1, "thread", "id_field")) == OWN_LINE + 2
    assert line_of(text, ("benchmarks", 0)) == OWN_LINE + 4
    assert line_of(text, ("sources", 2)) is None


def test_a_recipe_that_is_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is a folder; name a TOML file"):
        find_recipe(str(tmp_path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_an_address_that_no_record_has_is_reported_and_one_that_some_lack_is_not(name: str, tmp_path: Path) -> None:
    def misfit(url_field: str, *links: str):
        rows = [{"text": "words", **({"link": link} if link else {})} for link in links]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if name == "a.csv":
            text = "text,link\n" + "".join(f"words,{link}\n" for link in links)
        (tmp_path / name).write_text(text)
        source = Source(name="s", paths=(str(tmp_path / name),), weight=1, url_field=url_field)
        (listing,) = find_files(SampleConfig(sources=(source,), budget_tokens=1))
        return find_mismatch(listing)

    assert misfit("link", "", "http://a.example") is None
    found = misfit("url", "", "http://a.example")
    assert found is not None
    assert found.setting == "url_field"
    assert found.problem == "none of the first 2 records of 1 file has an address in `url`"
    alone = misfit("url", "http://a.example")
    assert alone is not None
    assert alone.problem == "not even the first record of 1 file has an address in `url`"
