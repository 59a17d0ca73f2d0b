"""Which variables reach the processes of a run."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model.config.train import TrainConfig
from model.environment import FIXED, deciding_variables, describe_left_out, run_environment, trainer_environment
from model.launch.launcher import StopOfRanks, run_ranks
from model.launch.replicas import HostRanks
from model.launch.template import Template

PROJECT = Path(__file__).parents[2]
PASSING = {
    "PATH": "/bin",
    "HOME": "/home/smith",
    "SSL_CERT_FILE": "/etc/own.pem",
    "https_proxy": "http://proxy",
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "HF_TOKEN": "t0ken",
    "CUDA_VISIBLE_DEVICES": "1",
    "NCCL_SOCKET_IFNAME": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "MASTER_ADDR": "10.0.0.1",
    "SLURM_PROCID": "3",
    "BESSEMER_CACHE": "/cache",
}
OF_A_RUN_ALONE = {"PREFECT_API_URL": "http://server", "TERM": "xterm"}
DECIDING = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_THREAD_LIMIT": "1", "PYTHONUTF8": "0"}
UNKNOWN = {"FORGE": "cold"}
SHED = """
import json, os, sys
from model.environment import filter_environment
filter_environment()
import locale
print(json.dumps([dict(os.environ), os.getpid(), sys.flags.utf8_mode, locale.getencoding(), sys.argv[1:]]))
"""

LOADED = """
import os
import deepspeed, sklearn, torch
from model.environment import deciding_variables
print(sorted(deciding_variables(os.environ)))
"""


def test_what_loaded_libraries_set_for_themselves_decides_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in deciding_variables(os.environ)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=PROJECT, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_trainer_gets_what_passes_by_name_and_what_is_given() -> None:
    known = {**PASSING, **OF_A_RUN_ALONE, **DECIDING, **UNKNOWN}
    assert trainer_environment(known, {"MKL_CBWR": "AVX2"}) == {**PASSING, **FIXED, "MKL_CBWR": "AVX2"}


def test_a_run_keeps_its_terminal_and_its_server_besides() -> None:
    known = {**PASSING, **OF_A_RUN_ALONE, **DECIDING, **UNKNOWN}
    assert run_environment(known) == {**PASSING, **OF_A_RUN_ALONE, **FIXED}


@pytest.mark.parametrize(
    ("name", "value", "decides"),
    [
        ("LANG", "en_US.UTF-8", False),
        ("LC_CTYPE", "de_DE.utf8@euro", False),
        ("LC_ALL", "C", False),
        ("LC_ALL", "de_DE.ISO-8859-1", True),
        ("LANG", "ja_JP", True),
        ("LD_PRELOAD", "libjemalloc.so", True),
        ("LD_LIBRARY_PATH", "/opt/lib", False),
        ("NUMBA_CACHE_DIR", "/tmp", False),
        ("NUMBA_DISABLE_JIT", "1", True),
        ("CUDA_VISIBLE_DEVICES", "0", False),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST", True),
        ("OMP_WAIT_POLICY", "passive", False),
        ("FORGE", "cold", False),
    ],
)
def test_a_variable_decides_where_it_is_read_and_does_not_pass(name: str, value: str, decides: bool) -> None:
    assert deciding_variables({name: value}) == ({name: value} if decides else {})


def test_a_stage_without_a_library_does_not_depend_on_what_it_reads() -> None:
    known = {"NPY_DISABLE_CPU_FEATURES": "AVX2", "OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": "x"}
    assert list(deciding_variables(known, ["numpy", "pyarrow"])) == ["GLIBC_TUNABLES", "NPY_DISABLE_CPU_FEATURES"]


def _shed(environment: Mapping[str, str]) -> tuple[int, list[Any]]:
    words = [sys.executable, "-c", SHED, "two words"]
    process = subprocess.Popen(words, env={"PYTHONPATH": str(PROJECT), **environment}, stdout=subprocess.PIPE)
    reported, _ = process.communicate(timeout=60)
    return process.pid, json.loads(reported)


def test_a_process_that_read_a_deciding_variable_is_started_again_without_it() -> None:
    pid, (left, own_pid, utf8_mode, encoding, arguments) = _shed({**PASSING, **OF_A_RUN_ALONE, **DECIDING, **UNKNOWN})
    names = "ATEN_CPU_CAPABILITY,MKL_CBWR,OMP_THREAD_LIMIT,PYTHONUTF8"
    assert left == {**PASSING, **OF_A_RUN_ALONE, **FIXED, "PYTHONPATH": str(PROJECT), "BESSEMER_LEFT_OUT": names}
    assert (own_pid, utf8_mode, encoding.lower(), arguments) == (pid, 0, "utf-8", ["two words"])


def test_a_process_without_one_leaves_the_rest_out_as_it_goes() -> None:
    _, (left, *_) = _shed({**PASSING, **UNKNOWN, "LANG": "C.UTF-8"})
    assert left == {**PASSING, **FIXED, "PYTHONPATH": str(PROJECT)}


def test_a_command_can_be_started_so() -> None:
    words = [sys.executable, "-m", "model.environment", "-c", "import os; print(*sorted(os.environ))"]
    known = {**PASSING, **UNKNOWN, **DECIDING, "PYTHONPATH": str(PROJECT)}
    reported = subprocess.run(words, env=known, capture_output=True, text=True, check=True).stdout
    assert set(reported.split()) == {*PASSING, *FIXED, "PYTHONPATH"}


def test_what_is_left_out_is_reported_by_name() -> None:
    assert describe_left_out(PASSING) == []
    (sentence,) = describe_left_out({**PASSING, "BESSEMER_LEFT_OUT": "ATEN_CPU_CAPABILITY,MKL_CBWR"})
    assert sentence.startswith("left out of this run's environment: ATEN_CPU_CAPABILITY, MKL_CBWR. ")
    (sentence,) = describe_left_out({**PASSING, "MKL_CBWR": "AVX2"})
    assert sentence.startswith("MKL_CBWR: libraries in this process may have read it")


def test_the_command_line_filters_its_environment(tmp_path: Path) -> None:
    """Seen by a module that Python loads as it starts: the second start is without the variable."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nopen({str(tmp_path / 'log')!r}, 'a').write(f\"{{os.environ.get('ATEN_CPU_CAPABILITY')}}\\n\")\n"
    )
    path = os.pathsep.join([str(tmp_path), str(PROJECT)])
    environment = {**os.environ, "PYTHONPATH": path, "ATEN_CPU_CAPABILITY": "default"}
    words = [sys.executable, "-m", "flows.cli", "--version"]
    reported = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert reported.startswith("bessemer ")
    assert (tmp_path / "log").read_text() == "default\nNone\n"


WRITES_ITS_ENVIRONMENT = """
import json, os, sys
sys.modules["model.train.rank"] = sys.modules[__name__]

def main(arguments):
    json.dump(dict(os.environ), open(arguments[0], "w"))
    return 0
"""


def test_ranks_start_so_whoever_starts_their_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRITES_ITS_ENVIRONMENT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), str(tmp_path)]))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    train = TrainConfig(ranks=2, batch_rows=2, micro_batch_rows=1, environment=("MKL_CBWR=AVX2",))

    def arguments(rank: int, rank_dir: Path) -> list[str]:
        return [str(tmp_path / f"{rank}.json"), str(rank), str(rank_dir)]

    host_ranks = HostRanks((0, 1), (0, 3), 2)
    with closing(Template(tmp_path / "run.json", train.given, train.start_seconds)) as template:
        launch = run_ranks(train, tmp_path, template, arguments, host_ranks, StopOfRanks(), lambda slow: None)
    assert launch.finished
    for rank in range(2):
        environment = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "ATEN_CPU_CAPABILITY" not in environment
        assert environment["MKL_CBWR"] == "AVX2"
        assert environment["LOCAL_RANK"] == str((0, 3)[rank]), "the device of ranks that are left out stays unused"
