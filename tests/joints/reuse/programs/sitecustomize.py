"""A tracer that every Python process of a run carries, because Python imports `sitecustomize` as it starts.

Put this folder on PYTHONPATH and name a folder in BESSEMER_TRACE: each process leaves a JSON file there with the
project's functions that ran, and the third-party packages whose code ran outside of imports, by stage. A child process
(the trainer, a worker of a pool) records for the stage that BESSEMER_TRACE_STAGE names from its first breath on.
"""

import atexit
import contextlib
import json
import os
import sys
import sysconfig
import threading

FOLDER = os.environ.get("BESSEMER_TRACE")
STAGE = "BESSEMER_TRACE_STAGE"
PROJECT = os.environ.get("BESSEMER_TRACE_PROJECT", "")
SITE_PACKAGES = tuple({sysconfig.get_paths()["purelib"] + os.sep, sysconfig.get_paths()["platlib"] + os.sep})
OURS = ("flows", "tasks", "model")
IMPORTING = "<frozen importlib._bootstrap>"

functions = {}
packages = {}
_seen = {}
_stage = os.environ.get(STAGE)


def _profile(frame, event, argument):
    if _stage is None:
        return  # A thread that outlives its stage.
    if event == "call":
        code = frame.f_code
        known = _seen.get(id(code))
        if known is None:
            known = _seen[id(code)] = (
                _package_of(code.co_filename),
                code,
            )  # The code stays alive, so its id stays its own
        ran = functions.setdefault(_stage, {})
        # What runs once, as a module is imported, counts by what it makes.
        if id(code) not in ran and code.co_filename.startswith(PROJECT + os.sep) and not _is_importing(frame):
            ran[id(code)] = code
        package = known[0]
    elif event == "c_call":
        owner = getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
        owner = getattr(owner, "__name__", owner)  # psutil's functions name the module itself
        package = owner.partition(".")[0]
        # A method that a class of ours inherits from C counts as code of ours, by its class.
        if package in sys.stdlib_module_names or package in OURS:
            return
    else:
        return
    if package and package not in packages.setdefault(_stage, set()) and not _is_importing(frame):
        packages[_stage].add(package)


def _package_of(filename):
    for folder in SITE_PACKAGES:
        if filename.startswith(folder):
            return filename.removeprefix(folder).partition(os.sep)[0].removesuffix(".py")
    return ""


def _is_importing(frame):
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            return True
        frame = frame.f_back
    return False


def _compiled():
    """The code of kernels that were compiled, by its id: they run as machine code, which no tracer sees."""
    values = (value for module in list(sys.modules.values()) for value in list(vars(module).values()))
    kernels = [value for value in values if type(value).__name__ == "CPUDispatcher" and value.signatures]
    return {id(kernel.py_func.__code__): kernel.py_func.__code__ for kernel in kernels}


def _ours(codes):
    return {key: code for key, code in codes.items() if code.co_filename.startswith(PROJECT + os.sep)}


@contextlib.contextmanager
def recording(stage):
    """Record under the name of a stage, in this process, its new threads and its child processes."""
    global _stage
    _seen.clear()
    before = _compiled()
    os.environ[STAGE] = _stage = stage
    threading.setprofile(_profile)
    sys.setprofile(_profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        kernels = {key: code for key, code in _compiled().items() if key not in before}
        functions.setdefault(stage, {}).update(_ours(kernels))
        del os.environ[STAGE]
        _stage = None


def _place(code):
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _write():
    sys.setprofile(None)
    threading.setprofile(None)
    if _stage is not None:
        functions.setdefault(_stage, {}).update(_ours(_compiled()))
    found = {
        stage: {
            "functions": sorted({_place(code) for code in functions.get(stage, {}).values()}),
            "packages": sorted(packages.get(stage, ())),
        }
        for stage in {*functions, *packages}
    }
    with open(os.path.join(FOLDER, f"{os.getpid()}.json"), "w") as stream:
        json.dump(found, stream)


def _exit_at_once(code, _exit=os._exit):
    _write()
    _exit(code)


if FOLDER:
    atexit.register(_write)
    os._exit = _exit_at_once  # The trainer leaves by it, and no exit handler runs then.
    if _stage is not None:
        threading.setprofile(_profile)
        sys.setprofile(_profile)
