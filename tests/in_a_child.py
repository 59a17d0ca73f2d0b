"""Calls of functions in forks of this process, which may be killed in them."""

import os
from collections.abc import Callable


def in_a_child(function: Callable[..., object], *words: object) -> int:
    """Call a function in a child; return how that ended, as `os.waitpid` does: 0 where the function returned.

    fsspec's thread does not survive a fork: the process that calls this must not ask a store itself.
    """
    child = os.fork()
    if child == 0:
        try:
            function(*words)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]
