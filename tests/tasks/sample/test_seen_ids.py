"""Ids that were seen are known, whatever run they have come to lie in."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.sample import seen_ids
from tasks.sample.seen_ids import SeenIds, id_array

ids = st.binary(min_size=16, max_size=16) | st.integers(0, 40).map(lambda number: number.to_bytes(16, "little"))


@given(st.lists(ids, max_size=80), st.lists(ids, max_size=20))
def test_exactly_what_was_added_is_contained(added, others):
    before, seen_ids.IDS_IN_A_RUN = seen_ids.IDS_IN_A_RUN, 4
    try:
        seen = SeenIds()
        for doc_id in added:
            seen.add(doc_id)
        assert all(doc_id in seen for doc_id in added)
        assert [doc_id in seen for doc_id in others] == [doc_id in set(added) for doc_id in others]
    finally:
        seen_ids.IDS_IN_A_RUN = before


def test_an_id_takes_sixteen_bytes_and_runs_stay_few():
    seen = SeenIds()
    for number in range(300_000):
        seen.add(number.to_bytes(16, "big"))
    assert len(seen._runs) <= 8
    assert sum(run.nbytes for run in seen._runs) <= 16 * 300_000


@given(st.lists(st.lists(ids, max_size=20, unique=True), max_size=6))
def test_of_many_ids_those_that_were_contained_are_returned(groups):
    seen, known = SeenIds(), set()
    for group in groups:
        again = [doc_id.ljust(16, b"\0") for doc_id in seen.extend(id_array(group)).tolist()]
        assert sorted(again) == sorted(known & set(group))
        known |= set(group)
        assert all(doc_id in seen for doc_id in known)
