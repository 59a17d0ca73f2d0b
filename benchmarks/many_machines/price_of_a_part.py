"""What a part costs beside the work done on it: in threads, in processes, and on a Dask cluster on this machine.

    PYTHONPATH=.:benchmarks/many_machines .venv/bin/python benchmarks/many_machines/price_of_a_part.py [PARTS]

Processor time of all processes that take part, over PARTS (1,000) parts of one document each, which are copied: read,
checked, written durably, recorded. The rest of the table is who spent it.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import blake3
import psutil
import pyarrow as pa
from copying import copy_part

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.map_parts import map_parts, unit_name
from tasks.artifacts.tables.schema import DOCUMENTS
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.execution.executor import make_executor
from tasks.execution.machines import Machines

SCRIPT = Path(__file__).parents[2] / "deployments" / "local" / "dask.sh"
MADE = Stage("made", roots=("tasks.artifacts.tables.ledger",), libraries=())
COPIED = Stage("copied", roots=("tasks.artifacts.tables.map_parts",), libraries=("pyarrow",))


class Named(StrictConfig):
    name: str


def main() -> None:
    parts = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        documents = made(root, parts)
        address = cluster("start", root / "cluster").splitlines()[-1]
        try:
            print(f"{'executor':<12}{'driver':>10}{'scheduler':>11}{'workers':>10}{'all':>9}   ms of CPU a part")
            for executor in ("threads", "processes", "dask"):
                print_price(executor, measured(root, documents, executor, address), parts)
        finally:
            cluster("stop", root / "cluster")


def made(root: Path, parts: int) -> Artifact:
    """Build an artifact of `parts` parts of one document each, all in one unit."""
    digest = blake3.blake3(b"ingot").digest(length=16)
    row = {"doc_id": digest, "piece": 0, "source": "ore", "lang": "en", "text": "ingot", "text_digest": digest}
    table = pa.Table.from_pylist([{**row, "origin": {"path": "a", "record": 0, "byte": 0}, "meta": None}], DOCUMENTS)

    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("all") as unit:
            for index in range(parts):
                write_table(unit, "documents", table, table_file_name("documents", unit_name(index)))
        return StageReport()

    return build_artifact(RunContext(root, "run"), MADE, Named(name="made"), {}, run)


def measured(root: Path, documents: Artifact, executor: str, address: str) -> dict[str, float]:
    """Copy all parts by an executor; return seconds of processor time by who spent it."""
    machines = Machines(executor=executor, address=address if executor == "dask" else None)  # pyright: ignore[reportArgumentType]
    spent = {"driver": -time.process_time(), "scheduler": 0.0, "workers": 0.0}
    idle = {who: cpu(root, begins) for who, begins in (("scheduler", "scheduler"), ("workers", "worker-"))}
    children = os.times()

    def run(workspace: Workspace) -> StageReport:
        return map_parts(workspace, documents, copy_part, make_executor(machines, 2, workspace, in_threads=True))

    def build(workspace: Workspace) -> StageReport:
        report = run(workspace)
        spent["driver"] += time.process_time()
        return report

    build_artifact(RunContext(root, "run"), COPIED, Named(name=executor), {"documents": documents}, build)
    after = os.times()
    if executor == "dask":
        spent["scheduler"] = cpu(root, "scheduler") - idle["scheduler"]
        spent["workers"] = cpu(root, "worker-") - idle["workers"]
    if executor == "processes":
        spent["workers"] += after.children_user + after.children_system
        spent["workers"] -= children.children_user + children.children_system
    return spent


def cpu(root: Path, begins: str) -> float:
    total = 0.0
    for file in (root / "cluster").glob(f"{begins}*.pid"):
        times = psutil.Process(int(file.read_text())).cpu_times()
        total += times.user + times.system
    return total


def print_price(executor: str, spent: dict[str, float], parts: int) -> None:
    each = {who: 1000 * seconds / parts for who, seconds in spent.items()}
    print(
        f"{executor:<12}{each['driver']:>10.2f}{each['scheduler']:>11.2f}{each['workers']:>10.2f}"
        f"{sum(each.values()):>9.2f}",
        flush=True,
    )


def cluster(word: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHON": sys.executable}
    words = [SCRIPT, word, folder, *(["2"] if word == "start" else [])]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout


if __name__ == "__main__":
    main()
