"""Peak memory of the dedup stage over growing input: real text, repeated with every seventh word changed.

    python benchmarks/dedup_memory.py --data DATA [--sizes 0.5,1,2] [--scratch FOLDER]

Sizes are GB of text. Every stage runs in a process of its own; `memory` is the most that belonged to that process,
`resident` counts pages of mapped files too, which the system takes back when it needs them.
"""

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CORPORA = ("en_books", "en_techdocs_md", "zh_techdocs", "ru_novels", "ru_techdocs", "zh_classic_prose", "en_wiki")

BUILD = """
import json, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tasks.artifact import Artifact
from tasks.build import RunContext
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample
root, source = Path(sys.argv[1]), sys.argv[2]
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
if sys.argv[4] == "dedup":
    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    report = build_dedup(context, documents, DedupConfig(threads=2)).report
    done.set()
    total = report.total()
    print(json.dumps({**peak, "seconds": time.perf_counter() - began, "in": total.documents_in,
                      "out": total.documents_out, "bytes": total.bytes_in}))
"""


def write_text(data: Path, target: Path, size: float) -> None:
    """About `size` bytes of documents, no two of them near copies unless the corpora have them."""
    documents = []
    for corpus in CORPORA:
        with gzip.open(data / corpus / "part-000.jsonl.gz", "rt", encoding="utf-8") as lines:
            documents += [json.loads(line)["text"] for line in lines]
    written = number = 0
    with target.open("w", encoding="utf-8") as stream:
        while written < size:
            for text in documents:
                words = text.split(" ")
                words[::7] = [f"{word}{number}" for word in words[::7]]
                line = json.dumps({"id": f"{number}-{written}", "text": " ".join(words)}, ensure_ascii=False)
                stream.write(line + "\n")
                written += len(line.encode())
                if written >= size:
                    break
            number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sizes", default="0.5,1,2")
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    print(f"{'text':>8}{'documents':>11}{'stay':>9}{'seconds':>9}{'memory':>10}{'resident':>10}")
    for size in arguments.sizes.split(","):
        scratch = Path(tempfile.mkdtemp(dir=arguments.scratch))
        try:
            write_text(arguments.data, scratch / "text.jsonl", float(size) * 1e9)
            words = [sys.executable, "-c", BUILD, str(scratch / "root"), str(scratch / "text.jsonl"), str(ROOT)]
            subprocess.run([*words, "sample"], check=True)
            row = json.loads(subprocess.run([*words, "dedup"], capture_output=True, text=True, check=True).stdout)
        finally:
            shutil.rmtree(scratch)
        print(
            f"{row['bytes'] / 1e9:>5.2f} GB{row['in']:>11,}{row['out']:>9,}{row['seconds']:>9.1f}"
            f"{row['RssAnon'] / 1e9:>7.2f} GB{row['VmRSS'] / 1e9:>7.2f} GB",
            flush=True,
        )


if __name__ == "__main__":
    main()
