"""Peak memory of the decontaminate stage over growing input: real text, repeated with every seventh word changed.

    python benchmarks/decontaminate_memory.py --data DATA [--sizes 0.5,1,2] [--scratch FOLDER]

Sizes are GB of text; all benchmarks of DATA are looked for, by two threads. Every size runs in a process of its own;
`memory` is the most that belonged to that process alone, `resident` counts pages of mapped files too, which the system
takes back when it needs them.
"""

import argparse
import gzip
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPORA = ("en_books", "en_techdocs_md", "zh_techdocs", "ru_novels", "ru_techdocs", "zh_classic_prose", "en_wiki")

BUILD = """
import json, sys, threading, time
from pathlib import Path
root, source, benchmarks = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
sys.path.insert(0, sys.argv[4])
from tasks.build import RunContext
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.stage import build_decontaminate
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample
peak, done = {"RssAnon": 0, "VmRSS": 0}, threading.Event()
def watch():
    while not done.wait(0.02):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in peak:
                peak[name] = max(peak[name], int(value.split()[0]) * 1024)
context = RunContext(root, "benchmark")
described = Source(name="text", paths=(source,), format="jsonl", id_field="id", weight=1.0)
documents = build_sample(context, SampleConfig(sources=(described,), budget_tokens=10**13))
if sys.argv[5] == "decontaminate":
    found = tuple(Benchmark(name=path.name.partition(".")[0], path=path) for path in sorted(benchmarks.glob("*.gz")))
    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    report = build_decontaminate(context, documents, DecontaminateConfig(benchmarks=found, workers=2)).report
    done.set()
    total = report.total()
    print(json.dumps({**peak, "seconds": time.perf_counter() - began, "documents": total.documents_in,
                      "bytes": total.bytes_in, "leaked": report.facts["leaked_documents"]}))
"""


def write_text(data: Path, target: Path, size: float) -> None:
    """About `size` bytes of documents; every copy of one has other words, so that it stands for another document."""
    texts: list[str] = []
    for name in CORPORA:
        with gzip.open(data / name / "part-000.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    written = 0
    with target.open("w", encoding="utf-8") as stream:
        for number, text in enumerate(itertools.cycle(texts)):
            words = text.split(" ")
            words[::7] = [f"{word}{number}" for word in words[::7]]
            line = json.dumps({"id": str(number), "text": " ".join(words)}, ensure_ascii=False) + "\n"
            stream.write(line)
            written += len(line.encode())
            if written >= size:
                return


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sizes", default="0.5,1,2")
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    for size in map(float, options.sizes.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="decontaminate-memory-", dir=options.scratch))
        try:
            source = folder / "text.jsonl"
            write_text(options.data, source, size * 1e9)
            words = [sys.executable, "-c", BUILD, folder / "root", source, options.data / "benchmarks", ROOT]
            subprocess.run([*words, "sample"], check=True)
            done = subprocess.run([*words, "decontaminate"], check=True, capture_output=True, text=True)
            row = json.loads(done.stdout)
            print(
                f"{row['bytes'] / 1e9:5.2f} GB, {row['documents']:>9,} documents: memory {row['RssAnon'] / 1e9:.2f} GB,"
                f" resident {row['VmRSS'] / 1e9:.2f} GB, {row['seconds']:.0f} s, {row['leaked']:,} with leaks",
                flush=True,
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
