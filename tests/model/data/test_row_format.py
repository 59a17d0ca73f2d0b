"""The row format in the schema's metadata and back."""

import pyarrow as pa
import pytest

from model.data.row_format import KEY, RowFormat
from model.errors import InputError

FORMAT = RowFormat(
    objective="span_corruption", tokenizer_digest="ab", vocab_size=10, eos=1, pad=0, sentinels=(9, 8), special=(0, 1)
)


def test_it_comes_back_from_the_schema_of_a_file():
    schema = pa.schema([pa.field("row", pa.int64())], metadata=FORMAT.metadata())
    assert RowFormat.of(schema) == FORMAT
    assert RowFormat.of(schema.remove_metadata()) is None


def test_one_of_another_version_is_an_error():
    with pytest.raises(InputError, match="Build them again from chunk"):
        RowFormat.of(pa.schema([], metadata={KEY: b'{"objective": "guess"}'}))
