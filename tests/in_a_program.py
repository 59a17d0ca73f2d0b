"""Calls of functions of test modules in a program of their own, which imports that module alone: it is small, so that
its forks are cheap."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_PROGRAM = """
import importlib, os, pickle, sys
module, name = sys.argv[1:]
with os.fdopen(os.dup(1), "wb") as answer:
    os.dup2(2, 1)
    function = getattr(importlib.import_module(module), name)
    pickle.dump(function(*pickle.load(sys.stdin.buffer)), answer)
"""


def in_a_program(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of the top level of a module in a new program; return what it returns."""
    words = [sys.executable, "-c", _PROGRAM, function.__module__, function.__qualname__]
    done = subprocess.run(words, input=pickle.dumps(arguments), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return pickle.loads(done.stdout)
