"""From a step to its documents, from a document to its outcome, and what differs within a pair of copies."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flows.metrics.stage_lines import open_artifacts
from flows.metrics.text_diff import ADDED, REMOVED, SAME
from flows.reports.page.examples import document_histories
from flows.reports.page.page import write_page
from flows.reports.page.sections import MAX_STEPS, OMITTED, _chosen, difference, duplicate_pairs, shown_steps
from flows.runs.document_history import histories_of


def test_steps_name_the_documents_that_they_read(made_run: Any) -> None:
    steps = shown_steps(open_artifacts(made_run.record))
    assert [step.step for step in steps] == list(range(10))
    first, fifth, last = steps[0], steps[5], steps[-1]
    # Rows 0 to 3 are of books 0 to 3; book 0 is held out and has no text there.
    assert (first.rows, first.count, first.loss) == (4, 4, 6.0)
    assert sorted(document["path"] for document in first.documents) == ["", *(f"books/{n}.txt" for n in (1, 2, 3))]
    assert {document["tokens"] for document in first.documents} == {16}
    assert [document["excerpt"] for document in first.documents if document["path"] == "books/1.txt"] == ["Text 1 of"]
    assert fifth.happened == "non-finite step"
    # Positions 36 to 39 are rows 36 to 39, of web 6, 7, 0 and 1.
    assert {document["source"] for document in last.documents} == {"web", ""}


@given(steps=st.integers(1, 500), happened=st.sets(st.integers(0, 600), max_size=60))
def test_few_steps_are_chosen_and_the_first_and_last_are_among_them(steps: int, happened: set[int]) -> None:
    import numpy as np

    chosen = _chosen(np.arange(steps), happened)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= MAX_STEPS
    assert {0, steps - 1} <= set(chosen)
    if len(happened & set(range(steps))) <= 12:
        assert happened & set(range(steps)) <= set(chosen)


def test_many_lives_are_those_reported_one_by_one(made_run: Any) -> None:
    artifacts = open_artifacts(made_run.record)
    ids = artifacts["sample"].table("documents").column("doc_id").to_pylist()
    together = histories_of(artifacts, ids, ended=True)
    assert together == [histories_of(artifacts, [doc_id], ended=True)[0] for doc_id in ids]
    fates = {life.path: life.outcome for life in together}
    assert fates["books/0.txt"] == "held out for evaluation in decontaminate by rule `held_out`"
    assert fates["web/12.txt"] == "dropped in dedup by rule `near_duplicate`"
    assert fates["books/2.txt"].startswith("trained in")


def test_the_page_says_the_outcome_of_the_documents_that_it_shows(
    made_run: Any, make: Callable[..., Any], tmp_path: Path
) -> None:
    page = write_page(made_run.folder, made_run.root).read_text()
    assert "outcome: dropped in clean by rule `gopher_words_min`" in page
    assert "<b>clean</b> drop by `gopher_words_min`, 12 against 50 (100 -&gt; 0 bytes)" in page
    assert 'data-step="5"' in page
    assert re.search(r'data-command="bessemer data step 20270115T080000Z-abcdef \{step\} --root [^"]+"', page)
    artifacts = open_artifacts(made_run.record)
    assert document_histories(made_run.record, {}, [b"x"]) == {}
    assert document_histories(made_run.record, artifacts, []) == {}
    early = make(tmp_path, until="clean", failed="dedup")
    reported = write_page(early.folder, early.root).read_text()
    assert "outcome: dropped in clean" in reported


def test_pairs_of_the_largest_cluster_come_first(made_run: Any) -> None:
    pairs = duplicate_pairs(open_artifacts(made_run.record))
    assert [(pair.documents, pair.removed["path"], pair.kept["path"]) for pair in pairs] == [
        (4, "web/10.txt", "web/2.txt"),
        (2, "web/12.txt", "books/3.txt"),
    ]
    kinds = [kind for kind, _ in pairs[0].parts]
    assert (REMOVED, "10") in pairs[0].parts
    assert (ADDED, "2") in pairs[0].parts
    assert set(kinds) <= {SAME, OMITTED, REMOVED, ADDED}


def test_a_difference_is_shown_among_the_words_around_it() -> None:
    assert difference("a red house", "a blue house") == [
        (SAME, "a "),
        (REMOVED, "red"),
        (ADDED, "blue"),
        (SAME, " house"),
    ]
    long = " ".join(f"w{number}" for number in range(100))
    parts = difference(f"{long} x", f"{long} y")
    assert [kind for kind, _ in parts] == [OMITTED, SAME, REMOVED, ADDED]
    assert parts[0][1] == "… 88 identical words …"
    assert "smith@example.org" not in str(difference("of smith@example.org", "of all"))


@given(st.text("ab \n", max_size=40), st.text("ab \n", max_size=40))
def test_a_difference_gives_back_both_texts(removed: str, kept: str) -> None:
    parts = difference(removed, kept)
    assert "".join(text for kind, text in parts if kind in (SAME, REMOVED)) == removed
    assert "".join(text for kind, text in parts if kind in (SAME, ADDED)) == kept
