"""Counts must balance, parts add up, and the ledger keeps evidence short."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Bug
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.ledger import DROP, LedgerRows, clip_bytes
from tasks.artifacts.tables.schema import LEDGER
from tasks.common.numeric import seed64, unit_interval


def report_of(documents_in: int, documents_out: int, dropped: int) -> StageReport:
    report = StageReport()
    counts = report.source("books")
    counts.documents_in, counts.documents_out, counts.dropped = documents_in, documents_out, Counter(short=dropped)
    return report


def test_a_document_without_an_outcome_is_a_bug_that_names_the_source() -> None:
    report_of(10, 7, 3).check_conservation("clean")
    with pytest.raises(Bug, match="source `books`: 10 documents were read and 9 have a recorded outcome"):
        report_of(10, 7, 2).check_conservation("clean")


def test_parts_add_up_whatever_their_sources() -> None:
    merged = StageReport.merged([report_of(10, 7, 3), report_of(5, 5, 0), StageReport()])
    assert merged.total().documents_in == 15
    assert merged.sources["books"].dropped == {"short": 3}


def test_every_count_of_parts_adds_up() -> None:
    one, other = StageReport(), StageReport()
    one.source("books").edited, other.source("books").edited = Counter(emoji=2), Counter(emoji=3, html=1)
    names = ("documents_in", "documents_out", "bytes_in", "bytes_out")
    names += ("not_selected", "rejected", "held_out", "pieces_out")
    for number, name in enumerate(names):
        assert getattr(StageReport().source("books"), name) == 0
        setattr(one.source("books"), name, 10 + number)
        setattr(other.source("books"), name, 100)
    merged = StageReport.merged([one, other]).sources["books"]
    assert [getattr(merged, name) for name in names] == list(range(110, 118))
    assert merged.edited == {"emoji": 5, "html": 1}


def test_number_facts_of_parts_add_up() -> None:
    left, right = StageReport(), StageReport()
    left.facts["n"], right.facts["n"] = {"a": 1}, {"a": 2, "b": 5}
    assert StageReport.merged([left, right]).facts == {"n": {"a": 3, "b": 5}}


def test_report_survives_json() -> None:
    report = report_of(10, 7, 3)
    assert StageReport.from_json(report.to_json()).to_json() == report.to_json()


@given(st.text(alphabet=st.characters()), st.integers(0, 30))
def test_clipped_text_is_a_prefix_that_fits(text: str, limit: int) -> None:
    clipped = clip_bytes(text, limit)
    assert len(clipped.encode()) <= limit
    assert text.encode("utf-8", "replace").decode("utf-8").startswith(clipped) or "�" in clipped


def test_evidence_is_cut_at_200_bytes_between_characters() -> None:
    rows = LedgerRows("clean")
    rows.add(doc_id=b"0" * 16, action=DROP, rule="r", bytes_in=1, bytes_out=0, evidence="字" * 100)
    table = rows.table()
    assert table.schema == LEDGER
    assert table.column("evidence").to_pylist() == ["字" * 66]


def test_seeds_differ_by_each_of_their_names() -> None:
    seeds = {
        seed64(1, "sample", "select"),
        seed64(2, "sample", "select"),
        seed64(1, "clean", "select"),
        seed64(1, "sample", "order"),
        seed64(1, "sample", "select", "books"),
    }
    assert len(seeds) == 5


def test_a_higher_rate_only_adds_documents_and_rates_are_met() -> None:
    numbers = [unit_interval(str(i).encode(), 7) for i in range(10_000)]
    assert all(0 <= number < 1 for number in numbers)
    # 0.25 +- 4 standard deviations of sqrt(p(1-p)/n) = 0.0043
    assert abs(sum(number < 0.25 for number in numbers) / 10_000 - 0.25) < 0.018
