"""Runs in text-dedup's own environment: INPUT.jsonl FOLDER -> FOLDER/kept.json, by its command with threshold 0.8."""

import json
import subprocess
import sys
from pathlib import Path

import datasets


def main(source: Path, folder: Path) -> None:
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "input"))
    command = [sys.executable, "-m", "text_dedup.minhash", "--path", str(folder / "input"), "--local"]
    command += ["--cache_dir", str(folder / "cache"), "--output", str(folder / "output"), "--column", "text"]
    command += ["--threshold", "0.8", "--ngram", "5", "--min_length", "0", "--num_proc", "1", "--batch_size", "10000"]
    subprocess.run(command, check=True)
    kept = datasets.load_from_disk(str(folder / "output"))["id"]
    (folder / "kept.json").write_text(json.dumps(list(kept)))


main(Path(sys.argv[1]), Path(sys.argv[2]))
