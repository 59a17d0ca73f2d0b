"""The Dockerfile and the systemd units, as far as they can be judged without an engine and without root."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
DOCKERFILE = PROJECT / "deployments" / "Dockerfile"
UNITS = sorted((PROJECT / "deployments" / "systemd").glob("*.service"))
INSTALLED = "/opt/bessemer/.venv/bin/"
BIN = Path(sys.prefix) / "bin"


def test_the_dockerfile_is_without_fault() -> None:
    done = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_the_python_that_is_asked_for_and_all_that_the_wheel_needs() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    lowest = project["project"]["requires-python"].partition(",")[0].removeprefix(">=")
    assert {version.rpartition(".")[0] for version in re.findall(r"^FROM python:([\d.]+)-", text, re.MULTILINE)} == {
        lowest
    }
    copied = {word for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for word in line.split()}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *(name.partition("/")[0] for name in wheel["force-include"])}
    assert needed | {"requirements.lock", "pyproject.toml", project["project"]["readme"]} <= copied
    sent = set(re.findall(r"^!(.+)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE))
    assert copied <= sent
    assert [name for name in copied if not (PROJECT / name).exists()] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_programs_that_are_installed_as_a_user_without_rights(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    commands = re.findall(r"^Exec\w+=(.+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        program = shlex.split(command)[0]
        assert program.startswith(INSTALLED)
        assert (BIN / program.removeprefix(INSTALLED)).is_file()
    assert re.search(r"^User=bessemer$", text, re.MULTILINE)
    assert re.search(r"^NoNewPrivileges=true$", text, re.MULTILINE)
    assert not re.search(r"^Environment=.*(PASSWORD|AUTH|SECRET|CONNECTION_URL)", text, re.MULTILINE), (
        "units are readable"
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text(encoding="utf-8").replace(INSTALLED, f"{BIN}/"))
    words = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "bessemer" in line]
    assert (done.returncode, ours) == (0, [])
