"""Keep pyarrow from importing pandas, which takes 0.2 s and which nothing here uses."""

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def leave_out_pandas() -> None:
    """Have pyarrow make its first array of a list now, without pandas, which it would import for that."""
    refusing = _NoPandas()
    sys.meta_path.insert(0, refusing)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(refusing)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("pyarrow is to do without it")
