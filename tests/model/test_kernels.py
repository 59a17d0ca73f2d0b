"""Compiled kernels are kept by their own code: real compilation, in copies of the project at other paths."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numba
import numba.core.config
import pytest

from tasks.common.code_fingerprint import PROJECT
from tests.processes import fork_program

KERNELS = {
    "mixing": "from model.kernels import kernel\n\nSTEP = 3\n\n\n@kernel\ndef mix(x):\n    return x * STEP\n",
    "signing": (
        "from model.kernels import kernel\nfrom tasks.small.mixing import mix\n\n\n"
        "@kernel\ndef sign(x):\n    return mix(x) + 1\n\n\n@kernel\ndef alone(x):\n    return x - 1\n"
    ),
}
INSTRUCTIONS = """
from numba import types
from numba.extending import intrinsic
from model.kernels import kernel


class Added:
    def to(self, builder, x):
        return builder.add(x, x.type(3))


@intrinsic
def added(typing_context, x):
    return types.int64(types.int64), lambda context, builder, signature, arguments: Added().to(builder, *arguments)


@kernel
def add(x):
    return added(x)
"""
RUN = """
import json
from tasks.small.mixing import mix
from tasks.small.signing import alone, sign
counts = {}
for kernel in (sign, mix, alone):
    value = kernel(10)
    counts[kernel.__name__] = [value, sum(kernel.stats.cache_misses.values()), sum(kernel.stats.cache_hits.values())]
print(json.dumps(counts))
"""


def start(program: str, project: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run a program on a project's modules, in a process that has imported numba already."""

    def main() -> None:
        # An edit within a second of the other leaves a file of its size and time, for which bytecode would be believed.
        sys.dont_write_bytecode = True
        numba.core.config.reload_config()
        for name in [name for name in sys.modules if name.partition(".")[0] in ("flows", "tasks", "model", "tests")]:
            del sys.modules[name]
        sys.path.insert(0, str(project))
        exec(program, {"__name__": "__main__"})
        assert sys.modules["model"].__path__ == [str(project / "model")]

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return fork_program(main, environment, cwd=project, **pipes)


def execute(program: str, project: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run such a program to its end."""
    with start(program, project, environment) as process:
        out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess("fork", process.returncode, out, err)


def copy_of_the_project(folder: Path) -> Path:
    """Its packages, with a package of three small kernels."""
    for package in ("tasks", "model"):
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tasks" / "small").mkdir()
    (folder / "tasks" / "small" / "__init__.py").write_text("")
    for name, text in KERNELS.items():
        (folder / "tasks" / "small" / f"{name}.py").write_text(text)
    return folder


def run(project: Path, home: Path, **more: str) -> tuple[dict[str, int], set[str]]:
    """What the kernels gave, and which of them were compiled; the others were loaded."""
    done = execute(RUN, project, {**environment_of(home), **more})
    assert done.returncode == 0, done.stderr
    return found_in(done.stdout)


def environment_of(home: Path) -> dict[str, str]:
    names = ("PATH", "LD_LIBRARY_PATH")
    return {**{name: os.environ[name] for name in names if name in os.environ}, "HOME": str(home)}


def found_in(printed: str) -> tuple[dict[str, int], set[str]]:
    reported = json.loads(printed)
    assert all(compiled + loaded == 1 for _, compiled, loaded in reported.values()), reported
    return {name: value for name, (value, _, _) in reported.items()}, {name for name in reported if reported[name][1]}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A home in which the kernels were compiled once, and the project that did it."""
    home = tmp_path_factory.mktemp("home")
    first = copy_of_the_project(tmp_path_factory.mktemp("first"))
    assert run(first, home) == ({"sign": 31, "mix": 30, "alone": 9}, {"sign", "mix", "alone"})
    return first, home


def test_another_checkout_of_the_same_code_compiles_nothing(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    second = copy_of_the_project(tmp_path / "second")
    assert run(second, compiled[1]) == ({"sign": 31, "mix": 30, "alone": 9}, set())


def test_of_processes_that_need_a_kernel_at_once_one_compiles_it(tmp_path: Path) -> None:
    project, home = copy_of_the_project(tmp_path / "project"), tmp_path / "home"
    started = [start(RUN, project, environment_of(home)) for _ in range(3)]
    found = [found_in(process.communicate(timeout=600)[0]) for process in started]
    assert [values for values, _ in found] == [{"sign": 31, "mix": 30, "alone": 9}] * 3
    assert sorted(name for _, compiled in found for name in compiled) == ["alone", "mix", "sign"]
    assert not list(home.rglob("*.lock"))


@pytest.mark.parametrize(
    ("module", "old", "new", "values", "anew"),
    [
        ("mixing", "STEP = 3", "STEP = 4", {"sign": 41, "mix": 40, "alone": 9}, {"sign", "mix"}),
        ("mixing", "x * STEP", "x + STEP", {"sign": 14, "mix": 13, "alone": 9}, {"sign", "mix"}),
        ("signing", "mix(x) + 1", "mix(x) + 2", {"sign": 32, "mix": 30, "alone": 9}, {"sign"}),
        ("signing", "x - 1", "x - 2", {"sign": 31, "mix": 30, "alone": 8}, {"alone"}),
        ("mixing", "\n\n\n@kernel", "\n\n\n# a comment\n\n\n@kernel", {"sign": 31, "mix": 30, "alone": 9}, set()),
    ],
)
def test_an_edit_compiles_those_kernels_that_reach_it(
    compiled: tuple[Path, Path],
    tmp_path: Path,
    module: str,
    old: str,
    new: str,
    values: dict[str, int],
    anew: set[str],
) -> None:
    second = copy_of_the_project(tmp_path / "second")
    assert old in KERNELS[module]
    (second / "tasks" / "small" / f"{module}.py").write_text(KERNELS[module].replace(old, new))
    assert run(second, compiled[1]) == (values, anew)


def test_instructions_that_a_class_of_an_intrinsic_makes_count(tmp_path: Path) -> None:
    project = copy_of_the_project(tmp_path / "project")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "named")}
    for added, expected in ((3, "5\n"), (4, "6\n")):
        text = INSTRUCTIONS.replace("type(3)", f"type({added})")
        (project / "tasks" / "small" / "adding.py").write_text(text)
        done = execute("from tasks.small.adding import add; print(add(2))", project, environment)
        assert (done.stdout, done.stderr) == (expected, "")


def test_how_kernels_are_compiled_counts(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    second = copy_of_the_project(tmp_path / "second")
    kernels = second / "model" / "kernels.py"
    kernels.write_text(kernels.read_text().replace("nogil=True", "nogil=True, fastmath=True"))
    assert run(second, compiled[1])[1] == {"sign", "mix", "alone"}


def test_where_the_home_cannot_be_written_kernels_are_kept_beside_the_modules(tmp_path: Path) -> None:
    occupied = tmp_path / "home"
    occupied.write_text("no folder")
    project = copy_of_the_project(tmp_path / "project")
    assert run(project, occupied)[1] == {"sign", "mix", "alone"}
    assert run(project, occupied)[1] == set()
    assert list((project / "tasks" / "small" / "__pycache__" / "kernels").rglob("*.nbi"))


def test_a_folder_that_is_named_is_the_one(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    first, home = compiled
    assert run(first, home, NUMBA_CACHE_DIR=str(tmp_path / "named"))[1] == {"sign", "mix", "alone"}
    assert {path.parent.name for path in (tmp_path / "named" / "kernels").rglob("*.nbi")} == {
        "tasks.small.mixing",
        "tasks.small.signing",
    }


def test_without_any_place_a_kernel_still_runs(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(occupied)}
    done = execute("from tasks.small.mixing import mix; print(mix(2))", compiled[0], environment)
    assert (done.stdout, done.stderr) == ("6\n", "")


def test_kernels_of_the_trainer_are_kept() -> None:
    """Each rank of a BERT or T5 would compile them for seconds."""
    from model.data import masking, rng, span_corruption
    from model.engines.portable import products

    kernels = [
        (module, value) for module in (masking, rng, span_corruption, products) for value in vars(module).values()
    ]
    own = [value for module, value in kernels if getattr(value, "__module__", "") == module.__name__]
    compiled = [value for value in own if hasattr(value, "py_func") and not value.targetoptions.get("inline")]
    assert len(compiled) >= 15
    assert [kernel.__name__ for kernel in compiled if kernel.stats.cache_path is None] == []


def test_a_function_that_is_none_of_the_projects_is_compiled_and_not_kept() -> None:
    from model.kernels import kernel

    double = kernel(_double)
    assert double(21) == 42
    assert double.stats.cache_path is None


def _double(value):
    return 2 * value
