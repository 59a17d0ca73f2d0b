"""A service of its own, deployed runs of a small recipe, and the processes behind them."""

import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.proofs import PROJECT, mounted, project_environment
from flows.recipe.stages import STAGES
from model.distributed.heartbeat import read_beat

POSTGRESQL = PROJECT / "deployments" / "local" / "postgresql.sh"
CLOCK = Path(__file__).with_name("clock.c")
DISK_BYTES = 256 << 20
COMMAND_SECONDS = 580.0
RECIPE = """
format = 1
name = "deployed"
seed = 7
budget_tokens = "100K"

[[sources]]
name = "notes"
paths = ["{folder}/notes/*.txt"]
format = "text"
weight = 0.5
language = "en"

[[sources]]
name = "code"
paths = ["{library}/json/*.py", "{library}/asyncio/*.py", "{library}/email/*.py"]
format = "code"
weight = 0.5

[sample]
part_bytes = 100_000
slack = 10.0

[vocab]
vocab_size = 512

[train]
ranks = 1
threads = 1
batch_rows = 8
micro_batch_rows = 8
checkpoint_steps = 10
hang_seconds = 60
start_seconds = 400

[train.model]
context = 64
layers = 2
heads = 2
width = 64

[train.restarts]
pause_seconds = 0.5
"""
SENTENCE = (
    "the iron and coke of a blast furnace melt when air is blown through them and steel is what is left after the"
    " carbon has gone out with the flame as the ladle pours into moulds that cool by and by while workers charge more"
    " ore with limestone for slag which floats on top so it can be taken off before every cast of rails or plates"
)


def write_recipe(folder: Path) -> Path:
    """Write the recipe and its notes, sentences that depend on nothing but their number; return the recipe's path."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    words, state = SENTENCE.split(), 1
    for number in range(400):
        sentences = []
        for _ in range(20):
            chosen = []
            for _ in range(12):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                chosen.append(words[(state >> 33) % len(words)])
            sentences.append(" ".join(chosen).capitalize() + ".")
        (notes / f"note-{number:03}.txt").write_text("\n".join(sentences) + "\n")
    path = folder / "deployed.toml"
    path.write_text(RECIPE.format(folder=folder, library=sysconfig.get_paths()["stdlib"]))
    return path


@dataclass(frozen=True)
class DeployedRun:
    """One deployed run with a root of its own, so that nothing of another is reused."""

    root: Path
    identities: dict[str, str]
    """By stage, as an undisturbed run has them; the run ends with the last of these."""

    def contents(self) -> dict[str, str]:
        """Return the content digests of the published artifacts, by stage."""
        found = {}
        for stage, identity in self.identities.items():
            manifest = self.root / "artifacts" / stage / identity / "manifest.json"
            if manifest.exists():
                found[stage] = json.loads(manifest.read_text())["content"]
        return found

    def is_under_way(self, stage: str) -> bool:
        """Return whether the stage is being built."""
        return any((self.root / "work").glob(f"{self.identities[stage]}.*"))

    def under_way(self) -> str:
        """Return the stage that is being built, for the table."""
        return next((stage for stage in self.identities if self.is_under_way(stage)), "between stages")

    def step(self) -> int:
        """Return the number of steps that the training has made, as its ranks' heartbeats show it."""
        beats = (read_beat(file) for file in self.root.glob("work/*/scratch/train/ranks-*/rank-*.beat"))
        return max((beat.step for beat in beats if beat is not None), default=0)

    def other_artifacts(self) -> list[str]:
        """Return the paths of artifacts under identities that an undisturbed run does not have."""
        expected = {(stage, identity) for stage, identity in self.identities.items()}
        return [str(path) for path in self.root.glob("artifacts/*/*") if (path.parent.name, path.name) not in expected]


class World:
    """The service with its database, disk and clock, under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.disk = folder / "disk"
        self.clock = folder / "clock"
        self.deployed_runs = folder / "deployed_runs"
        for made in (self.root, self.disk, self.deployed_runs):
            made.mkdir(parents=True, exist_ok=True)
        self.set_clock(0)
        self.recipe = write_recipe(folder)
        self.has_disk = mounted(self.disk, DISK_BYTES)
        self.clock_library = _compiled(CLOCK, folder / "clock.so")
        self.port = self._port()
        self.database = ""

    def _port(self) -> int:
        kept = self.folder / "port"
        if not kept.exists():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                kept.write_text(str(probe.getsockname()[1]))
        return int(kept.read_text())

    def environment(self) -> dict[str, str]:
        """Return the service's environment: the checkout's code, a clock that can be set, a worker that looks often."""
        found = {**project_environment(), "PREFECT_WORKER_QUERY_SECONDS": "3"}
        if self.clock_library is not None:
            found |= {
                "LD_PRELOAD": str(self.clock_library),
                "CLOCK_OFFSET": str(self.clock),
            }
        return found

    def set_clock(self, offset: int) -> None:
        """Set the clock of every process of the service to the true one plus `offset` seconds."""
        with self.clock.open("r+b" if self.clock.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("q", offset))

    def clock_offset(self) -> int:
        """Return the seconds by which the service's clock is ahead of the true one."""
        return struct.unpack("q", self.clock.read_bytes())[0]

    def bessemer(self, *words: str | Path, check: bool = True) -> str:
        """Run a command of ours; return what it prints. Raises SystemExit if it fails, unless `check` is off."""
        command = [sys.executable, "-m", "flows.cli", *map(str, words)]
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if check and done.returncode != 0:
            raise SystemExit(f"`bessemer {' '.join(map(str, words))}` ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def start_database(self) -> None:
        """Start PostgreSQL where it does not run."""
        started = subprocess.run(
            [str(POSTGRESQL), "start", str(self.folder / "postgresql")], capture_output=True, text=True, check=True
        )
        self.database = started.stdout.split()[-1]

    def up(self) -> None:
        """Bring up what does not run, as a machine does that starts."""
        self.start_database()
        words = ("serve", "start", "--root", self.root, "--recipe", self.recipe, "--port", str(self.port))
        self.bessemer(*words, "--database", self.database)

    def down(self) -> None:
        """End everything; what is built stays."""
        self.bessemer("serve", "stop", "--now", "--root", self.root, check=False)
        for process in self.processes_with(str(self.deployed_runs)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        subprocess.run([str(POSTGRESQL), "stop", str(self.folder / "postgresql")], capture_output=True, check=False)
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self.disk)], capture_output=True, check=False)

    def undisturbed(self) -> DeployedRun:
        """Return the run to which nothing happens, built once, by command."""
        root = self.folder / "undisturbed"
        if not (root / "done").exists():
            self.bessemer("run", self.recipe, "--root", root, "--json")
            (root / "done").touch()
        found = {stage: next((root / "artifacts" / stage).iterdir()).name for stage in STAGES}
        return DeployedRun(root, found)

    def deployed(self, number: int, stage: str, on_disk: bool) -> DeployedRun:
        """Make a root in which only the stages before `stage` are published; its run ends with the stage after `stage`,
        whose bytes decide those of the later ones."""
        template = self.undisturbed()
        root = (self.disk if on_disk else self.deployed_runs) / f"{number:03}"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for before in STAGES[: STAGES.index(stage)]:
            shutil.copytree(template.root / "artifacts" / before, root / "artifacts" / before)
        return DeployedRun(root, {built: template.identities[built] for built in STAGES[: STAGES.index(stage) + 2]})

    def run(self, deployed: DeployedRun) -> str:
        """Start a run of the deployment, as the UI's form does; return its id."""
        (deployment,) = self.ask("/deployments/filter", {"deployments": {"name": {"any_": ["00-pretrain"]}}})
        parameters = {**deployment["parameters"], "recipe": str(self.recipe), "root": str(deployed.root)}
        parameters["until"] = list(deployed.identities)[-1]
        made = self.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        return made["id"]

    def runs(self, deployed: DeployedRun) -> list[dict[str, Any]]:
        """Return all flow runs of a deployed run, oldest first."""
        found = self.ask("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 200})
        return [run for run in reversed(found) if run["parameters"].get("root") == str(deployed.root)]

    def runs_of(self, number: int) -> list[dict[str, Any]]:
        """Return all flow runs of the deployment with this number, which may be cleared."""
        roots = [folder / f"{number:03}" for folder in (self.deployed_runs, self.disk)]
        return [run for root in roots for run in self.runs(DeployedRun(root, {}))]

    def cancel(self, run: str) -> None:
        """Cancel a run, as the UI's button does."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.ask(f"/flow_runs/{run}/set_state", {"state": state})

    def ask(self, path: str, body: Any) -> Any:
        """Return the server's answer; raise URLError, OSError or ValueError where it gives none."""
        url = f"http://127.0.0.1:{self.port}/api{path}"
        token = base64.b64encode((self.root / "service" / "password").read_bytes().strip()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def pid(self, name: str) -> int | None:
        """Return the process id of `server`, `worker` or `keeper`, None where it does not run."""
        try:
            pid = json.loads((self.root / "service" / f"{name}.json").read_text())["pid"]
        except (FileNotFoundError, ValueError):
            return None
        return pid if psutil.pid_exists(pid) else None

    def engines(self, deployed: DeployedRun) -> list[psutil.Process]:
        """Return the processes of Prefect that run a flow run of this deployed run."""
        found = []
        ours = {run["id"] for run in self.runs(deployed)}
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            with suppress(psutil.Error):
                if any("prefect" in word for word in words) and process.environ().get("PREFECT__FLOW_RUN_ID") in ours:
                    found.append(process)
        return found

    def trainers(self, deployed: DeployedRun) -> tuple[psutil.Process | None, list[psutil.Process]]:
        """Return the supervisor, None where there is none, and the ranks of the run's training."""
        supervisor, ranks = None, []
        for process in self.processes_with(str(deployed.root)):
            with suppress(psutil.Error):
                if "model.train" in process.cmdline():
                    supervisor = process
                elif process.name().startswith("rank "):
                    ranks.append(process)
        return supervisor, ranks

    def processes_with(self, words: str) -> list[psutil.Process]:
        """Return the living processes whose command holds these words, ourselves left out."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            command = " ".join(process.info["cmdline"] or [])
            if words in command and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def postgresql(self) -> list[psutil.Process]:
        """Return the database's first process and its children."""
        lines = (self.folder / "postgresql" / "data" / "postmaster.pid").read_text().split()
        first = psutil.Process(int(lines[0]))
        return [first, *first.children(recursive=True)]

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drop every packet to the server's port within this block."""
        rule = ["INPUT", "-i", "lo", "-p", "tcp", "--dport", str(self.port), "-j", "DROP"]
        subprocess.run(["iptables", "-I", *rule], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["iptables", "-D", *rule], check=True, capture_output=True)

    @property
    def can_cut_off(self) -> bool:
        """Whether packets can be dropped here."""
        asked = ["iptables", "-C", "INPUT", "-i", "lo", "-p", "tcp", "--dport", "1", "-j", "DROP"]
        if shutil.which("iptables") is None:
            return False
        # 1: there is no such rule, which it could find out.
        return subprocess.run(asked, capture_output=True, check=False).returncode in (0, 1)


def send(process: psutil.Process | int | None, number: signal.Signals) -> bool:
    """Send a signal to a process; return False where it is not there."""
    pid = process.pid if isinstance(process, psutil.Process) else process
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(true: Any, seconds: float, every: float = 0.25) -> bool:
    """Wait until `true()` holds, also over a server that does not answer; return False where it does not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(urllib.error.URLError, OSError, ValueError, psutil.Error):
            if true():
                return True
        time.sleep(every)
    return False


def _compiled(source: Path, library: Path) -> Path | None:
    """Compile a C file to a library; return its path, None where there is no compiler or it fails."""
    words = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    if shutil.which("cc") is None or subprocess.run(words, check=False).returncode != 0:
        return None
    return library
