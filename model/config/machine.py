"""A machine's memory, and the parts that decide the last bits of a training; found without loading PyTorch here."""

import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from model.environment import FIXED, deciding_variables, trainer_environment
from model.errors import Infra
from model.files import user_cache, write_atomically

if TYPE_CHECKING:
    from model.config.train import TrainConfig


INSTRUCTION_SET = "instruction-set"

NARROW_PRODUCTS = "narrow-products"

COMPILER = "c++-compiler"

NUMERICS = "numerics"

PORTABLE = "portable-1"
"""Name and version of the portable arithmetic, in place of all parts of the machine."""

GPU = "gpu"

CUDA = "cuda"

NONE = "none"
"""Description of a part that the machine lacks; the training that needs it reports that itself."""

COMMAND_SECONDS, IMPORT_SECONDS = 30, 300


def deciding_parts(train: "TrainConfig") -> tuple[str, ...]:
    """Return the names of the parts that training with these settings depends on."""
    if train.numerics == "portable":
        return (NUMERICS,)
    parts = [INSTRUCTION_SET]
    if train.device == "cuda":
        parts += [GPU, CUDA]
    elif train.possible_dtypes & {"bfloat16", "float16"}:
        parts.append(NARROW_PRODUCTS)
    return (*parts, COMPILER) if train.compile else tuple(parts)


def describe_part(name: str, environment: Mapping[str, str]) -> str:
    """Describe one of these parts as a process with this environment finds it."""
    return PARTS[name](environment)


def machine_parts(train: "TrainConfig") -> dict[str, str]:
    """Describe the parts that training with these settings depends on, as its ranks find them."""
    environment = trainer_environment(os.environ, train.given)
    return {name: describe_part(name, environment) for name in deciding_parts(train)}


def instruction_set(environment: Mapping[str, str]) -> str:
    """Return the instruction sets that the libraries choose in a process with this environment, such as `x86_64: ATen
    AVX2, oneDNN Intel AVX2, MKL branch 2 mode 1, NumPy X86_V3`, and where that is faster `, products by oneDNN`.

    The libraries are queried: MKL chooses by vendor too, and variables restrict each of them.
    """
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    settings = {name: environment[name] for name in names if name in environment} | deciding_variables(environment)
    return _cached_answer(tuple(sorted(settings.items())))


def products_by_onednn(environment: Mapping[str, str]) -> bool:
    """Return whether float32 matrices are multiplied by oneDNN, since it is much faster here than MKL."""
    return instruction_set(environment).endswith(BY_ONEDNN)


def narrow_products(environment: Mapping[str, str]) -> str:
    """Return the CPU extensions for products of 16-bit numbers, which sum in their own orders:
    `amx_bf16+avx512_bf16`."""
    del environment
    flags = next((line for line in _cpu_info() if line.startswith(("flags", "Features"))), "").split()
    kinds = ("amx_bf16", "amx_fp16", "avx512_bf16", "avx512_fp16", "bf16", "asimdhp")
    return "+".join(kind for kind in kinds if kind in flags) or NONE


def compiler_version(environment: Mapping[str, str]) -> str:
    """Return the first line of the version of the C++ compiler that torch.compile calls."""
    return _first_lines(environment.get("CXX", "g++"), "--version")[0]


def gpu_kinds(environment: Mapping[str, str]) -> str:
    """Return names and compute capabilities of the visible CUDA devices, as the driver reports them."""
    command = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    # The driver does not know every name that CUDA accepts; then all devices are listed.
    devices = _first_lines(*command, "-i", visible) if visible else [NONE]
    return "; ".join(sorted(set(devices if devices != [NONE] else _first_lines(*command))))


def cuda_version(environment: Mapping[str, str]) -> str:
    """Return the version of CUDA that PyTorch was built with."""
    del environment
    folder = _torch_folder()
    if folder is None:
        return NONE
    found = re.search(r"^cuda\b[^=]*= *['\"]([^'\"]+)", (folder / "version.py").read_text("utf-8"), re.MULTILINE)
    return found[1] if found else NONE


PARTS: dict[str, Callable[[Mapping[str, str]], str]] = {
    INSTRUCTION_SET: instruction_set,
    NARROW_PRODUCTS: narrow_products,
    NUMERICS: lambda _: PORTABLE,
    COMPILER: compiler_version,
    GPU: gpu_kinds,
    CUDA: cuda_version,
}

BY_ONEDNN = ", products by oneDNN"

_QUERY_PROGRAM = (
    f"BY_ONEDNN = {BY_ONEDNN!r}"
    + """
import ctypes, platform, time
from pathlib import Path
import torch
from numpy._core import _multiarray_umath as numpy
torch.nn.functional.gelu(torch.zeros(8))  # computed by oneDNN, which then prints what it chose
names = ["libtorch_cpu.so", "libtorch_cpu.dylib"]
libs = [path for name in names if (path := Path(torch.__file__).parent / "lib" / name).exists()]
try:
    mkl = ctypes.CDLL(str(libs[0]))
    chosen = f"branch {mkl.mkl_serv_cbwr_get_auto_branch()} mode {mkl.mkl_serv_cbwr_get(-1)}"
except (AttributeError, IndexError):
    chosen = "none"
def seconds(product):  # of a layer forwards and backwards: the fastest of seven, by the processor time of one thread
    x, weight = torch.ones(512, 224), torch.ones(896, 224)
    gradient = torch.ones(512, 896)
    times = []
    for _ in range(7):
        began = time.thread_time()
        product(x, weight), product(gradient, weight.t()), product(x.t(), gradient.t())
        times.append(time.thread_time() - began)
    return min(times)
by_onednn = False
if torch.backends.mkldnn.is_available():
    torch.set_num_threads(1)
    onednn = seconds(lambda a, b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    by_onednn = seconds(lambda a, b: a @ b.t()) > 1.5 * onednn  # those that are alike have 0.9 to 1.2
features = [name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__[name]]
print(f"{platform.machine()}: ATen {torch.backends.cpu.get_cpu_capability()}, MKL {chosen},"
      f" NumPy {'+'.join(features) or 'baseline'}" + BY_ONEDNN * by_onednn)
"""
)

_ONEDNN = re.compile(r"^onednn_verbose,.*cpu,isa:(.*)$", re.MULTILINE)


@functools.cache
def _cached_answer(settings: tuple[tuple[str, str], ...]) -> str:
    """Return what the libraries choose with these settings.

    Importing PyTorch takes seconds, so the answer is cached for the user while CPU, libraries and settings are the
    same.
    """
    cache = user_cache()
    key = _digest([settings, FIXED, _QUERY_PROGRAM, sys.executable, _cpu_info(), _libraries()])
    cached = cache / f"instruction-set-{key}"
    try:
        digest, _, answer = cached.read_text("utf-8").partition("\n")
        if digest == _digest(answer):
            return answer
    except (OSError, UnicodeDecodeError):
        pass  # Missing or damaged.
    answer = _query_libraries(dict(settings))
    # Without a writable cache each process queries again.
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, f"{_digest(answer)}\n{answer}".encode())
    return answer


def _query_libraries(settings: Mapping[str, str]) -> str:
    environment = trainer_environment(os.environ, {**settings, "ONEDNN_VERBOSE": "1"})
    command = [sys.executable, "-c", _QUERY_PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Infra(
            f"importing PyTorch took over {IMPORT_SECONDS} seconds: see what slows this machine down"
        ) from error
    output = done.stdout.decode(errors="replace")
    if done.returncode:
        last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise Infra(
            f"PyTorch could not be queried for its instruction set (exit code {done.returncode}, {last_line[0]}). Make"
            f" sure that `{Path(sys.executable).name} -c 'import torch'` works, with the variables of train.environment"
        )
    onednn = _ONEDNN.search(output)
    answer = next(line for line in output.splitlines() if ": ATen " in line)
    return answer.replace(", MKL", f", oneDNN {onednn[1] if onednn else NONE}, MKL")


def _libraries() -> list[object]:
    """Return what identifies the installed libraries: folders, versions, sizes and times."""
    found: list[object] = [metadata.version("numpy")]
    folder = _torch_folder()
    for path in sorted((folder / "lib").glob("lib*")) if folder else ():
        stat = path.stat()
        found.append([str(path), stat.st_size, stat.st_mtime_ns])
    return found


def _cpu_info() -> list[str]:
    """Return the lines of /proc/cpuinfo about the first CPU that do not change while it runs."""
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
        output = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [NONE]
    return [line.strip() for line in output.splitlines() if line.strip()] or [NONE]


def machine_memory() -> int:
    """Return the bytes of main memory, or of the container's limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup", name)
        if file.is_file() and file.read_text().strip().isdigit():
            limits.append(int(file.read_text()))
    return min(limits)


def resident_bytes() -> int:
    """Return the bytes of memory that this process has now; on systems other than Linux its peak.

    Without psutil, which the machines of `benchmarks/gpu.py` may lack.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak() -> None:
    """Reset `peak_bytes` where the system can; elsewhere the peak stays that of the whole process."""
    references = Path("/proc/self/clear_refs")
    if references.exists() and os.access(references, os.W_OK):
        references.write_text("5")


def peak_bytes() -> int:
    """Return the peak memory of this process since `reset_peak`, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
