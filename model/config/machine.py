"""What of the machine decides the last bits of a training, told without loading PyTorch."""

import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from model.config.environment import FIXED, deciding_variables, trainer_environment
from model.errors import Infra
from model.files import write_atomically

if TYPE_CHECKING:
    from model.config.train import TrainConfig


INSTRUCTION_SET = "instruction-set"

NARROW_PRODUCTS = "narrow-products"

COMPILER = "c++-compiler"

GPU = "gpu"

CUDA = "cuda"

NONE = "none"
"""What is told of a part that the machine lacks; the training that asks for it says so in its own words."""

SECONDS_TO_ANSWER, SECONDS_TO_LOAD = 30, 300


def deciding_parts(train: "TrainConfig") -> tuple[str, ...]:
    """Names of the parts that training with these settings depends on."""
    parts = [INSTRUCTION_SET]
    if train.device == "cuda":
        parts += [GPU, CUDA]
    elif train.dtype in ("bfloat16", "float16"):
        parts.append(NARROW_PRODUCTS)
    return (*parts, COMPILER) if train.compile else tuple(parts)


def describe_part(name: str, environment: Mapping[str, str]) -> str:
    """One of these parts in words, as a process finds it that starts with this environment."""
    return PARTS[name](environment)


def machine_parts(train: "TrainConfig") -> dict[str, str]:
    """The parts that training with these settings depends on, as its ranks find them."""
    environment = trainer_environment(os.environ, train.given)
    return {name: describe_part(name, environment) for name in deciding_parts(train)}


def instruction_set(environment: Mapping[str, str]) -> str:
    """What the libraries choose on this processor in a process that starts with this environment, such as `x86_64: ATen
    AVX2, oneDNN Intel AVX2, MKL branch 2 mode 1, NumPy X86_V3`.

    MKL chooses by vendor too, and all of them may be told to do without a part of the processor; so they are asked.
    """
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    settings = {name: environment[name] for name in names if name in environment} | deciding_variables(environment)
    return _chosen(tuple(sorted(settings.items())))


def narrow_products(environment: Mapping[str, str]) -> str:
    """Extensions for products of 16 bits, which add up in orders of their own: `amx_bf16+avx512_bf16`."""
    del environment
    flags = next((line for line in _processor() if line.startswith(("flags", "Features"))), "").split()
    kinds = ("amx_bf16", "amx_fp16", "avx512_bf16", "avx512_fp16", "bf16", "asimdhp")
    return "+".join(kind for kind in kinds if kind in flags) or NONE


def compiler_version(environment: Mapping[str, str]) -> str:
    """What the C++ compiler, the one that torch.compile calls, says of itself in its first line."""
    return _first_lines(environment.get("CXX", "g++"), "--version")[0]


def gpu_kinds(environment: Mapping[str, str]) -> str:
    """Names and compute capabilities of the CUDA devices that a process sees, in the driver's words."""
    command = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
    seen = environment.get("CUDA_VISIBLE_DEVICES")
    # The driver does not know each name that CUDA knows; then all devices are told.
    told = _first_lines(*command, "-i", seen) if seen else [NONE]
    return "; ".join(sorted(set(told if told != [NONE] else _first_lines(*command))))


def cuda_version(environment: Mapping[str, str]) -> str:
    """Of the CUDA that PyTorch was built with."""
    del environment
    folder = _torch_folder()
    if folder is None:
        return NONE
    found = re.search(r"^cuda\b[^=]*= *['\"]([^'\"]+)", (folder / "version.py").read_text("utf-8"), re.MULTILINE)
    return found[1] if found else NONE


PARTS: dict[str, Callable[[Mapping[str, str]], str]] = {
    INSTRUCTION_SET: instruction_set,
    NARROW_PRODUCTS: narrow_products,
    COMPILER: compiler_version,
    GPU: gpu_kinds,
    CUDA: cuda_version,
}

_QUESTION = """
import ctypes, platform
from pathlib import Path
import torch
from numpy._core import _multiarray_umath as numpy
torch.nn.functional.gelu(torch.zeros(8))  # computed by oneDNN, which then says what it chose
names = ["libtorch_cpu.so", "libtorch_cpu.dylib"]
libs = [path for name in names if (path := Path(torch.__file__).parent / "lib" / name).exists()]
try:
    mkl = ctypes.CDLL(str(libs[0]))
    chosen = f"branch {mkl.mkl_serv_cbwr_get_auto_branch()} mode {mkl.mkl_serv_cbwr_get(-1)}"
except (AttributeError, IndexError):
    chosen = "none"
features = [name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__[name]]
print(f"{platform.machine()}: ATen {torch.backends.cpu.get_cpu_capability()}, MKL {chosen},"
      f" NumPy {'+'.join(features) or 'baseline'}")
"""

_ONEDNN = re.compile(r"^onednn_verbose,.*cpu,isa:(.*)$", re.MULTILINE)


@functools.cache
def _chosen(settings: tuple[tuple[str, str], ...]) -> str:
    """What the libraries say under these settings. Loading PyTorch takes seconds, so that the answer is kept in the
    user's cache while processor, libraries and settings are the same."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "bessemer"
    asked = _digest([settings, FIXED, _QUESTION, sys.executable, _processor(), _libraries()])
    kept = cache / f"instruction-set-{asked}"
    try:
        digest, _, answer = kept.read_text("utf-8").partition("\n")
        if digest == _digest(answer):
            return answer
    except (OSError, UnicodeDecodeError):
        pass  # Asked for the first time, or damaged.
    answer = _asked(dict(settings))
    # Where it cannot be kept, each process asks for itself.
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, f"{_digest(answer)}\n{answer}".encode())
    return answer


def _asked(settings: Mapping[str, str]) -> str:
    environment = trainer_environment(os.environ, {**settings, "ONEDNN_VERBOSE": "1"})
    command = [sys.executable, "-c", _QUESTION]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=SECONDS_TO_LOAD, check=False)
    except subprocess.TimeoutExpired as error:
        raise Infra(f"PyTorch was not loaded within {SECONDS_TO_LOAD} seconds: look what slows this machine") from error
    told = done.stdout.decode(errors="replace")
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise Infra(
            f"PyTorch could not be asked what it computes with (exit code {done.returncode}, {words[0]}). See that"
            f" `{Path(sys.executable).name} -c 'import torch'` works, with the variables of train.environment"
        )
    onednn = _ONEDNN.search(told)
    answer = next(line for line in told.splitlines() if ": ATen " in line)
    return answer.replace(", MKL", f", oneDNN {onednn[1] if onednn else NONE}, MKL")


def _libraries() -> list[object]:
    """What tells one installation of the libraries that are asked from another: folders, versions, and when written."""
    found: list[object] = [metadata.version("numpy")]
    folder = _torch_folder()
    for path in sorted((folder / "lib").glob("lib*")) if folder else ():
        stat = path.stat()
        found.append([str(path), stat.st_size, stat.st_mtime_ns])
    return found


def _processor() -> list[str]:
    """The lines about the first processor that do not change while it runs."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return [platform.processor()]
    lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    return [line for line in lines if not line.startswith(("cpu MHz", "bogomips", "BogoMIPS"))]


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


@functools.cache
def _first_lines(*command: str) -> list[str]:
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [NONE]
    return [line.strip() for line in told.splitlines() if line.strip()] or [NONE]
