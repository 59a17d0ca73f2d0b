"""Text in lists and objects of records: it is named, and unpacked as one text a record."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.inspection.all_keys import write_recipe
from flows.inspection.fields import find_nested_text, joined_texts, name_of_texts
from flows.inspection.recipe_writer import scan_remarks, write_short_recipe
from flows.inspection.scan import scan_folder
from flows.inspection.unpack import unpack_archives
from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS
from model.errors import InputError
from tasks.artifacts.build import RunContext

ENGLISH = "The furnace was lit before dawn and the iron ran white into the sand of the moulds. "


def thread(number: int, text: str = "body") -> dict[str, Any]:
    """A thread of three posts, one a reply to the first; replies come before the text, as some exports write them."""
    reply = {"author": "ann", "replies": [], text: f"Reply {number}. {ENGLISH}"}
    first = {"replies": [reply], "tags": ["two words", "iron"], text: f"First {number}. {ENGLISH}"}
    posts = [first, {"type": "comment", text: f"Last {number}. {ENGLISH}"}]
    return {"thread_id": number, "title": f"About iron {number}", "posts": posts}


def texts_of(number: int) -> str:
    return "\n\n".join(f"{which} {number}. {ENGLISH}" for which in ("First", "Reply", "Last"))


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def test_a_list_that_holds_most_of_the_text_is_named_with_its_share(tmp_path: Path):
    write_lines(tmp_path / "threads.jsonl", [thread(number) for number in range(9)])
    scan = scan_folder(tmp_path)
    (source,) = scan.sources
    assert source.fields is not None
    assert source.fields.text == "title"
    (remark,) = [one for one in scan_remarks(scan) if "lists" in one]
    assert remark == (
        "Of jsonl, 96% of the text is in the field `posts`, in lists or objects, which are not read: `bessemer init"
        " --unpack` writes the text of each record in one field."
    ), "93 + 93 + 92 bytes of posts and 9 of the tag of two words, beside 12 of the title: 287 / 299"
    for recipe in (write_short_recipe(scan, "mine"), write_recipe(scan, "mine")):
        written = " ".join(line.removeprefix("##").removeprefix("#").strip() for line in recipe.splitlines())
        assert "96% of the text is in the field `posts`, in lists or objects, which are not read" in written


def test_a_field_of_lists_in_a_table_is_named_and_records_with_nothing_else_are_not_read(tmp_path: Path):
    rows = [{"name": "Iron", "paragraphs": [ENGLISH, ENGLISH]} for _ in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pages.parquet")
    assert "`paragraphs`, in lists or objects, which are not read: write the text" in " ".join(
        scan_remarks(scan_folder(tmp_path))
    )
    pq.write_table(pa.table({"paragraphs": [[ENGLISH]] * 9}), tmp_path / "pages.parquet")
    with pytest.raises(InputError, match=r"pages\.parquet: 100% of the text is in the field `paragraphs`"):
        scan_folder(tmp_path)


@pytest.mark.parametrize(
    "other",
    [{"links": ["https://example.org/page"] * 99}, {"notes": [ENGLISH]}, {"vector": [0.5] * 99}, {"page": None}],
    ids=["addresses", "as-much-as-the-text", "numbers", "nothing"],
)
def test_lists_without_most_of_the_text_are_not_named(other: dict[str, Any]):
    assert find_nested_text([{"text": ENGLISH, **other}] * 9) is None


@pytest.mark.parametrize("name", ["forum.jsonl", "forum.json"])
@pytest.mark.parametrize("text", ["body", "text"])
def test_a_thread_is_unpacked_as_one_text(name: str, text: str, tmp_path: Path):
    mine = tmp_path / "mine"
    threads = [thread(number, text) for number in range(9)]
    write_lines(mine / "forum" / "other.jsonl", [{"posts": f"{ENGLISH} {number}"} for number in range(3)])
    if name.endswith(".json"):
        (mine / "forum" / name).write_text(json.dumps(threads))
    else:
        write_lines(mine / "forum" / name, threads)
    recipe = tmp_path / "mine.toml"
    done = CliRunner().invoke(app, ["init", str(mine), "--unpack", "--output", str(recipe)])
    assert done.exit_code == 0, done.output
    assert "not read" not in done.output
    (unpacked,) = mine.glob("unpacked/forum/*/records.jsonl")
    assert [json.loads(line) for line in unpacked.read_text().splitlines()] == [
        {"thread_id": n, "title": f"About iron {n}", "posts": texts_of(n)} for n in range(9)
    ]
    sample = BUILDERS["sample"](RunContext(tmp_path / "root", run_id="run"), load_recipe(recipe, tmp_path).sample)
    assert sample.report.total().documents_out == 9 + 3, "the threads are read once, from what was unpacked"
    assert sample.report.total().bytes_out == sum(len(texts_of(0)) for _ in range(9)) + 3 * (len(ENGLISH) + 2)


def test_json_lines_without_nested_text_and_conversations_are_not_unpacked(tmp_path: Path):
    turns = [{"role": "user", "content": ENGLISH}, {"role": "assistant", "content": ENGLISH}]
    write_lines(tmp_path / "talks.jsonl", [{"id": 1, "messages": turns}] * 9)
    write_lines(tmp_path / "plain.jsonl", [{"text": ENGLISH, "tags": ["two words"]}] * 9)
    (tmp_path / "talks.json").write_text(json.dumps([{"id": 1, "messages": turns}] * 9))
    assert unpack_archives(tmp_path) == [tmp_path / "unpacked" / "talks"]
    line, *_ = (tmp_path / "unpacked" / "talks" / "records.jsonl").read_text().splitlines()
    assert json.loads(line) == {"id": 1, "messages": turns}
    assert {bad.hint[:13] for bad in scan_folder(tmp_path).unreadable} == {"conversations"}


def test_lines_that_are_no_records_are_left_out_and_others_keep_their_order(tmp_path: Path):
    path = tmp_path / "forum.jsonl"
    write_lines(path, [{"n": n, "posts": [{"body": f"{n} {ENGLISH}"}]} for n in range(300)])
    path.write_bytes(b'\xef\xbb\xbf{"n": "cut\n\n' + path.read_bytes() + b"[" * 100_000)
    (target,) = unpack_archives(tmp_path)
    assert [json.loads(line) for line in (target / "records.jsonl").read_text().splitlines()] == [
        {"n": n, "posts": f"{n} {ENGLISH}"} for n in range(300)
    ]


def test_texts_are_joined_under_the_name_that_holds_most_or_a_customary_one():
    articles = [["One two.", "Three four."], []]
    assert name_of_texts(articles) is None
    assert joined_texts(articles[0], None) == "One two.\n\nThree four."
    posts = [{"html": f"<p>{ENGLISH}</p>", "text": ENGLISH, "by": "ann lee"}]
    assert name_of_texts([posts]) == "text"
    paragraphs = [{"by": "ann lee", "lines": ["One two.", ["Three four."]], "replies": [{"lines": ["Five six."]}]}]
    assert name_of_texts([paragraphs]) == "lines"
    assert joined_texts(paragraphs, "lines") == "One two.\n\nThree four.\n\nFive six."


def test_a_deep_chain_of_replies_is_joined():
    post: dict[str, Any] = {"body": "0"}
    for number in range(1, 5_000):
        post = {"replies": [post], "body": str(number)}
    assert joined_texts([post], "body").split("\n\n") == [str(number) for number in reversed(range(5_000))]
