"""The dedup stage as a whole: what is kept, the ledger, chains, threads, resume, drop-rate limit, recall."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flows.cli import app
from flows.reference import reference
from model.errors import Bug, GuardError, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.tables.columns import text_buffers
from tasks.artifacts.workspace import Workspace
from tasks.dedup import corpus, lsh
from tasks.dedup.config import DedupConfig
from tasks.dedup.minhash import signatures_of
from tasks.dedup.near_duplicates import NO_NODE, NO_REPRESENTATIVE, _resolve_block, set_similarity
from tasks.dedup.pipeline import deduplicate
from tasks.dedup.recall import near_copy, word_spans
from tasks.dedup.stage import build_dedup
from tasks.execution.executor import ThisProcess

MakeDocuments = Callable[[Sequence[Sequence[tuple[str, str]]]], Artifact]

QUIET = DedupConfig(planted_pairs=0)


def prose(seed: int, words: int = 120) -> str:
    generator = random.Random(seed)
    return " ".join(f"w{generator.randrange(5000)}" for _ in range(words))


def with_edits(text: str, *positions: int) -> str:
    words = text.split()
    for position in positions:
        words[position] = f"edit{position}"
    return " ".join(words)


def plain_shingles(text: str, width: int = 5) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + width]) for i in range(max(1, len(words) - width + 1))}


def plain_jaccard(first: str, second: str) -> float:
    a, b = plain_shingles(first), plain_shingles(second)
    return len(a & b) / len(a | b)


def texts_of(artifact: Artifact) -> list[str]:
    return artifact.table("documents").column("text").to_pylist()


def test_equal_texts_leave_one_and_the_ledger_names_it(context: RunContext, make_documents: MakeDocuments) -> None:
    documents = make_documents([[("web", prose(1)), ("web", prose(2))], [("web", prose(1))]])
    result = build_dedup(context, documents, QUIET)
    assert sorted(texts_of(result)) == sorted([prose(1), prose(2)])
    (row,) = result.table("ledger").to_pylist()
    kept = {text: doc.hex() for doc, text in zip(
        result.table("documents").column("doc_id").to_pylist(), texts_of(result), strict=True)}  # fmt: skip
    assert (row["action"], row["rule"], row["value"]) == ("drop", "exact_duplicate", 1.0)
    assert json.loads(row["evidence"]) == {"survivor": kept[prose(1)], "jaccard": 1.0}
    assert row["bytes_in"] == len(prose(1))
    assert row["bytes_out"] == 0
    assert result.report.source("web").dropped == {"exact_duplicate": 1}


@pytest.mark.parametrize(
    ("asked", "stays"),
    [
        ({"web": 1, "books": 2}, "web"),
        ({"web": 2, "books": 1}, "books"),
        ({"web": 1}, "web"),
        ({"books": 1}, "books"),
        ({"web": 2**70, "books": -(2**70)}, "books"),
    ],
)
def test_the_source_of_the_smaller_priority_stays_as_the_reference_says(
    context: RunContext, make_documents: MakeDocuments, asked: dict[str, int], stays: str
) -> None:
    (help_row,) = [line for line in reference(app).splitlines() if line.startswith("| `priority` |")]
    assert "the smaller number stays" in help_row
    assert "after all that have one" in help_row
    documents = make_documents([[("books", prose(1)), ("web", prose(1))]])
    result = build_dedup(context, documents, QUIET.model_copy(update={"priorities": asked}))
    assert result.table("documents").column("source").to_pylist() == [stays]


def test_of_two_near_copies_the_better_source_stays_then_the_longer(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    book, copy = prose(3), with_edits(prose(3), 60) + " and one more"
    documents = make_documents([[("web", copy), ("books", book)], [("web", prose(4)), ("web", prose(4) + " longer")]])
    result = build_dedup(context, documents, QUIET.model_copy(update={"priorities": {"books": 0, "web": 1}}))
    assert sorted(texts_of(result)) == sorted([book, prose(4) + " longer"])
    by_length = build_dedup(context, documents, QUIET)
    assert sorted(texts_of(by_length)) == sorted([copy, prose(4) + " longer"])
    for row in result.table("ledger").to_pylist():
        assert row["rule"] == "near_duplicate"
        assert row["limit"] == pytest.approx(0.8)
    values = sorted(row["value"] for row in result.table("ledger").to_pylist())
    expected = sorted([plain_jaccard(book, copy), plain_jaccard(prose(4), prose(4) + " longer")])
    assert values == pytest.approx(expected)


def test_a_chain_of_small_changes_cannot_pull_out_documents_far_from_every_kept_one(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    words = prose(5, 400).split()
    chain = []
    for link in range(12):
        changed = [f"x{i}" if i < link * 8 else word for i, word in enumerate(words)]
        chain.append(" ".join(changed) + " tail" * (12 - link))
    documents = make_documents([[("web", text) for text in chain]])
    kept = texts_of(build_dedup(context, documents, QUIET))
    assert 1 < len(kept) < len(chain)
    for text in set(chain) - set(kept):
        assert max(plain_jaccard(text, other) for other in kept) >= 0.8
    for index, text in enumerate(kept):
        assert all(plain_jaccard(text, other) < 0.8 for other in kept[:index])


def corpus_of_families(families: int, seed: int) -> list[list[tuple[str, str]]]:
    generator = random.Random(seed)
    texts = []
    for family in range(families):
        base = prose(1000 + family, generator.randrange(8, 150))
        texts.append(base)
        for _ in range(generator.randrange(4)):
            count = generator.randrange(0, 4)
            texts.append(with_edits(base, *generator.sample(range(len(base.split())), count)))
    generator.shuffle(texts)
    return [[(f"s{i % 3}", text) for i, text in enumerate(texts[start : start + 40])] for start in
            range(0, len(texts), 40)]  # fmt: skip


def greedy_reference(parts: list[list[tuple[str, str]]], artifact: Artifact, threshold: float) -> set[bytes]:
    """All pairs, no hashing: visit by (longer, smaller id) and drop against kept ones."""
    table = artifact.table("documents")
    rows = sorted(
        zip(table.column("doc_id").to_pylist(), table.column("text").to_pylist(), strict=True),
        key=lambda row: (-len(row[1].encode()), row[0]),
    )
    kept: list[tuple[bytes, str]] = []
    for doc_id, text in rows:
        if all(plain_jaccard(text, other) < threshold for _, other in kept):
            kept.append((doc_id, text))
    return {doc_id for doc_id, _ in kept}


def test_agrees_with_comparing_all_pairs_when_bands_miss_nothing(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    parts = corpus_of_families(40, seed=1)
    documents = make_documents(parts)
    sure = QUIET.model_copy(update={"bands": 64, "rows_per_band": 2})
    result = build_dedup(context, documents, sure)
    kept = set(result.table("documents").column("doc_id").to_pylist())
    assert kept == greedy_reference(parts, documents, 0.8)
    texts = {row["doc_id"]: row["text"] for row in documents.table("documents").to_pylist()}
    for row in result.table("ledger").to_pylist():
        survivor = bytes.fromhex(json.loads(row["evidence"])["survivor"])
        assert survivor in kept
        assert row["value"] == pytest.approx(plain_jaccard(texts[row["doc_id"]], texts[survivor]))


def test_a_copy_whose_similarity_is_the_threshold_is_removed(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    words = [f"w{number}" for number in range(104)]
    documents = make_documents([[("web", " ".join(words)), ("web", " ".join(words[:59]))]])
    sure = QUIET.model_copy(update={"threshold": 0.55, "bands": 64, "rows_per_band": 2})
    (row,) = build_dedup(context, documents, sure).table("ledger").to_pylist()
    assert (row["rule"], row["value"]) == ("near_duplicate", pytest.approx(55 / 100))


def test_the_same_bytes_for_any_number_of_threads(tmp_path, make_documents: MakeDocuments) -> None:
    documents = make_documents(corpus_of_families(30, seed=2))
    contents = []
    for threads in (1, 2, 5):
        context = RunContext(tmp_path / f"root{threads}", "run")
        config = DedupConfig(threads=threads, planted_pairs=20)
        contents.append(build_dedup(context, documents, config).content)
    assert len(set(contents)) == 1


def test_a_killed_build_goes_on_to_the_same_bytes(
    tmp_path, monkeypatch: pytest.MonkeyPatch, make_documents: MakeDocuments
) -> None:
    documents = make_documents(corpus_of_families(30, seed=3))
    whole = build_dedup(RunContext(tmp_path / "whole", "run"), documents, QUIET)

    class PowerCutError(Exception):
        pass

    def cut_after(limit: int):
        calls = {"count": 0}
        plain = Workspace.finished

        def finished(self: Workspace, unit: str):
            calls["count"] += 1
            if calls["count"] > limit:
                raise PowerCutError
            return plain(self, unit)

        return finished

    broken = RunContext(tmp_path / "broken", "run")
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "finished", cut_after(1))
        with pytest.raises(PowerCutError):
            build_dedup(broken, documents, QUIET)
    assert build_dedup(broken, documents, QUIET).content == whole.content


def test_a_source_that_would_be_wiped_out_stops_the_stage_unless_allowed(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    documents = make_documents([[("copies", prose(7))] * 120])
    with pytest.raises(GuardError, match="copies"):
        build_dedup(context, documents, QUIET)
    allowed = QUIET.model_copy(update={"wipe_out_overrides": {"copies": 1.0}})
    result = build_dedup(context, documents, allowed)
    assert len(texts_of(result)) == 1
    assert result.report.facts["clusters"] == {"count": 1, "largest": 120}


def test_empty_parts_and_empty_texts_pass_through(context: RunContext, make_documents: MakeDocuments) -> None:
    result = build_dedup(context, make_documents([[], [("web", ""), ("web", "!!!"), ("web", "...")], []]), QUIET)
    assert texts_of(result) == ["", "!!!", "..."]
    assert len(result.files("documents")) == 3


def test_copies_of_a_removed_text_name_the_document_that_stays(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    copy = with_edits(prose(3), 60)
    documents = make_documents([[("web", copy), ("web", copy)], [("books", prose(3))]])
    result = build_dedup(context, documents, QUIET.model_copy(update={"priorities": {"books": 0}}))
    (kept,) = result.table("documents").column("doc_id").to_pylist()
    rows = result.table("ledger").to_pylist()
    assert [row["rule"] for row in rows] == ["near_duplicate", "near_duplicate"]
    assert {json.loads(row["evidence"])["survivor"] for row in rows} == {kept.hex()}
    assert rows[0]["value"] == rows[1]["value"] == pytest.approx(plain_jaccard(copy, prose(3)))


def test_the_index_holds_the_signature_of_what_stays(context: RunContext, make_documents: MakeDocuments) -> None:
    one, two = prose(1, 400), prose(2, 400)
    parts = [[("web", one), ("web", one + " longer"), ("web", prose(3))], [("web", two)]]
    result = build_dedup(context, make_documents(parts), QUIET)
    index, kept = result.table("index"), result.table("documents")
    assert index.column("doc_id").to_pylist() == kept.column("doc_id").to_pylist()
    assert index.column("text_digest").to_pylist() == kept.column("text_digest").to_pylist()
    assert texts_of(result) == [one + " longer", prose(3), two]
    for text, signature in zip(texts_of(result), index.column("signature").to_pylist(), strict=True):
        if text == prose(3):
            assert len(text) < 4 * 448
            assert signature is None
            continue
        assert len(text) > 4 * 448
        expected = signatures_of(*text_buffers(pa.array([text], pa.large_string())), 5, 112, 1)
        assert signature == expected[0].tolist()


def test_recall_is_measured_on_injected_copies_that_never_reach_the_output(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    parts = [[("web", prose(part * 100 + i)) for i in range(60)] for part in range(2)]
    result = build_dedup(context, make_documents(parts), DedupConfig(planted_pairs=100))
    planted = result.report.facts["planted"]
    assert planted["planted"] == 100
    assert 33 <= planted["pairs"] <= 47
    assert planted["recall"] == planted["found"] / planted["pairs"]
    assert planted["low"] < planted["recall"] <= planted["high"]
    assert planted["recall"] > 0.9
    assert len(texts_of(result)) == 120
    assert [entry[2] for entry in planted["bins"]] == pytest.approx([20] * 5, abs=4)
    assert sum(entry[2] for entry in planted["bins"]) >= 95


def test_too_few_bands_show_as_low_measured_recall(context: RunContext, make_documents: MakeDocuments) -> None:
    documents = make_documents([[("web", prose(i)) for i in range(120)]])
    weak = build_dedup(context, documents, DedupConfig(bands=1, rows_per_band=24, planted_pairs=100))
    assert weak.report.facts["planted"]["recall"] < 0.5


@pytest.mark.parametrize("target", [0.5, 0.8, 0.99])
def test_injected_copies_have_the_similarity_they_aim_at(target: float) -> None:
    for seed in range(10):
        text = prose(seed, 600)
        copy, jaccard = near_copy(text, target, 5, np.random.Generator(np.random.PCG64(seed)))
        assert jaccard == pytest.approx(plain_jaccard(text, copy))
        assert jaccard == pytest.approx(target, abs=0.01)


def test_word_spans_cut_the_words_out() -> None:
    text = "Ein, zwei 三四 fünf!"
    assert [text[start:end] for start, end in word_spans(text)] == ["Ein", "zwei", "三", "四", "fünf"]


def test_pure_entry_reports_conservation(tmp_path, make_documents: MakeDocuments) -> None:
    documents = make_documents(corpus_of_families(20, seed=4))
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work")
    report = deduplicate(documents, QUIET, workspace, ThisProcess())
    report.check_conservation("dedup")
    total = report.total()
    assert total.documents_in == documents.rows("documents")
    assert total.documents_out + sum(total.dropped.values()) == total.documents_in


def test_no_documents_at_all_are_no_duplicates(context: RunContext, make_documents: MakeDocuments) -> None:
    assert texts_of(build_dedup(context, make_documents([[]]), QUIET)) == []
    cuts = DedupConfig(repeated_lines="line", repeated_bytes=100)
    assert build_dedup(context, make_documents([]), cuts).rows("documents") == 0


def test_a_set_ends_where_the_next_begins() -> None:
    #                 | 1 5 | 2 | 5 | 1 5 |
    sets = np.array([1, 5, 2, 5, 1, 5], np.uint64)
    assert set_similarity(sets, 0, 2, 2, 3) == 0.0
    assert set_similarity(sets, 2, 3, 0, 2) == 0.0
    assert set_similarity(sets, 0, 2, 3, 4) == 0.5
    assert set_similarity(sets, 0, 2, 4, 6) == 1.0


def test_copies_are_made_of_documents_of_400_to_12000_bytes(context: RunContext, make_documents: MakeDocuments) -> None:
    texts = [(prose(size, 3000))[:size] for size in (399, 400, 12_000, 12_001)]
    result = build_dedup(context, make_documents([[("web", text) for text in texts]]), DedupConfig(planted_pairs=9))
    assert result.report.facts["planted"]["planted"] == 2


def test_datasketch_signs_a_thousand_documents_of_every_build(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    few = build_dedup(context, make_documents([[("web", prose(1))], [("web", prose(2))]]), QUIET)
    assert few.report.facts["signed_by_datasketch"] == 2
    parts = [[("web", f"document {part} {number}") for number in range(401)] for part in range(3)]
    assert build_dedup(context, make_documents(parts), QUIET).report.facts["signed_by_datasketch"] == 1000


@pytest.mark.parametrize("place", [0, 5, 9])
def test_one_wrong_bit_in_one_signature_stops_the_build(
    context: RunContext, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    right = corpus.signatures_of

    def wrong(*arguments: object) -> np.ndarray:
        signatures = right(*arguments)
        signatures[place, 111] ^= np.uint32(1)
        return signatures

    monkeypatch.setattr(corpus, "signatures_of", wrong)
    documents = make_documents([[("web", prose(number)) for number in range(10)]])
    with pytest.raises(Bug, match=rf"value 111 of the MinHash signature of row {place} .*datasketch computes"):
        build_dedup(context, documents, QUIET)
    assert not list((context.root / "artifacts" / "dedup").glob("*/manifest.json"))


def test_digests_that_differ_in_their_last_byte_alone_are_others() -> None:
    digests = np.zeros((6, 16), np.uint8)
    digests[[1, 3], 15], digests[5, 0] = 1, 1
    ids, nothing = np.zeros((6, 16), np.uint8), np.zeros(6, np.int32)
    six = corpus.Corpus([], np.array([0, 6]), ids, digests, nothing.astype(np.int64), nothing, ["web"], [])
    # By rank: the documents 5, 4, 3, 2, 1, 0.
    found = lsh.exact_representatives(six, np.arange(6, dtype=np.uint32)[::-1].copy())
    assert found.tolist() == [0, 1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("module", "limit", "error"),
    [
        (corpus, "MOST_DOCUMENTS", r"has 3 documents and the runs of dedup\.against 0, and at most 1 can be compared"),
        (lsh, "MOST_BUCKETS", r"buckets of equal bands, and at most 1 can be numbered\. Raise dedup\.rows_per_band"),
    ],
)
def test_more_documents_or_buckets_than_have_a_number_are_refused(
    context: RunContext, make_documents: MakeDocuments, monkeypatch: pytest.MonkeyPatch, module, limit: str, error: str
) -> None:
    monkeypatch.setattr(module, limit, 1)
    documents = make_documents([[("web", prose(1)), ("web", with_edits(prose(1), 5)), ("web", prose(2))]])
    with pytest.raises(InputError, match=error):
        build_dedup(context, documents, QUIET)


def test_members_of_buckets_may_be_more_than_32_bits_can_number(tmp_path: Path) -> None:
    """Of three documents in one bucket the last is a copy of the second; holes in the files are the members before."""
    used = 2**32 - 1
    member, following = (
        np.asarray(np.memmap(tmp_path / kind.__name__, kind, "w+", shape=(used + 2,))) for kind in (np.uint32, np.int64)
    )
    sets, starts = np.array([1, 2, 3, 4, 3, 4], np.uint64), np.array([0, 2, 4, 6])
    representative, similarity = np.full(3, NO_REPRESENTATIVE), np.zeros(3)
    end = _resolve_block(
        0, np.zeros((3, 1), np.uint32), np.arange(3, dtype=np.uint32), 0, np.zeros((3, 1), np.uint32), sets, starts,
        0.8, 0, 64, np.full(1, NO_NODE), np.zeros(1, np.uint16), member, following, used,
        np.full(3, NO_REPRESENTATIVE), representative, similarity,
    )  # fmt: skip
    assert end == used + 2
    assert representative.tolist() == [NO_REPRESENTATIVE, NO_REPRESENTATIVE, 1]
    assert similarity.tolist() == [0, 0, 1]
