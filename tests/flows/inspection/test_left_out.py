"""Files of a folder that `init` names and does not read: links, pipes, what tools made, and tables without a header."""

import gzip
import json
import os
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.inspection.file_head import RecordCount
from flows.inspection.scan import NO_HEADER_HINT, scan_folder
from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS
from model.errors import InputError
from tasks.artifacts.build import RunContext
from tasks.artifacts.results import SampleResult

ENGLISH = "The furnace was lit before dawn and the iron ran white into the sand of the moulds. "


def test_links_that_lead_nowhere_and_pipes_are_named(tmp_path: Path):
    mine = tmp_path / "mine"
    (mine / "books").mkdir(parents=True)
    os.mkfifo(mine / "books" / "pipe.txt")
    (mine / "books" / "gone.txt").symlink_to("nowhere.txt")
    (mine / "books" / "turns.txt").symlink_to("turns.txt")
    (mine / "more").symlink_to("books")
    with pytest.raises(InputError, match=r"nothing in it can be read .*gone\.txt.*a link to nowhere\.txt"):
        scan_folder(mine)
    (mine / "books" / "read.txt").write_text(ENGLISH)
    (mine / "books" / "same.txt").symlink_to("read.txt")
    scan = scan_folder(mine)
    assert [len(source.files) for source in scan.sources] == [2], "a link to a file is read"
    assert {bad.path.name: bad.hint.partition(",")[0] for bad in scan.unreadable} == {
        "pipe.txt": "a FIFO",
        "gone.txt": "a link to nowhere.txt",
        "turns.txt": "a link to turns.txt",
        "more": "a link to a folder",
    }
    recipe = tmp_path / "mine.toml"
    assert CliRunner().invoke(app, ["init", str(mine), "--output", str(recipe)]).exit_code == 0
    sample = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="run"), load_recipe(recipe, tmp_path).sample)
    assert SampleResult.of(sample.report).files == {"books": {"excluded": 3, "read": 2}}


@pytest.mark.parametrize("tops", [1, 12], ids=["a-source-each", "one-source"])
def test_what_a_tool_made_of_a_project_is_no_text_of_ones_own(tops: int, tmp_path: Path):
    """Folders named build or dist without a project beside them hold text; more than ten small folders are one source,
    whose patterns begin at the scanned folder."""
    mine = tmp_path / "mine"
    files = ["forge/setup.py", "forge/src/a.py", "forge/build/lib/a.py", "forge/dist/b.py", "forge/src/f.egg-info/c.py"]
    files += ["guild/build/stone.py", "forge/poetry.lock", *(f"other{number}/d.py" for number in range(tops))]
    for name in files:
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(f"# {name}\n# {ENGLISH}\n")
    scan = scan_folder(mine)
    assert scan.installed == {"forge/build": 1, "forge/dist": 1, "*.egg-info": 1}
    assert [bad.path.name for bad in scan.unreadable] == ["poetry.lock"]
    recipe = tmp_path / "mine.toml"
    done = CliRunner().invoke(app, ["init", str(mine), "--output", str(recipe)])
    assert "1 file in forge/build: packages that were installed or made" in " ".join(done.output.split())
    sample = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="run"), load_recipe(recipe, tmp_path).sample)
    files_of = SampleResult.of(sample.report).files.values()
    assert sum(outcomes.get("excluded", 0) for outcomes in files_of) == 3
    assert sum(outcomes["read"] for outcomes in files_of) == 3 + tops


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("dated.tsv", [f"2020-01-{n + 1:02}\tRow {n} of the log: {ENGLISH}" for n in range(9)]),
        ("plain.csv", [f'"{ENGLISH}It took {"very " * n}long."' for n in range(9)]),
        ("labelled.csv", [f"{('pos', 'neg')[n % 2]},Good{' iron' * n}" for n in range(9)]),
        ("numbered.csv", [f"r{n + 1};Glow{' white' * n}" for n in range(9)]),
        ("chinese.tsv", [f"炉子就已经点着了，白热的铁水慢慢流进沙模。{'好' * n}\t人" for n in range(9)]),
    ],
)
def test_a_table_whose_first_row_is_a_record_is_named(name: str, rows: list[str], tmp_path: Path):
    (tmp_path / "notes.txt").write_text(ENGLISH)
    (tmp_path / name).write_text("\n".join(rows) + "\n")
    scan = scan_folder(tmp_path)
    assert [source.format for source in scan.sources] == ["text"]
    assert [(bad.path.name, bad.hint) for bad in scan.unreadable] == [(name, NO_HEADER_HINT)]


@pytest.mark.parametrize(
    "header",
    [
        "id,Review Text,full description",
        ",Review Text,",
        "1,2,3",
        "id,What did you like best about the course? Please explain.,date",
        "Participant number,Describe in your own words what you have learnt in this course so far.,When",
        "id,id,text",
    ],
)
def test_names_of_columns_are_no_record(header: str, tmp_path: Path):
    rows = [f'{n},"{ENGLISH}{n}",2020-01-{n + 1:02}' for n in range(9)]
    (tmp_path / "notes.txt").write_text(ENGLISH)
    twice = ["none of its first records can be read as csv: 2 columns are named `id`"] * header.startswith("id,id")
    for written in ([header, *rows, header, *rows], [header, *rows]):
        (tmp_path / "table.csv").write_text("\n".join(written) + "\n")
        assert [bad.hint for bad in scan_folder(tmp_path).unreadable] == twice


def test_folders_that_this_user_may_not_read_are_named():
    with tempfile.TemporaryDirectory() as name:
        mine = Path(name)
        mine.chmod(0o755)
        for inner in ("open", "closed"):
            (mine / inner).mkdir()
            (mine / inner / "a.txt").write_text("The lock waits in the morning, and the boats wait with it.\n")
        (mine / "closed").chmod(0)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)  # root may read everything
        try:
            scan = scan_folder(mine)
            with pytest.raises(InputError, match="may not read"):
                scan_folder(mine / "closed")
        finally:
            os.seteuid(before)
            (mine / "closed").chmod(0o700)
    assert [source.group for source in scan.sources] == ["open"]
    assert [(bad.path.name, bad.hint.partition(":")[0]) for bad in scan.unreadable] == [
        ("closed", "a folder that this user may not read")
    ]


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.warc.gz"])
def test_pages_of_a_crawl_are_counted_and_each_has_a_language(name: str, tmp_path: Path):
    """A crawl of several languages is no source in the language of its first page."""
    german = "Der Ofen wurde vor der Dämmerung angezündet, und das Eisen lief weiß in den Sand der Formen. "
    crawl = tmp_path / "mine" / "crawl"
    crawl.mkdir(parents=True)
    pages: list[bytes] = []
    for number in range(20):
        text = f"<html><body><p>{number} {(ENGLISH if number % 2 else german) * 5}</p></body></html>".encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + text
        head = f"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: {len(answer)}"
        pages.append(head.encode() + b"\r\n\r\n" + answer + b"\r\n\r\n")
    pages.append(b"WARC/1.0\r\nWARC-Type: request\r\nContent-Length: 4\r\n\r\nGET \r\n\r\n")
    packed = [gzip.compress(page) if name.endswith(".gz") else page for page in pages]
    (crawl / name).write_bytes(b"".join(packed))
    (source,) = scan_folder(tmp_path / "mine").sources
    assert (source.format, source.records) == ("warc", RecordCount(20, True))
    assert source.languages == {"en": 10, "de": 10}
    recipe = tmp_path / "mine.toml"
    assert CliRunner().invoke(app, ["init", str(tmp_path / "mine"), "--output", str(recipe)]).exit_code == 0
    assert load_recipe(recipe, tmp_path).sample.sources[0].language is None


@pytest.mark.parametrize("place", [".", "bessemer-data", "deep/data"])
def test_what_bessemer_made_is_no_text_of_ones_own(place: str, tmp_path: Path):
    mine = tmp_path / "mine"
    root = mine / place
    artifact, run = root / "artifacts" / "sample" / "0123", root / "runs" / "20261130T10"
    for folder in (artifact, run, root / "locks", mine / "texts" / "runs"):
        folder.mkdir(parents=True)
    (artifact / "manifest.json").write_text("{}")
    (artifact / "documents.arrow").write_bytes(b"ARROW1")
    (run / "run.json").write_text("{}")
    (run / "log.txt").write_text(ENGLISH)
    (root / "locks" / "lease.json").write_text('{"a": [{"text": "of a lease"}]}')
    (mine / "texts" / "runs" / "a.txt").write_text(ENGLISH)
    (mine / "texts" / "settings.toml").write_text("format = 1\n")
    (mine / "texts" / "mine.toml").write_text('format = 1\n[[sources]]\nname = "books"\npaths = ["books"]\n')
    before = sorted(mine.rglob("*"))
    recipe = tmp_path / "mine.toml"
    done = CliRunner().invoke(app, ["init", str(mine), "--output", str(recipe), "--unpack"])
    said = " ".join(done.output.split())
    assert sorted(mine.rglob("*")) == before, "no lease is unpacked"
    scan = scan_folder(mine)
    read = [file.path.name for source in scan.sources for file in source.files]
    assert sorted(read) == ["a.txt", "settings.toml"]
    assert scan.made == ({place: 5} if place != "." else {"artifacts": 2, "runs": 2, "locks": 1})
    assert "artifacts and runs of Bessemer" in said
    assert "texts/mine.toml: a recipe of Bessemer" in said
    sample = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="run"), load_recipe(recipe, tmp_path).sample)
    assert sum(outcomes["read"] for outcomes in SampleResult.of(sample.report).files.values()) == 2


def test_languages_that_alternate_are_both_found(tmp_path: Path):
    german = "Der Ofen wurde vor der Dämmerung angezündet, und das Eisen lief weiß in den Sand der Formen. "
    rows = "".join(json.dumps({"text": f"{n} {german if n % 2 else ENGLISH}"}) + "\n" for n in range(80))
    (tmp_path / "both.jsonl").write_text(rows)
    (source,) = scan_folder(tmp_path).sources
    assert source.languages.keys() == {"en", "de"}
    assert min(source.languages.values()) >= 15
