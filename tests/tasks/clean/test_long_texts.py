"""Books of more than 100,000 words are kept whole, and take as long per byte as short texts."""

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.artifacts.build import RunContext
from tasks.artifacts.tables.files import read_table
from tasks.clean.config import CleanConfig
from tasks.clean.pipeline import clean_part
from tasks.clean.stage import build_clean
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import InputFile
from tasks.sample.document_columns import DocumentColumns, document_id
from tasks.sample.readers.records import Record
from tasks.sample.stage import build_sample

WORDS = """the of and a to in he was that it his her with as had for she not at but be on they have him which were all
    from this said there been when one who would so what out up no more into could time about then them some
    like over old little house door night morning sea ship captain letter garden window river mountain summer
    winter furnace iron mould master hammer weights narrow book canal boats coal waiting lock voice shadow
    candle supper stranger"""


def book(words: int, seed: int = 0) -> str:
    """Sentences of 8 to 20 drawn words in paragraphs of five sentences."""
    generator = np.random.default_rng(seed)
    drawn = generator.choice(np.array(WORDS.split()), words).tolist()
    sentences, begin = [], 0
    while begin < words:
        length = int(generator.integers(8, 21))
        sentences.append(" ".join(drawn[begin : begin + length]).capitalize() + ".")
        begin += length
    return "\n\n".join(" ".join(sentences[at : at + 5]) for at in range(0, len(sentences), 5)) + "\n"


def test_a_book_of_120_000_words_is_kept_whole_by_the_default_preset(tmp_path: Path) -> None:
    text = book(120_000)
    assert len(text.split()) == 120_000
    (tmp_path / "book.txt").write_text(text)
    (tmp_path / "page.txt").write_text(book(300, seed=1))
    (tmp_path / "too_long.txt").write_text(book(240_000, seed=2))
    source = Source(name="s", paths=(str(tmp_path / "*.txt"),), weight=1, max_file_bytes=1_000_000)
    config = SampleConfig(sources=(source,), budget_tokens=10**9, part_bytes=64 * 1024, max_reject_share=0.5)
    context = RunContext(tmp_path / "root", "run")
    sample = build_sample(context, config)
    # A document longer than a part is a part; one longer than its source allows is rejected with its reason.
    assert max(read_table(path).num_rows for path in sample.files("documents")) == 1
    (reject,) = sample.table("rejects").to_pylist()
    assert (reject["path"], reject["reason"]) == ("too_long.txt", "larger than max_file_bytes (1000000)")
    assert sample.report.source("s").rejected == 1
    clean = build_clean(context, sample, CleanConfig())
    kept = {row["origin"]["path"]: row for row in clean.table("documents").to_pylist()}
    assert sorted(kept) == ["book.txt", "page.txt"]
    assert kept["book.txt"]["text"].split() == text.split()
    assert kept["book.txt"]["text_kind"] == "prose"


OPENINGS = (
    "<a ", "<!--", "[a](", "![](", "[[", "{{", "{|\n", "{% a", "<ref>", "<math>", "```\n", "$", "\\begin{a}",
    "/*", "--[[ a\n\n", "http://a", "a@b", "&a", "'''", "|a|b|\n", "\n",
)  # fmt: skip
"""What a document begins again and again, and never closes."""


@pytest.mark.parametrize("format", ["text", "html", "markdown", "wikitext", "code"])
def test_what_is_never_closed_is_not_followed_to_the_end_again_and_again(format: str) -> None:
    seconds_of(table_of("Words of a text.\n", format))
    slow = {}
    for opening in OPENINGS:
        # Read once these take 0.1 s; where each opening was followed to the end of its line, `[a](` took six seconds.
        seconds = seconds_of(table_of(opening * (200_000 // len(opening)), format))
        if seconds > 3:
            slow[opening] = seconds
    assert slow == {}


def test_time_grows_with_the_length_of_a_document_and_no_faster() -> None:
    def seconds(words: int) -> float:
        table = table_of(book(words), "text")
        return min(seconds_of(table) for _ in range(3))

    short, long = seconds(40_000), seconds(640_000)
    # Sixteen times the text; in the square of its length it would take 256 times as long.
    assert long < 40 * short, f"{long:.2f} s against {short:.3f} s"


def table_of(text: str, format: str) -> pa.Table:
    """A document of a file of this format."""
    columns, record = DocumentColumns(), Record(0, 0, text)
    source = Source(name="s", paths=("a.txt",), weight=1)
    file = InputFile("s", Path("a.txt"), "a.txt", format, None, 1)
    columns.add(document_id("s", "a.txt", 0, None), source, file, record, record.text.encode())
    return columns.table()


def seconds_of(table: pa.Table) -> float:
    """Processor time of cleaning it."""
    began = time.process_time()
    clean_part(CleanConfig(), table, 0)
    return time.process_time() - began


def test_the_lines_of_a_long_record_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": book(30_000, seed)}) + "\n" for seed in range(3)))
    source = Source(name="s", paths=(str(tmp_path / "a.jsonl"),), weight=1)
    config = SampleConfig(sources=(source,), budget_tokens=10**9, part_bytes=1024)
    sample = build_sample(RunContext(tmp_path / "root", "run"), config)
    texts = [text.as_py() for path in sample.files("documents") for text in read_table(path).column("text")]
    assert texts == [book(30_000, seed) for seed in range(3)]
