"""Compiled kernels: numba functions that release the GIL.

How kernels are compiled counts in the fingerprint of a stage's code, as the kernels themselves do; where the machine
code is cached (`model.kernel_cache`) does not.
"""

from collections.abc import Callable
from typing import Any

import numba

from model.kernel_cache import cached


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba (nopython, without the GIL), or load the machine code of the same code from the
    cache."""
    return cached(numba.njit(nogil=True)(function))


def inlined_kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call for each character, number or line, within each kernel that calls it.

    To pass an array costs numba more than the work on a character, and a tuple of 35 numbers a tenth of reading a line.
    """
    return numba.njit(nogil=True, inline="always")(function)
