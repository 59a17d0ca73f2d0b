"""What of the machine decides the last bits of a training, told without loading PyTorch."""

import functools
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.config import TrainConfig

INSTRUCTION_SET = "instruction-set"
NARROW_PRODUCTS = "narrow-products"
COMPILER = "c++-compiler"
GPU = "gpu"
CUDA = "cuda"
NONE = "none"
"""What is told of a part that the machine lacks; the training that asks for it says so in its own words."""
SECONDS_TO_ANSWER = 30


def deciding_parts(train: "TrainConfig") -> tuple[str, ...]:
    """Names of the parts that training with these settings depends on."""
    parts = [INSTRUCTION_SET]
    if train.device == "cuda":
        parts += [GPU, CUDA]
    elif train.dtype in ("bfloat16", "float16"):
        parts.append(NARROW_PRODUCTS)
    return (*parts, COMPILER) if train.compile else tuple(parts)


def part(name: str) -> str:
    """One of these parts in words."""
    return PARTS[name]()


@functools.cache
def instruction_set() -> str:
    """Machine architecture and widest vector extension, such as `x86_64+avx512f`."""
    machine = platform.machine()
    flags = _processor_flags()
    for extension in ("avx512f", "avx2", "avx", "asimd"):
        if extension in flags:
            return f"{machine}+{extension}"
    return machine


@functools.cache
def narrow_products() -> str:
    """Extensions for products of 16 bits, which add up in orders of their own: `amx_bf16+avx512_bf16`."""
    flags = _processor_flags()
    kinds = ("amx_bf16", "amx_fp16", "avx512_bf16", "avx512_fp16", "bf16", "asimdhp")
    return "+".join(kind for kind in kinds if kind in flags) or NONE


@functools.cache
def compiler_version() -> str:
    """What the C++ compiler, the one that torch.compile calls, says of itself in its first line."""
    return _first_lines([os.environ.get("CXX", "g++"), "--version"])[0]


@functools.cache
def gpu_names() -> str:
    """Kinds of CUDA devices, in the driver's words."""
    told = _first_lines(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return "; ".join(sorted(set(told)))


@functools.cache
def cuda_version() -> str:
    """Of the CUDA that PyTorch was built with."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return NONE
    told = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=]*= *['\"]([^'\"]+)", told, re.MULTILINE)
    return found[1] if found else NONE


PARTS: dict[str, Callable[[], str]] = {
    INSTRUCTION_SET: instruction_set,
    NARROW_PRODUCTS: narrow_products,
    COMPILER: compiler_version,
    GPU: gpu_names,
    CUDA: cuda_version,
}


def _processor_flags() -> list[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return []
    lines = cpuinfo.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "").split()


def _first_lines(command: list[str]) -> list[str]:
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [NONE]
    return [line.strip() for line in told.splitlines() if line.strip()] or [NONE]
