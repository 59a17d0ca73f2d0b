"""Runs in datatrove's own environment: INPUT.jsonl FOLDER -> FOLDER/kept.json, with its default MinHash settings."""

import json
import sys
from pathlib import Path

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def main(source: Path, folder: Path) -> None:
    config = MinhashConfig()
    place = {name: str(folder / name) for name in ("signatures", "buckets", "removals", "output", "logs")}
    reader = JsonlReader(str(source.parent), glob_pattern=source.name)
    steps = [
        [reader, MinhashDedupSignature(place["signatures"], config)],
        [MinhashDedupBuckets(place["signatures"], place["buckets"], config=config)],
        [MinhashDedupCluster(place["buckets"], place["removals"], config=config)],
        [reader, MinhashDedupFilter(place["removals"]), JsonlWriter(place["output"], compression=None)],
    ]
    for number, step in enumerate(steps):
        tasks = config.num_buckets if number == 1 else 1
        LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=f"{place['logs']}/{number}").run()
    lines = [line for path in Path(place["output"]).glob("*.jsonl") for line in path.read_text().splitlines()]
    (folder / "kept.json").write_text(json.dumps([json.loads(line)["id"] for line in lines]))


main(Path(sys.argv[1]), Path(sys.argv[2]))
