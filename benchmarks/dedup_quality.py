"""Which documents dedup removes on labelled near-duplicates and templated pages, beside datatrove and text-dedup.

    python benchmarks/dedup_quality.py --data DATA [--peers FOLDER] [--json]

DATA holds `neardup_revisions/docs.jsonl.gz`, `neardup_editions/docs.jsonl.gz` and `tldr_short_md/part-000.jsonl.gz`.
FOLDER holds the peers' virtual environments, `datatrove/` (datatrove, its default 14 x 8) and `textdedup/` (text-dedup,
threshold 0.8, 5-grams); a peer without an environment is left out. All run on the same files, one after another.

The truth is exact: Jaccard similarity of sets of 5 tokens, a token being a CJK character or a lower-cased run of other
word characters. A removal is right where a document that stays is at least 0.8 like the removed one (one-sided 0.02
for words split otherwise); a pair at 0.8 and above is resolved where at most one of the two stays.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SETS = {
    "revisions": "neardup_revisions/docs.jsonl.gz",
    "editions": "neardup_editions/docs.jsonl.gz",
    "tldr": "tldr_short_md/part-000.jsonl.gz",
}
PEERS = {"datatrove": "datatrove_minhash.py", "textdedup": "textdedup_minhash.py"}
TOKEN = re.compile(r"[㐀-鿿]|[^\W㐀-鿿]+")
WIDTH = 5
THRESHOLD = 0.8
TOLERANCE = 0.02


@dataclass
class Truth:
    """Exact similarities at least 0.3 between documents of a set."""

    similar: dict[int, dict[int, float]]

    @staticmethod
    def of(texts: list[str]) -> "Truth":
        """Find the similar documents by an inverted index over shingles."""
        sets = []
        for text in texts:
            tokens = TOKEN.findall(text.lower())
            sets.append({tuple(tokens[i : i + WIDTH]) for i in range(max(1, len(tokens) - WIDTH + 1))})
        holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, shingles in enumerate(sets):
            for shingle in shingles:
                holders[shingle].append(number)
        similar: dict[int, dict[int, float]] = defaultdict(dict)
        for number, shingles in enumerate(sets):
            common = Counter(other for shingle in shingles for other in holders[shingle] if other > number)
            for other, count in common.items():
                jaccard = count / (len(shingles) + len(sets[other]) - count)
                if jaccard >= 0.3:
                    similar[number][other] = similar[other][number] = jaccard
        return Truth(similar)

    def score(self, documents: int, kept: set[int]) -> dict[str, float]:
        """Return the precision of removals, the share of pairs resolved, and the counts behind both."""
        removed = [number for number in range(documents) if number not in kept]
        nearest = [max((j for o, j in self.similar[n].items() if o in kept), default=0.0) for n in removed]
        right = sum(jaccard >= THRESHOLD - TOLERANCE for jaccard in nearest)
        pairs = [(a, b) for a, others in self.similar.items() for b, j in others.items() if a < b and j >= THRESHOLD]
        resolved = sum(not (a in kept and b in kept) for a, b in pairs)
        return {
            "documents": documents,
            "removed": len(removed),
            "wrong": len(removed) - right,
            "precision": right / len(removed) if removed else 1.0,
            "pairs": len(pairs),
            "resolved": resolved / len(pairs) if pairs else 1.0,
        }


def ours(source: Path, folder: Path) -> set[int]:
    """Return the records that stay after this project's dedup, on its own sample of the file."""
    from tasks.artifacts.build import RunContext
    from tasks.dedup.config import DedupConfig
    from tasks.dedup.stage import build_dedup
    from tasks.sample.config import SampleConfig, Source
    from tasks.sample.stage import build_sample

    context = RunContext(folder, "benchmark")
    described = Source(name="labelled", paths=(str(source),), format="jsonl", id_field="id", weight=1.0)
    sampled = build_sample(context, SampleConfig(sources=(described,), budget_tokens=10**12))
    config = DedupConfig(planted_pairs=0, wipe_out_limit=1.0, threads=1)
    origins = build_dedup(context, sampled, config).table("documents").column("origin").to_pylist()
    return {origin["record"] for origin in origins}


def of_peer(peer: str, peers: Path, source: Path, folder: Path, ids: list[str]) -> set[int]:
    """Return the records that stay after a peer's dedup, in its own environment."""
    runner = Path(__file__).parent / "peers" / PEERS[peer]
    command = [str(peers / peer / "bin" / "python"), str(runner), str(source), str(folder)]
    environment = {**os.environ, "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{peer} failed:\n{done.stderr[-3000:]}")
    number = {name: index for index, name in enumerate(ids)}
    return {number[name] for name in json.loads((folder / "kept.json").read_text())}


def measure(data: Path, peers: Path | None) -> list[dict[str, object]]:
    """Return a row per set and tool."""
    rows: list[dict[str, object]] = []
    for name, path in SETS.items():
        with gzip.open(data / path, "rt", encoding="utf-8") as lines:
            documents = [json.loads(line) for line in lines]
        truth = Truth.of([document["text"] for document in documents])
        tools = ["bessemer", *(peer for peer in PEERS if peers and (peers / peer).exists())]
        for tool in tools:
            with tempfile.TemporaryDirectory() as scratch:
                source, folder = Path(scratch) / "input.jsonl", Path(scratch) / "work"
                folder.mkdir()
                lines = (json.dumps({"id": d["id"], "text": d["text"]}, ensure_ascii=False) for d in documents)
                source.write_text("\n".join(lines) + "\n", encoding="utf-8")
                began = time.perf_counter()
                if tool == "bessemer":
                    kept = ours(source, folder)
                else:
                    assert peers is not None
                    kept = of_peer(tool, peers, source, folder, [document["id"] for document in documents])
                seconds = time.perf_counter() - began
            rows.append({"set": name, "tool": tool, **truth.score(len(documents), kept), "seconds": round(seconds, 1)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.data, arguments.peers)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(
        f"{'set':<11}{'tool':<11}{'documents':>10}{'removed':>9}{'wrong':>7}{'precision':>11}{'pairs':>8}{'resolved':>10}"
    )
    for row in rows:
        print(
            f"{row['set']:<11}{row['tool']:<11}{row['documents']:>10}{row['removed']:>9}{row['wrong']:>7}"
            f"{row['precision']:>11.4f}{row['pairs']:>8}{row['resolved']:>10.4f}"
        )


if __name__ == "__main__":
    main()
