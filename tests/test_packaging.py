"""What is installed: three packages and the command, with the recipes inside, and a lock that fits pyproject.toml."""

import ast
import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from model.files import user_cache

PROJECT = Path(__file__).parents[1]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EVERY_DEPENDENCY = [*DECLARED["dependencies"], *itertools.chain(*DECLARED["optional-dependencies"].values())]


def locked() -> dict[str, str]:
    lines = (PROJECT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.removesuffix(" \\").split("==") for line in lines if line[:1] not in ("", "#", " ")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_the_three_rooms_and_nothing_else(wheel: zipfile.ZipFile):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"flows", "tasks", "model"}


def test_every_file_of_the_packages_travels_in_the_wheel(wheel: zipfile.ZipFile):
    """Of any suffix, so that data of a new kind cannot be forgotten."""
    files = [
        path
        for package in ("flows", "tasks", "model")
        for path in (PROJECT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    ]
    assert {path.relative_to(PROJECT).as_posix() for path in files} <= set(wheel.namelist())
    assert {"flows/shipped/recipes/quickstart.toml", "flows/shipped/texts/README.md"} <= set(wheel.namelist())


def test_the_deployments_travel_in_the_wheel_as_they_are(wheel: zipfile.ZipFile):
    assert wheel.read("flows/service/prefect.yaml") == (PROJECT / "deployments" / "prefect.yaml").read_bytes()


SENTENCE = "The furnace was lit before dawn and the iron ran white into the sand of the moulds, number {}. "


def test_the_wheel_works_in_an_empty_folder(wheel: zipfile.ZipFile, tmp_path: Path):
    """Installed without the repository: init, check and plan of a folder of text."""
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([*pip, str(wheel.filename)], check=True, capture_output=True)
    (empty / "text").mkdir(parents=True)
    for number in range(20):
        (empty / "text" / f"{number}.txt").write_text(SENTENCE.format(number) * 30)
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import flows; assert flows.__file__.startswith(sys.path[0]);"
        " from flows.cli import main; main()"
    )
    environment = {**os.environ, "PYTHONPATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # The same kernels as here: compiling them takes 26 s, and tests/model/test_kernels.py does so at other paths.
    environment["NUMBA_CACHE_DIR"] = os.environ.get("NUMBA_CACHE_DIR") or str(user_cache())
    for words in (["--version"], ["init", "text"], ["check", "recipe.toml"], ["plan", "recipe.toml"]):
        command = [sys.executable, "-c", program, str(installed), *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert "will be built" in done.stdout


def test_the_metadata_allow_three_versions_of_python_and_later_ones_of_torch(wheel: zipfile.ZipFile):
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    lines = wheel.read(name).decode().splitlines()
    assert "Requires-Python: >=3.11" in lines
    assert "Requires-Dist: torch>=2.11" in lines
    assert re.fullmatch(r"\d+\.\d+\.\d+", locked()["torch"])
    for version in ("3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}" in lines


def test_the_command_is_installed():
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="bessemer")
    assert command.value == "flows.__main__:main"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-cuda.lock"])
def test_every_locked_version_has_hashes(name: str):
    text = (PROJECT / name).read_text(encoding="utf-8")
    pinned = re.findall(r"^\S+==\S+(?: \\\n +--hash=sha256:[0-9a-f]{64})+$", text, re.MULTILINE)
    assert pinned
    assert re.findall(r"^[^#\s]\S*", text, re.MULTILINE) == [stanza.split()[0] for stanza in pinned]


def test_the_licence_travels_in_the_wheel(wheel: zipfile.ZipFile):
    (name,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    assert wheel.read(name) == (PROJECT / "LICENSE").read_bytes()
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    assert b"\nLicense-Expression: Apache-2.0\n" in wheel.read(metadata)


@pytest.mark.parametrize("line", EVERY_DEPENDENCY)
def test_the_lock_satisfies_every_declared_dependency(line: str):
    wanted = Requirement(line)
    version = locked().get(canonicalize_name(wanted.name))
    assert version is not None, f"{wanted.name} is declared and not locked; run `make lock`"
    assert wanted.specifier.contains(version, prereleases=True)


def test_the_environment_is_the_lock():
    differing = {
        name: (version, found)
        for name, version in locked().items()
        if (found := importlib.metadata.version(name).partition("+")[0]) != version
    }
    assert not differing


def test_every_declared_dependency_has_its_reason_in_the_docs():
    reasons = (PROJECT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    names = [Requirement(line).name for line in EVERY_DEPENDENCY]
    assert [name for name in names if not re.search(rf"\| `{re.escape(name.lower())}` \|", reasons)] == []


def test_every_package_that_the_product_imports_is_declared():
    files = [path for package in ("flows", "tasks", "model") for path in (PROJECT / package).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in names} - {"flows", "tasks", "model", *sys.stdlib_module_names}
    declared = {canonicalize_name(Requirement(line).name) for line in EVERY_DEPENDENCY}
    brought_by = importlib.metadata.packages_distributions()
    undeclared = {one for one in packages if declared.isdisjoint(map(canonicalize_name, brought_by[one]))}
    assert undeclared == {"dask"}, "which comes with distributed"
