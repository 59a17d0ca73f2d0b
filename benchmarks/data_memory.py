"""Peak memory of the four data stages over growing input, under one ceiling.

    python benchmarks/data_memory.py --data DATA [--sizes 0.5,1,2] [--workers 1,2] [--stages ...] [--scratch FOLDER]
        [--json FILE]

The input is real text of eight corpora, again and again with every seventh word changed (`edited_texts`); sizes are GB
of its JSON lines. Sample reads them, and each of the other stages all that sample left, by the code that a run uses and
in a process of its own. Memory is the proportional set size (PSS of /proc/PID/smaps_rollup) of that process and all
below it, looked at every 50 ms: pages that two of them share count once. Pages of mapped files count too, though the
system takes them back when it needs them; `own` is what remains without them.

Fails where a peak is above 2 GB, or where that of the largest input is above 1.15 times that of the smallest + 64 MB.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from measuring import PROJECT, edited_texts
from stage_build import STAGES

CEILING_MB = 2000.0
GROWTH = 1.15
GROWTH_MB = 64.0
LOOK_SECONDS = 0.05
PROGRAM = PROJECT / "benchmarks" / "stage_build.py"


@dataclass(frozen=True)
class Peak:
    """The memory of one stage on one input; sizes in MB (10^6 bytes)."""

    stage: str
    workers: int
    size: float
    """GB of text that came into the stage."""
    documents: int
    memory: float
    own: float
    """Without pages of mapped files."""
    seconds: float
    """By the clock on the wall."""


def watched(command: Sequence[str]) -> tuple[dict[str, Any], float, float]:
    """Run a command to its end; return its last line, read as JSON, and its peaks in MB (all, without mapped files)."""
    most = {"Pss": 0, "Pss_File": 0}
    own = 0
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output, cwd=PROJECT) as process:
        while process.poll() is None:
            now = _proportional(process.pid)
            most["Pss"] = max(most["Pss"], now["Pss"])
            own = max(own, now["Pss"] - now["Pss_File"])
            time.sleep(LOOK_SECONDS)
        output.seek(0)
        lines = output.read().splitlines()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(lines[-1]), most["Pss"] / 1e6, own / 1e6


def _proportional(pid: int) -> dict[str, int]:
    total = {"Pss": 0, "Pss_File": 0}
    try:
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return total
    for member in family:
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # It ended between the two looks.
        for line in lines:
            name, _, value = line.partition(":")
            if name in total:
                total[name] += int(value.split()[0]) * 1024
    return total


def write_lines(target: Path, data: Path, size: float) -> None:
    """Write edited texts as JSON lines of about `size` bytes."""
    written = 0
    with target.open("w", encoding="utf-8") as stream:
        for number, text in enumerate(edited_texts(data)):
            line = json.dumps({"id": str(number), "text": text}, ensure_ascii=False) + "\n"
            stream.write(line)
            written += len(line.encode())
            if written >= size:
                return


def settings_of(source: Path, data: Path) -> dict[str, dict[str, Any]]:
    """Return the configuration of each stage, without workers."""
    described = {"name": "text", "paths": [str(source)], "format": "jsonl", "id_field": "id", "weight": 1.0}
    benchmarks = [
        {"name": path.name.partition(".")[0], "path": str(path)} for path in sorted((data / "benchmarks").glob("*.gz"))
    ]
    return {
        "sample": {"sources": [described], "budget_tokens": 10**13},
        "clean": {"preset": "fineweb", "wipe_out_limit": 1.0},
        "dedup": {},
        "decontaminate": {"benchmarks": benchmarks},
    }


def measure(
    data: Path, size: float, workers: Sequence[int], stages: Sequence[str], scratch: Path | None
) -> Iterator[Peak]:
    """Yield the peak of each of `stages` over `size` GB for each number of workers; sample runs in any case."""
    folder = Path(tempfile.mkdtemp(prefix="memory-", dir=scratch))
    try:
        source = folder / "text.jsonl"
        write_lines(source, data, size * 1e9)
        for number in workers:
            root, documents = folder / f"root{number}", "-"
            for stage, settings in settings_of(source, data).items():
                if stage not in stages and stage != "sample":
                    continue
                began = time.perf_counter()
                words = [stage, str(root), documents, json.dumps(settings), str(number)]
                result, memory, own = watched([sys.executable, str(PROGRAM), *words])
                seconds = time.perf_counter() - began
                if stage == "sample":
                    documents = result["artifact"]
                if stage in stages:
                    yield Peak(stage, number, result["bytes"] / 1e9, result["documents"], memory, own, seconds)
            shutil.rmtree(root)
    finally:
        shutil.rmtree(folder)


def failures(peaks: Sequence[Peak]) -> list[str]:
    """Return in words every limit that is not kept."""
    found = [f"{peak.stage} took {peak.memory:.0f} MB" for peak in peaks if peak.memory > CEILING_MB]
    for stage, workers in dict.fromkeys((peak.stage, peak.workers) for peak in peaks):
        same = sorted((p for p in peaks if (p.stage, p.workers) == (stage, workers)), key=lambda peak: peak.size)
        least, most = same[0].memory, same[-1].memory
        if most > GROWTH * least + GROWTH_MB:
            found.append(f"{stage} with {workers} workers grew from {least:.0f} to {most:.0f} MB")
    return found


def main() -> None:
    """Measure, print, and fail where a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpora")
    parser.add_argument("--sizes", default="0.5,1,2", help="GB of input")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--scratch", type=Path, help="a folder on a disk, with room for four times the largest input")
    parser.add_argument("--json", type=Path, help="file that takes the same rows as JSON")
    options = parser.parse_args()
    peaks: list[Peak] = []
    print(f"{'stage':<15}{'workers':>8}{'text':>9}{'documents':>12}{'memory':>11}{'own':>11}{'seconds':>9}")
    workers = [int(number) for number in options.workers.split(",")]
    for size in map(float, options.sizes.split(",")):
        for peak in measure(options.data, size, workers, options.stages.split(","), options.scratch):
            peaks.append(peak)
            print(
                f"{peak.stage:<15}{peak.workers:>8}{peak.size:>6.2f} GB{peak.documents:>12,}{peak.memory:>8.0f} MB"
                f"{peak.own:>8.0f} MB{peak.seconds:>9.0f}",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(peak) for peak in peaks], indent=1))
    if found := failures(peaks):
        raise SystemExit("; ".join(found))


if __name__ == "__main__":
    main()
