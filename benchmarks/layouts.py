"""What it costs to share one training among two ranks, by each way of sharing it.

    python benchmarks/layouts.py [--width N] [--layers N] [--micro-batch-rows N] [--dtype TYPE]

The same GPT is trained on the same random rows by one rank and by two: each a copy that reads half of the rows (data),
each half of every matrix (tensor), each half of the layers (pipeline). Processor time is that of all ranks together,
without start-up: of a long run less a short one, over the steps between; waiting is not in it. Memory is the largest
rank's. Idle is a stage's share of turns without work, by its schedule.
"""

import resource
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from benchmarks.rows import write_rows
from model.config.network import GPTConfig
from model.config.train import TrainConfig, TrainerRun
from model.nn.factory import parameter_count

PIECES, CONTEXT, BATCH_ROWS = 8192, 256, 8
SHORT, LONG = 2, 8
LAYOUTS: dict[str, dict[str, int]] = {
    "one rank": {"ranks": 1},
    "data 2": {"ranks": 2},
    "tensor 2": {"ranks": 2, "tensor_parallel": 2},
    "pipeline 2": {"ranks": 2, "pipeline_parallel": 2},
}


def trained(home: Path, name: str, model: GPTConfig, settings: dict[str, Any], steps: int) -> tuple[float, float]:
    """Train for `steps` steps over random tokens; return seconds of processor time of all ranks, and MiB of the
    first."""
    folder = home / f"{name.replace(' ', '-')}-{steps}"
    tokens = np.random.default_rng(1).integers(4, PIECES, size=(BATCH_ROWS * steps, CONTEXT + 1))
    sequences, order = write_rows(folder, tokens, PIECES)
    run = TrainerRun(
        sequences=(sequences,),
        order=order,
        out=folder / "out",
        pad=3,
        tokenizer_digest="tokenizer",
        model=model,
        train=TrainConfig.model_validate({"batch_rows": BATCH_ROWS, "threads": 1, "checkpoint_steps": 1000} | settings),
    )
    file = run.out.with_suffix(".json")
    file.write_text(run.model_dump_json())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "model.train", str(file)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, largest_rank(run.out)


def largest_rank(out: Path) -> float:
    """Return the peak MiB of the first rank, from its PERF; the other ranks hold as much, or nearly."""
    with pa.OSFile(str(out / "result" / "perf.arrow"), "rb") as source:
        return max(pa.ipc.open_file(source).read_all()["rss"].to_pylist()) / 2**20


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--micro-batch-rows", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    asked = parser.parse_args()
    model = GPTConfig(vocab_size=PIECES, context=CONTEXT, layers=asked.layers, heads=8, width=asked.width)
    micro_batches = BATCH_ROWS // asked.micro_batch_rows
    print(f"{parameter_count(model) / 1e6:.1f}M parameters, {BATCH_ROWS} rows of {CONTEXT} tokens a step")
    print(f"{'layout':<12}{'processor s/step':>18}{'ratio':>8}{'MiB':>8}{'idle':>8}")
    alone = 0.0
    with tempfile.TemporaryDirectory() as home:
        for name, layout in LAYOUTS.items():
            settings = {**layout, "micro_batch_rows": asked.micro_batch_rows, "dtype": asked.dtype}
            short, _ = trained(Path(home), name, model, settings, SHORT)
            long, memory = trained(Path(home), name, model, settings, LONG)
            seconds = (long - short) / (LONG - SHORT)
            alone = alone or seconds
            stages = layout.get("pipeline_parallel", 1)
            idle = (stages - 1) / (micro_batches + stages - 1)
            print(f"{name:<12}{seconds:>18.2f}{seconds / alone:>8.2f}{memory:>8.0f}{idle:>8.0%}", flush=True)


if __name__ == "__main__":
    main()
