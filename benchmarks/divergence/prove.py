"""Divergence provoked in twenty runs in each of five ways, with the guard and without.

    python benchmarks/divergence/prove.py FOLDER [--seeds 20] [--steps 1200] [--processes 2] [--minutes M]

Each case is a line in FOLDER, and a later call goes on behind it; lines of other code in `model/` do not count. Prints
the table of what was done, and ends with 1 where a goal is missed.
"""

import argparse
import functools
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from text import BATCH_ROWS, write_rows

from model.code_digest import code_digest
from model.digests import digest_bytes

KINDS = ("learning rate", "poisoned batches", "NaN gradient", "flipped bit", "overflow burst")
CLEAN = "clean"
TOO_WEAK = 0.02
"""A provocation without the guard costs at least this share of the loss, or ends the run."""
RECOVERED = 0.005
"""With it, no more than this."""
GOALS = {"weak": 0.8, "recovered": 0.95, "steps to the first sign": 5, "false alarms in 10,000 clean steps": 1.0}

Line = dict[str, Any]


def main() -> int:
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    # Before processes meet over it.
    write_rows(options.folder / f"text-{options.steps}", options.steps * BATCH_ROWS)
    deadline = time.time() + 60 * options.minutes
    work = [(seed, options.steps, options.folder, deadline) for seed in range(1, options.seeds + 1)]
    if options.processes == 1:
        for one in work:
            run_seed(*one)
    else:
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            pool.starmap(run_seed, work, chunksize=1)
    lines = [line for seed, *_ in work for line in read_lines(options.folder, seed)]
    text, reached = table(lines, options.seeds)
    print(text)
    return 0 if reached else 1


def run_seed(seed: int, steps: int, folder: Path, deadline: float) -> None:
    """Carry out all cases of a seed that have no line yet, until the deadline."""
    import torch
    from one_run import Setting, carry_out
    from provocations import Provocation

    torch.set_num_threads(1)
    done = {(line["kind"], line["guarded"], line["dtype"]) for line in read_lines(folder, seed)}
    begin = int(np.random.default_rng(seed).integers(steps // 4, steps * 3 // 4))
    for kind, guarded, dtype in cases():
        if (kind, guarded, dtype) in done or time.time() > deadline:
            continue
        home = folder / f"seed-{seed:02d}"
        home.mkdir(exist_ok=True)
        setting = Setting(seed, steps, dtype, guarded)
        clean = home / f"clean-{dtype}-{'on' if guarded else 'off'}"
        provocation = None if kind == CLEAN else Provocation(kind, begin, seed)
        found = carry_out(clean if kind == CLEAN else home / "provoked", setting, provocation, clean)
        line = {"kind": kind, "seed": seed, "begin": begin, "guarded": guarded, "dtype": dtype, "steps": steps, **found}
        with _lines_file(folder, seed).open("a") as lines:
            lines.write(json.dumps({**line, "code": _code()}) + "\n")


def cases() -> Iterator[tuple[str, bool, str]]:
    """Yield kind, whether guarded, and type of each case: clean runs before those that go on from them."""
    for dtype in ("float32", "float16"):
        for guarded in (True, False):
            yield CLEAN, guarded, dtype
            for kind in KINDS:
                if (kind == "overflow burst") == (dtype == "float16"):
                    yield kind, guarded, dtype


def read_lines(folder: Path, seed: int) -> list[Line]:
    """Return the finished lines of a seed, made by the code as it is."""
    path = _lines_file(folder, seed)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["code"] == _code()]


def table(lines: list[Line], seeds: int) -> tuple[str, bool]:
    """Return the table in Markdown, and whether all is done and every goal reached."""
    clean = {(line["seed"], line["dtype"]): line for line in lines if line["kind"] == CLEAN and line["guarded"]}
    rows, reached = [], True
    for kind in KINDS:
        off, on = (_of(lines, clean, kind, guarded=guarded) for guarded in (False, True))
        harmed = sum(worse is None or worse > TOO_WEAK for worse in off)
        well = sum(worse is not None and worse <= RECOVERED for worse in on)
        waits = [_first_sign(line) for line in lines if line["kind"] == kind and line["guarded"]]
        rollbacks = [line["rollbacks"] for line in lines if line["kind"] == kind and line["guarded"]]
        median = statistics.median([worse for worse in on if worse is not None] or [float("nan")])
        longest = max((wait for wait in waits if wait is not None), default="")
        rows.append(
            f"| {kind} | {harmed} of {len(off)} | {well} of {len(on)} | {median:+.2%} |"
            f" {longest} | {statistics.fmean(rollbacks or [0]):.1f} |"
        )
        done = len(off) == len(on) == seeds
        in_time = all(wait is not None and wait <= GOALS["steps to the first sign"] for wait in waits)
        reached &= done and in_time and harmed >= GOALS["weak"] * seeds
    every = [worse for kind in KINDS for worse in _of(lines, clean, kind, guarded=True)]
    well = sum(worse is not None and worse <= RECOVERED for worse in every)
    alarms, steps = sum(len(line["signs"]) for line in clean.values()), sum(line["steps"] for line in clean.values())
    rate = 10_000 * alarms / steps if steps else 0.0
    reached &= well >= GOALS["recovered"] * len(KINDS) * seeds and rate <= GOALS["false alarms in 10,000 clean steps"]
    head = (
        "| provocation | without: over 2% worse, or ended | with: within 0.5% | median | steps to the first sign | ways"
        " back |\n| --- | --- | --- | --- | --- | --- |\n"
    )
    foot = f"\n\n{well} of {len(every)} recovered. {alarms} alarms in {steps:,} clean steps."
    return head + "\n".join(rows) + foot, reached


def _of(lines: list[Line], clean: dict[tuple[int, str], Line], kind: str, *, guarded: bool) -> list[float | None]:
    """Return the share by which each run of a kind ended worse than its seed's clean one, None where it ended early."""
    found: list[float | None] = []
    for line in lines:
        reference = clean.get((line["seed"], line["dtype"]))
        if line["kind"] == kind and line["guarded"] == guarded and reference is not None:
            found.append(None if line["loss"] is None else line["loss"] / reference["loss"] - 1)
    return found


def _first_sign(line: Line) -> int | None:
    return min((step - line["begin"] for _, step in line["signs"] if step >= line["begin"]), default=None)


@functools.cache
def _code() -> str:
    """Return the digest of the code of the trainer and of this proof."""
    own = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return digest_bytes(code_digest().encode() + own)


def _lines_file(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed:02d}.jsonl"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="no case is begun after so long")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
