"""Checksummed records are read back as written, or not at all."""

import json
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.checksummed_json import (
    BrokenSeal,
    append_sealed_line,
    read_optionally_sealed,
    read_sealed,
    read_sealed_lines,
    seal,
    unseal,
    write_sealed,
)
from model.errors import IntegrityError

INNER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
VALUES = st.dictionaries(st.text(max_size=5).filter(lambda key: key != "digest"), INNER, max_size=4)
FORMS = st.sampled_from([None, 1])


@given(VALUES, FORMS)
def test_a_value_comes_back_and_its_file_is_json_with_the_digest_last(value: dict, indent: int | None) -> None:
    sealed = seal(value, indent=indent)
    assert json.loads(unseal(sealed)) == value
    plain = json.loads(sealed)
    assert list(plain)[-1] == "digest"
    assert {**plain} == {**value, "digest": plain["digest"]}


@given(VALUES, FORMS, st.data())
def test_cut_anywhere_it_is_refused(value: dict, indent: int | None, data: st.DataObject) -> None:
    sealed = seal(value, indent=indent)
    with pytest.raises(BrokenSeal):
        unseal(sealed[: data.draw(st.integers(0, len(sealed) - 1))])


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("value", [{}, {"rows": 100, "name": "part-00001.arrow", "text": "a\nb \udc80", "inner": {}}])
def test_every_other_value_of_every_byte_is_refused(value: dict, indent: int | None) -> None:
    sealed = seal(value, indent=indent)
    for at in range(len(sealed)):
        for byte in range(256):
            if byte != sealed[at]:
                with pytest.raises(BrokenSeal):
                    unseal(sealed[:at] + bytes([byte]) + sealed[at + 1 :])


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_sealed(path, {"rows": 100})
    assert read_sealed(path, "Make it again.") == {"rows": 100}
    path.write_bytes(path.read_bytes().replace(b"100", b"101"))
    with pytest.raises(
        IntegrityError,
        match=r"record\.json is damaged \(it does not end in the digest of its bytes, [0-9a-f]{32}\)\. Make it again\.",
    ):
        read_sealed(path, "Make it again.")
    path.write_text('{"rows": 100}')
    with pytest.raises(IntegrityError, match="it does not end in the digest"):
        read_sealed(path, "Make it again.")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_sealed(path, "Make it again.")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_that_people_may_write_is_refused_where_a_program_wrote_it_and_a_byte_changed(
    tmp_path: Path, indent: int | None
) -> None:
    path, sealed = tmp_path / "run.json", seal({"rows": 100}, indent=indent)
    for at in range(len(sealed)):
        for byte in {*range(0, 256, 51), sealed[at] ^ 1} - {sealed[at]}:
            path.write_bytes(sealed[:at] + bytes([byte]) + sealed[at + 1 :])
            with pytest.raises(IntegrityError, match=r"run\.json is damaged"):
                read_optionally_sealed(path, "")
    for by_hand in (b'{"rows": 100}', b'{"rows": 100,', b""):
        path.write_bytes(by_hand)
        assert read_optionally_sealed(path, "") == by_hand


def test_every_other_value_of_every_byte_of_a_file_of_lines_is_refused(tmp_path: Path) -> None:
    path, values = tmp_path / "lines.jsonl", [{"number": number} for number in range(3)]
    whole = b"".join(seal(value, indent=None) for value in values)
    path.write_bytes(whole)
    assert read_sealed_lines(path, "") == values
    for at in range(len(whole)):
        for byte in {*range(0, 256, 51), ord("\r"), whole[at] ^ 1} - {whole[at]}:
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            with pytest.raises(IntegrityError, match=r"lines\.jsonl, line [123], is damaged"):
                read_sealed_lines(path, "")


def test_a_file_of_lines_that_was_cut_ends_with_the_last_whole_line(tmp_path: Path) -> None:
    path, values = tmp_path / "lines.jsonl", [{"number": number} for number in range(3)]
    lines = [seal(value, indent=None) for value in values]
    assert read_sealed_lines(path, "") == []
    for size in range(len(lines[2])):
        path.write_bytes(lines[0] + lines[1] + lines[2][:size])
        assert read_sealed_lines(path, "") == values[:2]


def test_a_line_of_which_the_disk_takes_a_part_is_an_error_and_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_sealed_line(path, {"number": 1})
    whole, (most, limit) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    # As of a disk that is filling up, the first call writes ten bytes, and the next one fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limit))
    try:
        with pytest.raises(OSError, match="too large"):
            append_sealed_line(path, {"number": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit))
    assert path.read_bytes() == whole
    append_sealed_line(path, {"number": 3})
    assert read_sealed_lines(path, "") == [{"number": 1}, {"number": 3}]
