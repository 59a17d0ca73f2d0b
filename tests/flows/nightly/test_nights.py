"""What is new, and how often the text of a chain of nights was read: numbers to check in the head."""

from pathlib import Path

from flows.nightly.history import (
    BLOCKED,
    FAILED,
    NOTHING,
    PROMOTED,
    TOO_LITTLE,
    Night,
    chain_epochs,
    list_nights,
    new_files,
    taken_files,
)
from flows.nightly.terminal import describe_nightly_run
from model.checksummed_json import read_sealed, write_sealed


def a_night(run_id: str, state: str, began: float = 0.0, **files: str) -> Night:
    return Night(
        run_id, "r", state, began=began, files={"s": {f"{name}.txt": digest for name, digest in files.items()}}
    )


def test_files_of_nights_that_came_to_an_end_are_not_read_again() -> None:
    nights = [a_night("1", PROMOTED, a="A"), a_night("2", BLOCKED, b="B"), a_night("3", NOTHING, c="C")]
    found = {"s": {"a.txt": "A", "b.txt": "B", "c.txt": "C", "d.txt": "D"}}
    assert new_files(found, taken_files(nights)) == {"s": {"d.txt": "D"}}
    assert new_files({"s": {"a.txt": "A"}}, taken_files(nights)) == {}


def test_a_night_that_failed_or_waited_leaves_its_files_to_the_next() -> None:
    nights = [a_night("1", PROMOTED, a="A"), a_night("2", FAILED, b="B"), a_night("3", TOO_LITTLE, c="C")]
    found = {"s": {"a.txt": "A", "b.txt": "B", "c.txt": "C"}}
    assert new_files(found, taken_files(nights)) == {"s": {"b.txt": "B", "c.txt": "C"}}


def test_a_file_that_changed_is_new_and_so_is_a_source_that_came() -> None:
    taken = taken_files([a_night("1", PROMOTED, a="A", b="B"), a_night("2", PROMOTED, a="A2")])
    found = {"s": {"a.txt": "A2", "b.txt": "B2"}, "t": {"a.txt": "A2"}}
    assert new_files(found, taken) == {"s": {"b.txt": "B2"}, "t": {"a.txt": "A2"}}


def test_the_files_of_a_night_can_be_asked_for_again() -> None:
    nights = [a_night("1", PROMOTED, a="A"), a_night("2", BLOCKED, a="A2", b="B")]
    found = {"s": {"a.txt": "A2", "b.txt": "B"}}
    assert new_files(found, taken_files(nights)) == {}
    assert new_files(found, taken_files(nights, again=("2",))) == found


def test_epochs_are_counted_over_the_whole_chain() -> None:
    def night(run_id: str, epochs: float, tokens: int) -> Night:
        return Night(run_id, "r", PROMOTED, epochs={"s": epochs}, unique_tokens={"s": tokens})

    nights = [night("1", 1.0, 900), night("2", 4.0, 100), night("elsewhere", 9.0, 10**6)]
    assert chain_epochs(nights, ("1", "2")) == {"s": 1.3}
    assert chain_epochs(nights, ()) == {}


def test_nights_are_kept_in_their_order_under_names_that_later_versions_may_add_to(tmp_path: Path) -> None:
    a_night("z", PROMOTED, began=1.0, a="A").save(tmp_path)
    a_night("a", FAILED, began=2.0).save(tmp_path)
    file = tmp_path / "nights" / "a.json"
    write_sealed(file, {"of_a_later_version": 1, **read_sealed(file, "")})
    assert [(night.run_id, night.state) for night in list_nights(tmp_path)] == [("z", PROMOTED), ("a", FAILED)]


def test_a_notification_that_failed_is_not_called_sent() -> None:
    night = Night("1", "r", FAILED, "no disk", notified=["mail: failed after 3 attempts (TimeoutError)"])
    assert describe_nightly_run(night).splitlines() == [
        "nightly run 1: failed; no disk",
        "notification by mail: failed after 3 attempts (TimeoutError)",
    ]
