"""The parts of the machine that decide last bits are chosen by the settings, and read without PyTorch."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest
import torch

from model.config import machine
from model.config.train import TrainConfig, TrainerRun
from model.errors import Infra, InputError, RecipeError
from model.train.trainer import train


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, says: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{says}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, ()),
        ({"compile": True}, ("c++-compiler",)),
        ({"dtype": "bfloat16"}, ("narrow-products",)),
        ({"guard": {"ladder": [{"lr_factor": 0.5}, {"dtype": "bfloat16"}]}}, ("narrow-products",)),
        ({"dtype": "float16", "compile": True}, ("narrow-products", "c++-compiler")),
        ({"device": "cuda", "compile": False}, ("gpu", "cuda")),
        ({"device": "cuda"}, ("gpu", "cuda", "c++-compiler")),
    ],
)
def test_settings_depend_on_parts_of_the_machine(settings: dict[str, object], more: tuple[str, ...]) -> None:
    assert machine.deciding_parts(TrainConfig.model_validate(settings)) == ("instruction-set", *more)


def test_portable_numerics_depend_on_no_part_of_the_machine() -> None:
    assert machine.machine_parts(TrainConfig(numerics="portable")) == {"numerics": "portable-1"}


def test_compiler_and_devices_are_described_by_their_own_output(
    program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    says = str(program("compiler", "echo; echo 'forge++ 12.2.0'; echo 'Copyright'"))
    assert machine.describe_part(machine.COMPILER, {"CXX": says}) == "forge++ 12.2.0"
    assert machine.describe_part(machine.COMPILER, {"CXX": "no-such-compiler"}) == machine.NONE
    devices = program(
        "nvidia-smi",
        """
        case "$*" in
            *-i\\ 1*) echo 'NVIDIA A100, 8.0' ;;
            *-i*) exit 6 ;;
            *) echo 'NVIDIA H200, 9.0'; echo 'NVIDIA A100, 8.0'; echo 'NVIDIA H200, 9.0' ;;
        esac""",
    )
    monkeypatch.setenv("PATH", f"{devices.parent}:/bin")
    machine._first_lines.cache_clear()  # Another test of this process may have asked the machine itself.
    assert machine.describe_part(machine.GPU, {}) == "NVIDIA A100, 8.0; NVIDIA H200, 9.0"
    assert machine.describe_part(machine.GPU, {"CUDA_VISIBLE_DEVICES": "1"}) == "NVIDIA A100, 8.0"
    assert machine.describe_part(machine.GPU, {"CUDA_VISIBLE_DEVICES": "odd"}) == "NVIDIA A100, 8.0; NVIDIA H200, 9.0"
    machine._first_lines.cache_clear()
    program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert machine.describe_part(machine.GPU, {}) == machine.NONE


def test_the_version_of_cuda_is_that_of_pytorch() -> None:
    assert machine.describe_part(machine.CUDA, {}) == (torch.version.cuda or machine.NONE)


def test_libraries_of_pytorch_identify_what_they_choose() -> None:
    assert any("libtorch" in str(library) for library in machine._libraries())


def test_pytorch_is_not_loaded_for_it() -> None:
    parts = "import sys, model.config.machine as m; [m.describe_part(name, {}) for name in m.PARTS]"
    program = f"{parts}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def ask(**environment: str) -> str:
    machine._cached_answer.cache_clear()
    return machine.describe_part(machine.INSTRUCTION_SET, environment)


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What is chosen under these variables, asked in processes of a user without a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ask


@dataclass(frozen=True)
class Plain:
    """What is chosen without variables, and the cache in which it is kept."""

    answer: str
    cache: Path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Asked where the shell has a variable, once for all tests: PyTorch is imported for each answer."""
    cache = tmp_path_factory.mktemp("cache")
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(cache), ATEN_CPU_CAPABILITY="default"):
        return Plain(ask(), cache)


def test_without_a_home_nothing_is_cached_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user has neither a name nor a home."""

    def nameless(number: int) -> NoReturn:
        raise KeyError(number)

    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nameless)
    monkeypatch.setattr(machine, "_query_libraries", lambda settings: "x86_64: ATen AVX2")
    monkeypatch.chdir(tmp_path)
    machine._cached_answer.cache_clear()
    try:
        assert machine.instruction_set({}) == "x86_64: ATen AVX2"
    finally:
        machine._cached_answer.cache_clear()
    assert list(tmp_path.iterdir()) == []


def test_it_is_what_the_libraries_choose(chosen: Callable[..., str], plain: Plain) -> None:
    assert f"ATen {torch.backends.cpu.get_cpu_capability()}," in plain.answer
    capped = chosen(ATEN_CPU_CAPABILITY="default")
    assert capped == plain.answer.replace(f"ATen {torch.backends.cpu.get_cpu_capability()},", "ATen DEFAULT,")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these caps are of x86-64")
def test_caps_of_other_libraries_show(chosen: Callable[..., str]) -> None:
    capped = chosen(ONEDNN_MAX_CPU_ISA="SSE41", MKL_CBWR="COMPATIBLE")
    assert "oneDNN Intel SSE4.1," in capped
    assert capped.split("mode")[1].startswith(" 3")


def test_variables_of_the_shell_do_not_count(plain: Plain) -> None:
    assert "ATen DEFAULT" not in plain.answer


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MKL is there on x86-64 alone")
def test_mkl_chooses_by_vendor(chosen: Callable[..., str], plain: Plain, tmp_path: Path) -> None:
    """On one processor, by a library that says to MKL that it is Intel's, where it is not, or the other way round."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler makes the library that answers for the processor")
    is_intel = any(line.endswith("GenuineIntel") for line in machine._cpu_info())
    (tmp_path / "vendor.c").write_text(f"int mkl_serv_intel_cpu_true(void) {{ return {int(not is_intel)}; }}\n")
    library = str(tmp_path / "vendor.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "vendor.c")], check=True)
    other = chosen(LD_PRELOAD=library)
    assert other.partition(", MKL")[0] == plain.answer.partition(", MKL")[0]
    assert other != plain.answer


def test_the_answer_is_kept_while_nothing_changes(
    chosen: Callable[..., str], plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(plain.cache, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "bessemer").iterdir()
    asked: list[object] = []

    def ask(settings: object) -> str:
        asked.append(settings)
        return "asked anew"

    monkeypatch.setattr(machine, "_query_libraries", ask)
    assert chosen() == plain.answer
    assert chosen(ATEN_CPU_CAPABILITY="default") == "asked anew"
    assert asked == [{"ATEN_CPU_CAPABILITY": "default"}]
    kept.write_text(kept.read_text().replace("ATen", "ATEN"))
    assert chosen() == "asked anew", "a damaged answer is not believed"
    monkeypatch.setattr(machine, "_cpu_info", lambda: ["flags : avx512f"])
    kept.unlink()
    assert chosen() == "asked anew", "another processor is asked"


def test_a_library_that_does_not_load_is_reported(chosen: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_QUERY_PROGRAM", "raise ImportError('no torch')")
    with pytest.raises(Infra, match=r"PyTorch could not be queried .*ImportError: no torch.*train.environment"):
        chosen()


@pytest.mark.parametrize("part", ["instruction-set", "narrow-products"])
def test_a_run_does_not_go_on_where_sums_are_made_otherwise(
    make_run: Callable[..., TrainerRun], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(dtype="bfloat16")
    train(run)
    (run.out / "result" / "model.json").unlink()
    monkeypatch.setitem(machine.PARTS, part, lambda environment: "riscv64")
    with pytest.raises(InputError, match=f"its `machine` is .* but this run asks for .*{part}': 'riscv64'"):
        train(run)


def test_compiling_for_devices_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from model.engines import check_engine

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("model.engines.runtime.training_device", lambda config: None)  # as if one were there
    check_engine(TrainConfig(compile=True))
    with pytest.raises(RecipeError, match="Triton, which compiles for them, is not installed"):
        check_engine(TrainConfig(compile=True, device="cuda"))


def test_products_by_onednn_are_part_of_what_is_said_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"fast": f"x86_64: ATen AVX2{machine.BY_ONEDNN}", "alike": "x86_64: ATen AVX2"}
    monkeypatch.setattr(machine, "_cached_answer", lambda settings: said[dict(settings)["LD_LIBRARY_PATH"]])
    assert machine.products_by_onednn({"LD_LIBRARY_PATH": "fast"})
    assert not machine.products_by_onednn({"LD_LIBRARY_PATH": "alike"})
