"""Batches are a function of position; what cannot be read is refused by name."""

from pathlib import Path

import numpy as np
import pytest

from model.data import SequenceReader
from model.errors import InputError
from model.schema import sequences_schema

TOKENS = np.arange(60).reshape(6, 10)


@pytest.fixture
def reader(tmp_path: Path, write_sequences, write_order) -> SequenceReader:
    parts = [
        write_sequences(tmp_path / "part-00000.arrow", TOKENS[:4], loss_start=[0, 1, 2, 3]),
        write_sequences(tmp_path / "part-00001.arrow", TOKENS[:0]),
        write_sequences(tmp_path / "part-00002.arrow", TOKENS[4:], loss_start=[4, 5]),
    ]
    return SequenceReader(parts, write_order(tmp_path / "order.arrow", [5, 0, 3, 4, 0]))


def test_rows_of_all_parts_come_in_order(reader: SequenceReader) -> None:
    assert (reader.positions, reader.row_length) == (5, 10)
    tokens, loss_start = reader.batch(0, 5)
    assert tokens.tolist() == TOKENS[[5, 0, 3, 4, 0]].tolist()
    assert loss_start.tolist() == [5, 0, 3, 4, 0]


def test_a_batch_depends_on_its_position_alone(reader: SequenceReader) -> None:
    alone = reader.batch(3, 4)[0]
    reader.batch(0, 2)
    assert reader.batch(3, 4)[0].tolist() == alone.tolist() == TOKENS[[4]].tolist()


def test_an_order_that_names_a_missing_row_is_refused(tmp_path: Path, write_sequences, write_order) -> None:
    part = write_sequences(tmp_path / "part.arrow", TOKENS)
    with pytest.raises(InputError, match="0 to 6, but the sequences hold 6"):
        SequenceReader([part], write_order(tmp_path / "order.arrow", [0, 6]))


def test_rows_of_two_lengths_are_refused(tmp_path: Path, write_sequences, write_order) -> None:
    parts = [write_sequences(tmp_path / f"{n}.arrow", np.ones((1, n))) for n in (4, 5)]
    with pytest.raises(InputError, match=r"rows of \[4, 5\] tokens"):
        SequenceReader(parts, write_order(tmp_path / "order.arrow", [0]))


def test_missing_and_broken_files_are_named(tmp_path: Path, write_order) -> None:
    order = write_order(tmp_path / "order.arrow", [0])
    with pytest.raises(InputError, match=r"no file .*absent\.arrow"):
        SequenceReader([tmp_path / "absent.arrow"], order)
    (tmp_path / "broken.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(InputError, match=r"broken\.arrow is no Arrow file"):
        SequenceReader([tmp_path / "broken.arrow"], order)


def test_token_ids_take_four_bytes_only_where_two_are_too_few() -> None:
    assert str(sequences_schema(5, 65_536).field("tokens").type.value_type) == "uint16"
    assert str(sequences_schema(5, 65_537).field("tokens").type.value_type) == "uint32"
