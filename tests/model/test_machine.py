"""Parts of the machine that decide last bits: named for the settings that depend on them, and read without PyTorch."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model import machine
from model.config import TrainConfig, TrainerRun
from model.errors import InputError, RecipeError
from model.training import train


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine is made of stays while a process lives, but not from test to test."""
    for name, answer in machine.PARTS.items():
        monkeypatch.setitem(machine.PARTS, name, answer.__wrapped__)  # pyright: ignore[reportFunctionMemberAccess]


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
        ({"dtype": "float16", "compile": True}, ("narrow-products", "c++-compiler")),
        ({"device": "cuda"}, ("gpu", "cuda")),
        ({"device": "cuda", "dtype": "bfloat16", "compile": True}, ("gpu", "cuda", "c++-compiler")),
    ],
)
def test_settings_depend_on_parts_of_the_machine(settings: dict[str, object], more: tuple[str, ...]) -> None:
    assert machine.deciding_parts(TrainConfig.model_validate(settings)) == ("instruction-set", *more)


def test_the_compiler_and_the_devices_speak_for_themselves(
    program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(program("compiler", "echo; echo 'forge++ 12.2.0'; echo 'Copyright'")))
    assert machine.part(machine.COMPILER) == "forge++ 12.2.0"
    devices = program("nvidia-smi", "echo 'NVIDIA H200'; echo 'NVIDIA A100'; echo 'NVIDIA H200'")
    monkeypatch.setenv("PATH", str(devices.parent))
    assert machine.part(machine.GPU) == "NVIDIA A100; NVIDIA H200"
    program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert machine.part(machine.GPU) == machine.NONE
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert machine.part(machine.COMPILER) == machine.NONE


def test_the_version_of_cuda_is_that_of_pytorch() -> None:
    assert machine.part(machine.CUDA) == (torch.version.cuda or machine.NONE)


def test_pytorch_is_not_loaded_for_it() -> None:
    asked = "import sys, model.machine as m; [m.part(name) for name in m.PARTS]; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize("part", ["instruction-set", "narrow-products"])
def test_a_run_does_not_go_on_where_sums_are_made_otherwise(
    make_run: Callable[..., TrainerRun], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(dtype="bfloat16")
    train(run)
    (run.out / "result" / "model.json").unlink()
    monkeypatch.setitem(machine.PARTS, part, lambda: "riscv64")
    with pytest.raises(InputError, match=f"its `machine` is .* but this run asks for .*{part}': 'riscv64'"):
        train(run)


def test_compiling_for_devices_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from model.engines import check_engine

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_engine(TrainConfig(compile=True))
    with pytest.raises(RecipeError, match="Triton, which compiles for them, is not installed"):
        check_engine(TrainConfig(compile=True, device="cuda"))
