"""Compiled kernels: numba functions that release the GIL.

How they are compiled counts in the fingerprint of a stage's code as they do themselves; where the machine code is kept
(`tasks.common.kernel_cache`) does not.
"""

from collections.abc import Callable
from typing import Any

import numba

from tasks.common.kernel_cache import kept


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba (nopython, without the GIL), or load what was compiled of the same code."""
    return kept(numba.njit(nogil=True)(function))
