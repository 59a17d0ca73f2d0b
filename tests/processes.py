"""Other processes of tests: forks of this one, which has imported what a program would import again for seconds of
processor time, and small programs, whose own forks are cheap."""

import faulthandler
import functools
import logging
import os
import pickle
import runpy
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from model.processes import exit_now


def fork_program(
    main: Callable[[], int | None], env: Mapping[str, str], pass_fds: Collection[int] = (), **options: Any
) -> subprocess.Popen[Any]:
    """Start a process that calls `main`, whose result is its exit code; options are those of `subprocess.Popen`.

    It has no other thread and no open file of this process, and nothing of pytest's between it and its output.
    """
    # `Popen` knows that a program has started by the end of a pipe that `exec` closes, and `_become` in its place.
    become = functools.partial(_become, main, env, pass_fds)
    return subprocess.Popen(["fork"], preexec_fn=become, restore_signals=False, pass_fds=pass_fds, **options)


def captured(
    main: Callable[[], int | None], env: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Wait for a program, and return its exit code and what it printed."""
    with fork_program(main, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess("fork", process.returncode, out, err)


def run_file(program: str | Path, arguments: Sequence[str]) -> None:
    """Do in a fork what `python PROGRAM ARGUMENTS` does."""
    sys.argv = [str(program), *arguments]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(program).parent), *filter(None, named)]
    runpy.run_path(str(program), run_name="__main__")


def _become(main: Callable[[], int | None], environment: Mapping[str, str], pass_fds: Collection[int]) -> None:
    try:
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in pass_fds:
                with suppress(OSError):
                    os.close(number)
        os.environ.clear()
        os.environ.update(environment)
        _leave_pytest()
        exit_now(main() or 0)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        exit_now(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        exit_now(1)
    finally:
        os._exit(1)


def _leave_pytest() -> None:
    """Print to the process's own streams, warnings and errors of threads as well, as a new process does."""
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    faulthandler.disable()
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    for unseen in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", unseen)
    warnings.showwarning = _show_warning


def _show_warning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    del file
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


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


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `true()`; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} seconds in vain"
        time.sleep(0.005)
