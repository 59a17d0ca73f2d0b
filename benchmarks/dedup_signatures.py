"""MinHash signatures per second and core, beside datasketch 2, rensa and datatrove, on the same text in one run.

    python benchmarks/dedup_signatures.py --data DATA [--peers FOLDER]

DATA holds the corpora `en_books`, `en_techdocs_md`, `zh_techdocs`, `ru_novels`. FOLDER holds the peers' virtual
environments (`datasketch2/`, `rensa/`, `datatrove/`); a peer without one is left out. Every tool runs in a process of
its own on one core, tools taking turns; slow ones sign the beginning of the text only. Rates are per second of
processor time; the ratio is to the fastest peer.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

CORPORA = ("en_books", "en_techdocs_md", "zh_techdocs", "ru_novels")
TOOLS = {"bessemer": None, "rensa": "rensa", "datasketch": "datasketch2", "datatrove": "datatrove"}
ROUNDS = {"bessemer": 5, "rensa": 2, "datasketch": 1, "datatrove": 1}
MOST_BYTES = {"bessemer": 10**8, "rensa": 5_000_000, "datasketch": 1_000_000, "datatrove": 300_000}
TURNS = 2


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def sign(tool: str, python: Path, source: Path) -> dict[str, float]:
    runner = Path(__file__).parent / "dedup_peers" / "sign.py"
    words = [str(python), str(runner), tool, str(source), str(ROUNDS[tool]), str(MOST_BYTES[tool])]
    core = os.sched_getaffinity(0).pop()
    done = subprocess.run(["taskset", "-c", str(core), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", type=Path)
    arguments = parser.parse_args()
    tools = {"bessemer": Path(sys.executable)}
    for tool, folder in TOOLS.items():
        if folder and arguments.peers and (arguments.peers / folder).exists():
            tools[tool] = arguments.peers / folder / "bin" / "python"
    print(f"one core of {processor()}; {os.getloadavg()[0]:.1f} other processes running at the start")
    print(
        f"{'text':<16}{'MB':>6}  " + "".join(f"{tool + ' MB/s':>18}{'peak MB':>9}" for tool in tools) + f"{'ratio':>8}"
    )
    for corpus in CORPORA:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as source:
            with gzip.open(arguments.data / corpus / "part-000.jsonl.gz", "rt", encoding="utf-8") as lines:
                source.writelines(lines)
            source.flush()
            rows = [
                {tool: sign(tool, python, Path(source.name)) for tool, python in tools.items()} for _ in range(TURNS)
            ]
        rate = {tool: max(row[tool]["bytes"] / row[tool]["seconds"] for row in rows) / 1e6 for tool in tools}
        peak = {tool: max(row[tool]["peak_bytes"] for row in rows) / 1e6 for tool in tools}
        peers = [rate[tool] for tool in tools if tool != "bessemer"]
        ratio = f"{rate['bessemer'] / max(peers):>7.0f}x" if peers else ""
        size = rows[0]["bessemer"]["bytes"] / 1e6
        cells = "".join(f"{rate[tool]:>18.1f}{peak[tool]:>9.0f}" for tool in tools)
        print(f"{corpus:<16}{size:>6.1f}  {cells}{ratio}", flush=True)


if __name__ == "__main__":
    main()
