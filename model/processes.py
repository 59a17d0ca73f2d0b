"""No process of ours outlives the one that started it.

On Linux the kernel is asked to send SIGKILL (or another signal) to a child when its parent dies
(`PR_SET_PDEATHSIG`, prctl(2)); each process asks for itself, because the setting does not survive `fork`.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send `signum` to this process when its parent ends.

    Exits at once (code 75) if that has happened already: `parent`, where the launcher tells it, is its process id. To
    have process 1 as parent proves nothing, since in a container the launcher itself may be process 1. A no-op on
    systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = parent or os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signum)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        # The parent died before the call above could matter.
        os._exit(75)


def exit_now(code: int) -> NoReturn:
    """End this process without taking the interpreter down first.

    DeepSpeed keeps references to process groups, and when their threads meet the interpreter's end, one of four
    finished ZeRO-3 trainings died of SIGABRT. By now all files are durable and all words are said.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
