"""The least that can be done to a part: what is left is the price of a part itself."""

import pyarrow as pa

from tasks.artifacts.tables.map_parts import PartResult


def copy_part(table: pa.Table, index: int) -> PartResult:
    """Return the part as it is."""
    del index
    return PartResult({"documents": table})
