"""Counts the renames that a run makes in the folders of its unfinished builds, and kills the run at a given one.

Every Python process imports `sitecustomize` as it starts. With this folder on PYTHONPATH, BESSEMER_RENAMES_ROOT names
the run's root, and BESSEMER_RENAMES_LOG the file that takes one line for each rename in any process of the run: the
identity of the build. With BESSEMER_KILL_AT=IDENTITY:N the process about to make the N-th rename of that build ends the
run's first process by SIGKILL, and itself.
"""

import os
import signal
import sys

WORK = os.path.join(os.environ.get("BESSEMER_RENAMES_ROOT", ""), "work", "")
LOG = os.environ.get("BESSEMER_RENAMES_LOG", "")
IDENTITY, _, NUMBER = os.environ.get("BESSEMER_KILL_AT", "").partition(":")


def _listen(event, arguments):
    if event != "os.rename" or not os.fsdecode(arguments[1]).startswith(WORK):
        return
    build = os.fsdecode(arguments[1]).removeprefix(WORK).partition(".")[0]
    with open(LOG, "a+b", buffering=0) as log:
        log.write(f"{build}\n".encode())
        log.seek(0)
        made = log.read().splitlines().count(IDENTITY.encode())
    if build == IDENTITY and made >= int(NUMBER):
        os.kill(FIRST, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if LOG:
    FIRST = int(os.environ.setdefault("BESSEMER_RENAMES_FIRST_PROCESS", str(os.getpid())))
    sys.addaudithook(_listen)
