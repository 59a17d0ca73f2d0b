"""A search finds its way back from a learning rate thirty times wrong, compared with random search at equal cost.

    python benchmarks/search.py --root FOLDER [--seeds 3] [--trials 20]

For each seed: `tpe`, which halves at rungs; `chance`, which trains settings at random to their end, as many as the
first could have trained for its cost, and at least as much; and with `--halving` also `chance, halved`, random settings
at the same rungs. Cost is counted in whole trainings. Each search is the command `bessemer study search`, so that this
goes on where it was stopped, and all share the data stages."""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from model.errors import Infra

HERE = Path(__file__).parent
RECIPE = HERE / "search.toml"
TRIES = 5
"""Of each search, where the machine fails."""
TABLE = """
[search]
name = "{name}"
trials = {trials}
sampler = "{sampler}"
rungs = {rungs}
seed = {seed}

[search.space]
"train.schedule.peak_lr" = {{ low = 1e-5, high = 1.0, log = true }}
"train.batch_rows" = {{ choices = [4, 8, 16, 32] }}
"""
RATE = "train.schedule.peak_lr"


def searched(root: Path, sampler: str, rungs: int, seed: int, trials: int) -> dict[str, Any]:
    """Run `bessemer study search`, again where the machine fails; return what it found."""
    name = f"{sampler}-{rungs}-{seed}"
    table = root / f"{name}.toml"
    root.mkdir(parents=True, exist_ok=True)
    table.write_text(TABLE.format(name=name, trials=trials, sampler=sampler, rungs=rungs, seed=seed))
    words = [
        sys.executable,
        "-m",
        "flows.cli",
        "study",
        "search",
        str(RECIPE),
        "--root",
        str(root),
        "--search",
        str(table),
    ]
    for left in reversed(range(TRIES)):
        done = subprocess.run([*words, "--json"], stdout=subprocess.PIPE, text=True, check=False, cwd=HERE.parent)
        # On a machine with a load of twenty the Prefect server may take longer than it is given.
        if done.returncode != Infra.exit_code or not left:
            done.check_returncode()
            return json.loads(done.stdout)
    raise AssertionError("no attempt was made")


def cost(found: dict[str, Any]) -> float:
    """Return how many whole trainings its trials cost together."""
    return sum(line["share"] for line in found["lines"])


def line_of(arm: str, seed: int, found: dict[str, Any]) -> dict[str, Any]:
    best = found["best"]
    lines = found["lines"]
    return {
        "search": arm,
        "seed": seed,
        "trials": len(lines),
        "cost": cost(found),
        "rate": best["settings"][RATE],
        "rows": best["settings"]["train.batch_rows"],
        "bits_per_byte": best["value"],
        "seconds": sum(line["seconds"] for line in lines),
        "data_built": sum(stage not in ("train", "evaluate") for line in lines for stage in line["built"]),
    }


def table(lines: list[dict[str, Any]]) -> str:
    names = list(lines[0])
    rows = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in line.values()] for line in lines]
    widths = [max(len(row[place]) for row in [names, *rows]) for place in range(len(names))]
    return "\n".join(
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in [names, *rows]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--halving", action="store_true")
    asked = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for seed in range(1, asked.seeds + 1):
        tpe = searched(asked.root, "tpe", 3, seed, asked.trials)
        lines.append(line_of("tpe", seed, tpe))
        chance = searched(asked.root, "random", 1, seed, math.ceil(cost(tpe)))
        lines.append(line_of("chance", seed, chance))
        if asked.halving:
            halved = searched(asked.root, "random", 3, seed, asked.trials)
            lines.append(line_of("chance, halved", seed, halved))
        print(table(lines), flush=True)
        (asked.root / "search.json").write_text(json.dumps(lines, indent=1))
    for arm in dict.fromkeys(line["search"] for line in lines):
        values = [line["bits_per_byte"] for line in lines if line["search"] == arm]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(f"{arm}: {statistics.mean(values):.4f} bits per byte, standard deviation {spread:.4f}")


if __name__ == "__main__":
    main()
