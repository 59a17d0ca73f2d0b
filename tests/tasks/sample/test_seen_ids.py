"""Ids that were seen are known, whatever run they have come to lie in."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.sample import sampler as seen_ids
from tasks.sample.sampler import SeenIds

ids = st.binary(min_size=16, max_size=16) | st.integers(0, 40).map(lambda number: number.to_bytes(16, "little"))


@given(st.lists(ids, max_size=80), st.lists(ids, max_size=20))
def test_exactly_what_was_added_is_contained(added, others):
    before, seen_ids.IDS_IN_A_RUN = seen_ids.IDS_IN_A_RUN, 4
    try:
        seen = SeenIds()
        seen.update(added)
        assert all(doc_id in seen for doc_id in added)
        assert [doc_id in seen for doc_id in others] == [doc_id in set(added) for doc_id in others]
    finally:
        seen_ids.IDS_IN_A_RUN = before


def test_an_id_takes_sixteen_bytes_and_runs_stay_few():
    seen = SeenIds()
    seen.update(number.to_bytes(16, "big") for number in range(300_000))
    assert len(seen._runs) <= 8
    assert sum(run.nbytes for run in seen._runs) <= 16 * 300_000
