"""Repeated lines, paragraphs and passages: what is cut, what is kept, and that nothing is lost."""

import json
import random
from collections.abc import Callable, Sequence

import blake3
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.tables.columns import text_buffers
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.exact_lines import lines_of
from tasks.dedup.exact_substrings import BYTES_PER_WINDOW, repeated_substrings
from tasks.dedup.lsh import passes_within
from tasks.dedup.near_duplicates import DuplicateDecisions
from tasks.dedup.stage import build_dedup

MakeDocuments = Callable[[Sequence[Sequence[tuple[str, str]]]], Artifact]

LINES = DedupConfig(planted_pairs=0, repeated_lines="line", repeated_line_words=4)
PASSAGES = DedupConfig(planted_pairs=0, repeated_bytes=100)
COOKIES = "We use cookies, read more about them here.\n"


def prose(seed: int, words: int = 60) -> str:
    generator = random.Random(seed)
    return " ".join(f"w{generator.randrange(5000)}" for _ in range(words))


def texts_of(artifact: Artifact) -> list[str]:
    return artifact.table("documents").column("text").to_pylist()


def ledger_of(artifact: Artifact) -> list[dict]:
    rows = artifact.table("ledger").to_pylist()
    return [{**row, "evidence": json.loads(row["evidence"])} for row in rows]


def test_a_line_in_several_documents_is_kept_in_the_first(context: RunContext, make_documents: MakeDocuments) -> None:
    long, short = f"{prose(1, 90)}\n{COOKIES}end one\n", f"{COOKIES.upper()}{prose(2)}\nend one\n"
    documents = make_documents([[("web", short)], [("web", long)]])
    result = build_dedup(context, documents, LINES)
    assert texts_of(result) == [f"{prose(2)}\nend one\n", long], "the longer document is first; two words are too few"
    (row,) = ledger_of(result)
    kept = result.table("documents")
    assert (row["action"], row["rule"], row["value"]) == ("cut", "repeated_line", len(COOKIES))
    assert row["evidence"] == {"survivor": kept.column("doc_id")[1].as_py().hex(), "start": 0, "end": len(COOKIES)}
    assert (row["bytes_in"], row["bytes_out"]) == (len(short), len(short) - len(COOKIES))
    digests = [blake3.blake3(text.encode()).digest(length=16) for text in texts_of(result)]
    assert kept.column("text_digest").to_pylist() == digests
    counts = result.report.source("web")
    assert (counts.documents_out, counts.edited["cut"]) == (2, 1)
    assert counts.bytes_out == sum(len(text) for text in texts_of(result))


def test_paragraphs_are_runs_of_lines_between_blank_ones(context, make_documents) -> None:
    shared = "one two three\nfour five six\n\n"
    parts = [
        [
            ("web", f"{prose(1, 90)}\n\n{shared}"),
            ("web", f"{shared}{prose(2)}\n"),
            ("web", f"{prose(3)}\nfour five six\n\n"),
        ]
    ]
    config = LINES.model_copy(update={"repeated_lines": "paragraph"})
    result = build_dedup(context, make_documents(parts), config)
    assert texts_of(result) == [parts[0][0][1], f"{prose(2)}\n", parts[0][2][1]]


def test_lines_of_chinese_are_counted_in_characters() -> None:
    data, offsets = text_buffers(pa.array(["短行\n这一行有八个字\r\n\n最后"], pa.large_string()))
    _, _, starts, ends = lines_of(data, offsets, np.array([0]), LINES)
    assert [data[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True)] == [
        "这一行有八个字\r\n"
    ]


def test_a_document_of_repeated_lines_alone_is_dropped_and_one_that_represents_copies_is_kept_whole(
    context, make_documents
) -> None:
    first, second = prose(1), prose(2)
    whole = f"{first}\n{second}\n{prose(3)}\n"
    documents = make_documents(
        [[("web", whole), ("web", f"{first}\n\u3000\n{second}\n"), ("web", f"{second}\n"), ("web", f"{second}\n")]]
    )
    result = build_dedup(context, documents, LINES.model_copy(update={"threshold": 0.95}))
    assert texts_of(result) == [whole, f"{second}\n"]
    rules = [(row["rule"], row["evidence"].get("passages")) for row in ledger_of(result)]
    assert rules == [("nothing_of_its_own", 2), ("exact_duplicate", None)]
    assert result.table("index").column("doc_id").to_pylist() == result.table("documents").column("doc_id").to_pylist()
    result.report.check_conservation("dedup")


def test_a_document_that_keeps_what_another_rule_cuts_elsewhere_is_kept_whole(context, make_documents) -> None:
    """Its lines are of the first document in capitals, and the last one repeats a passage of it as it is written."""
    shared = prose(1, 40)
    first, second = f"{prose(2, 99)}\n{shared.upper()}\n{prose(3).upper()}\n", f"{shared}\n{prose(3)}\n"
    third = f"{prose(4, 9)} x{shared}y"
    config = LINES.model_copy(update={"repeated_bytes": 100})
    result = build_dedup(context, make_documents([[("web", first), ("web", second), ("web", third)]]), config)
    assert texts_of(result) == [first, second, f"{prose(4, 9)} xy"]
    (row,) = ledger_of(result)
    assert row["evidence"]["survivor"] == result.table("documents").column("doc_id")[1].as_py().hex()


def test_a_later_run_compares_with_the_whole_text_of_a_cut_document(context, make_documents) -> None:
    shared = "".join(f"{prose(seed, 20)}\n" for seed in range(5))
    cut = f"{shared}{prose(8, 30)}\n"
    old = build_dedup(context, make_documents([[("web", f"{shared}{prose(7, 200)}\n"), ("web", cut)]]), LINES)
    assert texts_of(old)[1] == f"{prose(8, 30)}\n"
    config = LINES.model_copy(update={"against": (str(old.path),)})
    new = build_dedup(context, make_documents([[("web", f"{cut}and more"), ("web", prose(9))]]), config)
    assert texts_of(new) == [prose(9)]
    assert ledger_of(new)[0]["rule"] == "near_duplicate_of_earlier"


def test_a_passage_is_cut_where_it_occurs_again(context, make_documents) -> None:
    passage = prose(5, 40)
    first = f"{prose(1, 90)} x{passage}y {prose(2)}"
    second = f"{prose(3)} u{passage}v {prose(4, 40)}"
    result = build_dedup(context, make_documents([[("web", second), ("web", first)]]), PASSAGES)
    assert texts_of(result) == [second.replace(passage, ""), first]
    (row,) = ledger_of(result)
    assert (row["rule"], row["value"], row["limit"]) == ("repeated_substring", len(passage), 100)
    assert row["evidence"]["survivor"] == result.table("documents").column("doc_id")[1].as_py().hex()


def test_passages_over_lines_are_cut_at_whole_lines(context, make_documents) -> None:
    lines = [prose(seed, 15) for seed in range(4)]
    first = "\n".join([prose(11, 80), "a " + lines[0], *lines[1:3], lines[3] + " b", prose(12)])
    second = "\n".join([prose(13), "c " + lines[0], *lines[1:3], lines[3] + " d", prose(14)])
    result = build_dedup(context, make_documents([[("web", first), ("web", second)]]), PASSAGES)
    assert texts_of(result) == [first, "\n".join([prose(13), "c " + lines[0], lines[3] + " d", prose(14)])]


def test_a_cut_names_the_document_that_keeps_its_beginning(context, make_documents) -> None:
    """Two passages of different documents follow each other; the first ends within a line, so that it is not cut."""
    of_first, of_second = prose(5, 40), prose(6, 60)
    first, second = f"{prose(1, 120)} a{of_first}\nb", f"{prose(2, 90)}\n{of_second}\nc"
    copy = f"{prose(3, 20)} d{of_first}\n{of_second}\ne"
    result = build_dedup(context, make_documents([[("web", first), ("web", second), ("web", copy)]]), PASSAGES)
    assert texts_of(result) == [first, second, copy.replace(f"{of_second}\n", "")]
    (row,) = ledger_of(result)
    assert row["evidence"]["survivor"] == result.table("documents").column("doc_id")[1].as_py().hex()


def test_passages_end_at_character_borders(context, make_documents) -> None:
    # The characters around the passage share their first two bytes, which belong to the run of equal bytes.
    passage = "".join(chr(0x4E00 + 37 * i) for i in range(60))
    first, second = prose(1, 90) + "一" + passage + "丁" + prose(2), prose(3) + "丂" + passage + "七" + prose(4)
    result = build_dedup(context, make_documents([[("web", first), ("web", second)]]), PASSAGES)
    assert texts_of(result) == [first, prose(3) + "丂" + "七" + prose(4)]


def test_ninety_nine_bytes_are_kept_and_a_hundred_are_cut(context, make_documents) -> None:
    passage = prose(5, 100)[:100]
    for length, kept in ((99, True), (100, False)):
        shared = passage[:length]
        second = f"{prose(3)}\x01{shared}\x02{prose(4)}"
        documents = make_documents([[("web", f"{prose(1, 90)}\x03{shared}\x04{prose(2)}"), ("web", second)]])
        result = build_dedup(context, documents, PASSAGES)
        assert (texts_of(result)[1] == second) == kept


def test_a_row_of_dashes_is_not_a_copy_of_itself(context, make_documents) -> None:
    text = prose(1) + "-" * 150 + prose(2)
    assert texts_of(build_dedup(context, make_documents([[("web", text)]]), PASSAGES)) == [text]
    passage = prose(3, 40)
    twice = f"{prose(1)} A{passage}B {prose(2)} C{passage}D {prose(4)}"
    (kept,) = texts_of(build_dedup(context, make_documents([[("web", twice)]]), PASSAGES))
    assert kept == f"{prose(1)} A{passage}B {prose(2)} CD {prose(4)}"


def by_suffix_array(texts: list[bytes], length: int) -> set[tuple[int, int]]:
    """(text, place) of the windows that occur before, in order of texts: neighbours in the sorted list of suffixes."""
    suffixes = sorted((text[place:], number, place) for number, text in enumerate(texts) for place in range(len(text)))
    found: set[tuple[int, int]] = set()
    group: list[tuple[int, int]] = []
    for (suffix, *_), (following, number, place) in zip([(b"", 0, 0), *suffixes], suffixes, strict=False):
        if suffix[:length] != following[:length] or len(following) < length:
            group = []
        if len(following) >= length:
            group.append((number, place))
            group.sort()
            head = group[0]
            found.update(window for window in group[1:] if window[0] != head[0] or window[1] >= head[1] + length)
    return found


class Texts(Corpus):
    """A corpus of texts in one part, without files."""

    def texts_of_part(self, part: int) -> pa.LargeStringArray:
        return pa.array(self.parts[part], pa.large_string())


def corpus_of(texts: list[str]) -> tuple[Corpus, DuplicateDecisions]:
    rows = len(texts)
    sizes = np.array([len(text.encode()) for text in texts], np.int64)
    nothing = np.zeros((rows, 16), np.uint8)
    corpus = Texts([texts], np.array([0, rows]), nothing, nothing, sizes, np.zeros(rows, np.int32), ["web"], [])  # pyright: ignore[reportArgumentType]
    stays, rank = np.full(rows, -1), np.arange(rows, dtype=np.uint32)
    return corpus, DuplicateDecisions(stays, np.zeros(rows, np.float32), np.zeros(rows, np.bool_), rank)


@given(st.lists(st.text("ab", max_size=60), min_size=1, max_size=6), st.sampled_from([1 << 10, 1 << 30]))
@settings(deadline=None, max_examples=100)
def test_what_is_cut_is_what_a_suffix_array_finds(texts: list[str], memory: int) -> None:
    length = 6
    corpus, decisions = corpus_of(texts)
    config = PASSAGES.model_copy(update={"repeated_bytes": length, "memory_bytes": memory})
    rows, starts, ends, firsts = repeated_substrings(corpus, decisions, config)
    cut = {(row, byte) for row, start, end in zip(rows, starts, ends, strict=True) for byte in range(start, end)}
    windows = by_suffix_array([text.encode() for text in texts], length)
    assert cut == {(number, byte) for number, place in windows for byte in range(place, place + length)}
    assert (firsts <= rows).all()


@given(st.lists(st.text("ab中é\n", max_size=80), min_size=1, max_size=6))
@settings(deadline=None, max_examples=100)
def test_cuts_are_text_without_a_second_copy(texts: list[str]) -> None:
    length = 6
    corpus, decisions = corpus_of(texts)
    config = PASSAGES.model_copy(update={"repeated_bytes": length})
    rows, starts, ends, _ = repeated_substrings(corpus, decisions, config)
    encoded = [text.encode() for text in texts]
    windows = by_suffix_array(encoded, length)
    repeated = {(number, byte) for number, place in windows for byte in range(place, place + length)}
    for row, start, end in zip(rows, starts, ends, strict=True):
        encoded[row][start:end].decode()
        assert end - start >= length
        assert {(row, byte) for byte in range(start, end)} <= repeated


def test_less_memory_means_more_passes() -> None:
    assert [passes_within(1000 * BYTES_PER_WINDOW, memory) for memory in (48_000, 47_999, 10_000)] == [1, 2, 8]


def test_lines_are_the_same_for_any_memory_and_threads(tmp_path, make_documents) -> None:
    generator = random.Random(1)
    lines = [prose(seed, 12) for seed in range(80)]
    documents = make_documents(
        [[("web", "\n".join(generator.choices(lines, k=20))) for _ in range(30)] for _ in range(3)]
    )
    contents = set()
    for memory, threads in ((1 << 18, 1), (1 << 20, 3), (1 << 30, 2)):
        context = RunContext(tmp_path / f"{memory}", "run")
        config = LINES.model_copy(update={"memory_bytes": memory, "threads": threads, "repeated_bytes": 100})
        config = config.model_copy(update={"wipe_out_limit": 1.0})
        contents.add(build_dedup(context, documents, config).content)
    assert len(contents) == 1
