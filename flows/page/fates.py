"""What became of the documents that the page shows, as `bessemer why` tells it."""

from typing import Any

from flows.lives import lives_of
from flows.record import RUNNING, state_of
from flows.telling import event_words
from tasks.artifact import Artifact

MOST_BYTES = 4_000_000_000
"""Of documents: telling their lives means reading the tables of all, and the page is not worth more than seconds."""


def fates_of(record: dict[str, Any], artifacts: dict[str, Artifact], doc_ids: list[bytes]) -> dict[str, dict[str, Any]]:
    """Hexadecimal id -> `events` as (stage, words) in the order of the road, and the `fate`; empty for runs with more
    text than the page may read."""
    if "sample" not in artifacts or not doc_ids:
        return {}
    sizes = (file.bytes for file in artifacts["sample"].records if file.table == "documents")
    if sum(sizes) > MOST_BYTES:
        return {}
    lives = lives_of(artifacts, doc_ids, ended=state_of(record) != RUNNING)
    return {
        life.doc_id: {"events": [(event["stage"], event_words(event)) for event in life.events], "fate": life.fate}
        for life in lives
    }
