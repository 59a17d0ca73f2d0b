"""What a shell, and what a machine says to the libraries: it changes the identity, or no byte of a forced rebuild."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from model.environment import deciding_variables

PROJECT = Path(__file__).parents[3]
AGAIN = Path(__file__).parent / "programs" / "build_again.py"
VARIABLES = {
    # PyTorch
    "ATEN_CPU_CAPABILITY": "default",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "TORCH_NNPACK": "0",
    "PYTORCH_JIT": "0",
    "TORCHDYNAMO_DISABLE": "1",
    # oneDNN
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "ONEDNN_CPU_ISA_HINTS": "PREFER_YMM",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0",
    # MKL
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_DEBUG_CPU_TYPE": "5",
    "MKL_NUM_THREADS": "1",
    "MKL_DYNAMIC": "FALSE",
    "MKL_DOMAIN_NUM_THREADS": "MKL_DOMAIN_BLAS=1",
    # OpenMP
    "OMP_NUM_THREADS": "1",
    "OMP_THREAD_LIMIT": "1",
    "OMP_DYNAMIC": "TRUE",
    "OMP_SCHEDULE": "dynamic",
    "OMP_PROC_BIND": "true",
    "OMP_PLACES": "cores",
    "OMP_WAIT_POLICY": "active",
    "GOMP_CPU_AFFINITY": "0",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    "KMP_AFFINITY": "compact",
    # numba
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_OPT": "0",
    "NUMBA_NUM_THREADS": "1",
    # NumPy and Arrow
    "NPY_DISABLE_CPU_FEATURES": "X86_V3",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_USER_SIMD_LEVEL": "NONE",
    # Python
    "PYTHONHASHSEED": "77",
    "PYTHONUTF8": "0",
    "PYTHONOPTIMIZE": "1",
    "PYTHONINTMAXSTRDIGITS": "640",
    "PYTHONMALLOC": "malloc",
    # the C library and the locale
    "LC_ALL": "tr_TR.ISO-8859-9",
    "LANG": "ja_JP.eucJP",
    "LC_NUMERIC": "de_DE.ISO-8859-1",
    "TZ": "Asia/Tokyo",
    "MALLOC_PERTURB_": "165",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
    "LD_BIND_NOW": "1",
    # tokenizers, CUDA
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "NVIDIA_TF32_OVERRIDE": "1",
}
"""Variables that libraries read, with a value that is not the default."""
CAPS = {
    "ATEN_CPU_CAPABILITY": ("default", "avx2"),
    "ONEDNN_MAX_CPU_ISA": ("SSE41", "AVX", "AVX2"),
    "MKL_CBWR": ("COMPATIBLE", "SSE4_2", "AVX2"),
    "MKL_ENABLE_INSTRUCTIONS": ("SSE4_2",),
    "NPY_DISABLE_CPU_FEATURES": ("X86_V3",),
}
"""What makes a lesser machine of this one where a library hears it."""
MACHINE = """
import ctypes, os
name, _, value = os.environ.get("BESSEMER_MACHINE", "").partition("=")
if name == "library":
    ctypes.CDLL(value, mode=ctypes.RTLD_GLOBAL)  # found before what is loaded later
elif name == "cores":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(value)])
elif name:
    os.environ[name] = value
"""
"""What each Python process does as it starts, so that no environment can keep it from the libraries."""
WITHOUT_LEAVING_OUT = """
import json, sys
if sys.argv[1:]:
    from model.environment import filter_environment
    filter_environment()
from tasks.artifacts.build import stage_identity as identity
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import DEDUP
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.stage import EVALUATE
from tasks.train.config import TrainStageConfig
from tasks.train.stage import train_stage
train = TrainStageConfig()
asked = ((DEDUP, DedupConfig()), (EVALUATE, EvaluateConfig()), (train_stage(train), train))
print(json.dumps({stage.name: identity(stage, config, {}, {}).key for stage, config in asked}))
"""


def _told(words: list[str | Path], variables: Mapping[str, str]) -> str:
    # The machine that runs the tests may have deciding variables of its own, such as OPENBLAS_CORETYPE.
    unset = {*VARIABLES, *deciding_variables(os.environ)}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": str(PROJECT), **variables}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=PROJECT)
    assert done.returncode == 0, f"{variables}: {done.stderr[-4000:]}"
    return done.stdout


def _keys(variables: Mapping[str, str], *shed: str) -> dict[str, str]:
    return json.loads(_told(["-c", WITHOUT_LEAVING_OUT, *shed], variables))


@pytest.fixture(scope="session")
def plain() -> dict[str, str]:
    """Identities in a process without any of the variables."""
    return _keys({})


def test_identities_do_not_depend_on_the_shell(plain: dict[str, str]) -> None:
    assert _keys(VARIABLES, "shed") == plain


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("ATEN_CPU_CAPABILITY", {"evaluate"}),
        ("NPY_DISABLE_CPU_FEATURES", {"evaluate", "dedup"}),
        ("GLIBC_TUNABLES", {"evaluate", "dedup"}),
        ("PYTHONHASHSEED", set[str]()),
    ],
)
def test_where_nothing_is_left_out_it_counts_in_what_is_built_in_that_process(
    plain: dict[str, str], name: str, changed: set[str]
) -> None:
    """A flow that somebody runs in a process of their own; the trainer has one that leaves it out."""
    found = _keys({name: VARIABLES[name]})
    assert {stage for stage in plain if plain[stage] != found[stage]} == changed


@pytest.fixture(scope="session")
def roots(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two roots in which the pipeline of a tiny training exists, for two processes at once."""
    folder = tmp_path_factory.mktemp("environments")
    recipe = (foundry / "foundry.toml").read_text().replace('budget_tokens = "40K"', 'budget_tokens = "8K"')
    (foundry / "tiny.toml").write_text(recipe)
    _again(foundry, folder / "0", {})
    shutil.copytree(folder / "0", folder / "1")
    return [folder / "0", folder / "1"]


def _again(foundry: Path, root: Path, variables: Mapping[str, str], *forced: str) -> dict[str, dict[str, Any]]:
    """Stage -> what a process says of it that has these variables."""
    reported = _told([AGAIN, foundry / "tiny.toml", root, *forced], variables)
    return {line["stage"]: line for line in map(json.loads, reported.splitlines())}


@pytest.mark.joints
def test_no_variable_of_the_shell_changes_an_identity_or_a_byte(
    foundry: Path, roots: list[Path], joint: Callable[..., Any]
) -> None:
    existing = _again(foundry, roots[0], {})

    def again(job: tuple[int, tuple[str, str]]) -> tuple[str, dict[str, Any]]:
        place, (name, value) = job
        return name, _again(foundry, roots[place], {name: value}, "train", "evaluate")

    with joint("environment: variables of the shell") as tally:
        for name, found in _two_at_a_time(again, list(VARIABLES.items())):
            for stage in ("train", "evaluate"):
                same = found[stage]["identity"] == existing[stage]["identity"]
                tally.expect(same and found[stage]["outcome"] == "reproduced", f"{name}: {found[stage]}")
        tally.note = f"{len(VARIABLES)} variables, train and evaluate forced under each"


@pytest.mark.joints
def test_the_command_says_what_it_leaves_out_and_gives_the_same_bytes(
    foundry: Path, roots: list[Path], joint: Callable[..., Any]
) -> None:
    words: list[str | Path] = ["-m", "flows.cli", "run", foundry / "tiny.toml", "--root", roots[0], "--force"]
    with joint("environment: all at once, every stage forced") as tally:
        reported = _told(words, VARIABLES)
        for stage in ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate"):
            tally.expect(
                bool(re.search(f"^{stage} +reproduced", reported, re.MULTILINE)), f"{stage} is other: {reported}"
            )
        (record,) = roots[0].glob("runs/*/run.json")
        notes = [note["note"] for note in json.loads(record.read_text())["notes"] if "left out" in note["note"]]
        tally.expect(len(notes) == 1 and "ATEN_CPU_CAPABILITY, " in notes[0], f"notes: {notes}")
        tally.expect(
            " ".join(reported.split()).count("left out of this run's environment") == 1, f"not named once: {reported}"
        )
        tally.note = f"of {len(VARIABLES)} variables, {notes[0].count(',') + 1} are named"


SUMS = """
import builtins, sys
_sum = builtins.sum
def checked(iterable, /, start=0):
    values = list(iterable)
    if len(values) > 2 and any(isinstance(value, float) for value in values):
        caller = sys._getframe(1)
        with open({log!r}, "a") as log:
            log.write(f"{{caller.f_code.co_filename}}:{{caller.f_lineno}}\\n")
    return _sum(values, start)
builtins.sum = checked
"""
WITH_PYTHON = ("tasks/sample/", "tasks/clean/", "tasks/evaluate/")
TOLD_ALONE = "tasks/dedup/recall.py"
"""Its sums are in the stage's report, and in no file of the artifact."""


@pytest.mark.joints
def test_stages_that_do_not_count_python_add_up_no_floats_in_it(
    foundry: Path, roots: list[Path], joint: Callable[..., Any], tmp_path: Path
) -> None:
    """Python 3.12 rounds the sum of three floats otherwise than 3.11."""
    log = tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text(SUMS.format(log=str(log)))
    watched = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)])}
    _told(["-c", "sum([0.1, 0.1, 0.1])"], watched)
    assert log.read_text() == "<string>:1\n"
    stages = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")
    with joint("environment: sums of floats in Python") as tally:
        for stage, found in _again(foundry, roots[0], watched, *stages).items():
            tally.expect(found["outcome"] == "reproduced", f"{stage}: {found}")
        ours = {
            line.removeprefix(f"{PROJECT}/") for line in log.read_text().splitlines() if line.startswith(str(PROJECT))
        }
        ours = {line for line in ours if not line.startswith((".venv", "tests"))}
        for line in ours:
            tally.expect(line.startswith((*WITH_PYTHON, TOLD_ALONE)), f"{line} adds up floats")
        tally.note = f"seen: {', '.join(sorted(ours))}"


@pytest.mark.joints
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these caps are of x86-64")
def test_another_machine_has_another_identity_or_gives_the_same_bytes(
    foundry: Path, roots: list[Path], joint: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(MACHINE)
    machines = ["cores=1", *(f"{name}={value}" for name, values in CAPS.items() for value in values)]
    if compiler := shutil.which("cc"):
        for answer in (0, 1):
            library = tmp_path / f"vendor-{answer}.so"
            (tmp_path / "vendor.c").write_text(f"int mkl_serv_intel_cpu_true(void) {{ return {answer}; }}\n")
            subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "vendor.c"], check=True)
            machines.append(f"library={library}")
    existing = _again(foundry, roots[0], {})["train"]

    def again(job: tuple[int, str]) -> tuple[str, dict[str, Any]]:
        place, machine = job
        variables = {
            "BESSEMER_MACHINE": machine,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)]),
            "XDG_CACHE_HOME": str(tmp_path / f"cache of {Path(machine).name}"),
        }
        return machine.replace(str(tmp_path), ""), _again(foundry, roots[place], variables, "train")["train"]

    others: list[str] = []
    equal: list[str] = []
    with joint("environment: other machines") as tally:
        for name, found in _two_at_a_time(again, machines):
            if found["identity"] == existing["identity"]:
                tally.expect(found["outcome"] == "reproduced", f"{name}: other bytes under one identity: {found}")
                tally.expect(found["arithmetic"] == existing["arithmetic"], f"{name}: {found}")
                continue
            tally.expect(found["arithmetic"] != existing["arithmetic"], f"{name}: no cause: {found}")
            (others if found["content"] != existing["content"] else equal).append(name)
        tally.expect(bool(others), "none of the machines gave other bytes, so that nothing was proved")
        unseen = len(machines) - len(others) - len(equal)
        tally.note = (
            f"{len(others)} other bytes, {len(equal)} only another identity, {unseen} neither: {', '.join(equal)}"
        )


def _two_at_a_time(call: Callable[[tuple[int, Any]], Any], jobs: list[Any]) -> list[Any]:
    """The answers of two processes, each with a root of its own."""
    with ThreadPoolExecutor(2) as pool:
        halves = [pool.submit(lambda place=place: [call((place, job)) for job in jobs[place::2]]) for place in (0, 1)]
        return [answer for half in halves for answer in half.result()]
