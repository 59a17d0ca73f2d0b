"""Batches are a function of position; unreadable files are refused by name."""

from pathlib import Path

import numpy as np
import pytest

from model.data.dataset import SequenceReader, open_table
from model.data.row_format import RowFormat
from model.data.schema import sequences_schema
from model.errors import InputError

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
    rows = reader.rows(0, 5)
    assert rows.tokens_BL.tolist() == TOKENS[[5, 0, 3, 4, 0]].tolist()
    assert rows.loss_start_B.tolist() == [5, 0, 3, 4, 0]
    assert rows.row_B.tolist() == [5, 0, 3, 4, 0]
    assert rows.second_start_B is rows.is_next_B is reader.row_format is None


def test_rows_depend_on_their_position_alone(reader: SequenceReader) -> None:
    alone = reader.rows(3, 4).tokens_BL
    reader.rows(0, 2)
    assert reader.rows(3, 4).tokens_BL.tolist() == alone.tolist() == TOKENS[[4]].tolist()


def test_files_that_say_different_things_of_their_rows_are_refused(
    tmp_path: Path, write_sequences, write_order
) -> None:
    one = RowFormat(objective="causal_lm", tokenizer_digest="one", vocab_size=48, eos=2, pad=3)
    parts = [
        write_sequences(
            tmp_path / f"{name}.arrow", TOKENS, row_format=one.model_copy(update={"tokenizer_digest": name})
        )
        for name in ("one", "other")
    ]
    order = write_order(tmp_path / "order.arrow", [0])
    assert SequenceReader(parts[:1], order).row_format == one
    with pytest.raises(InputError, match=r"other\.arrow and .*one\.arrow have rows of different formats"):
        SequenceReader(parts, order)


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
    with pytest.raises(InputError, match=r"broken\.arrow is not an Arrow file"):
        SequenceReader([tmp_path / "broken.arrow"], order)
    # Of a changed byte in the footer, Arrow raises OSError, which would count as a failure of the machine.
    whole = order.read_bytes()
    (tmp_path / "broken.arrow").write_bytes(whole[:-14] + bytes(4) + whole[-10:])
    with pytest.raises(InputError, match=r"broken\.arrow is not an Arrow file"):
        open_table(tmp_path / "broken.arrow")


def test_token_ids_take_four_bytes_only_where_two_are_too_few() -> None:
    assert str(sequences_schema(5, 65_536).field("tokens").type.value_type) == "uint16"
    assert str(sequences_schema(5, 65_537).field("tokens").type.value_type) == "uint32"
