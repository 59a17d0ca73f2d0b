"""The largest learning rate at which a network trains, with what keeps it stable and without.

    python benchmarks/divergence/largest_rate.py FOLDER [--steps 300] [--seeds 3] [--processes 2]

A byte-level GPT is trained at doubling rates: bare (no clipping, no guard, no norm beyond those of its blocks), with
each of the stabilisations alone, and with all. A network trains at a rate where the held-out loss, the median of the
seeds', is within 10% of the best that the variant reaches at any rate (one seed's runs scatter by 5%). Each run is a
line in FOLDER, and a later call goes on behind it; the table is printed, and the picture is FOLDER/largest_rate.html.
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text import BATCH_ROWS, byte_level_run, write_rows

RATES = tuple(round(0.001 * 2**doubling, 3) for doubling in range(10))
BARE = {"train.clip.max_norm": 1e9, "train.guard.enabled": False, "model.qk_norm": "none"}
VARIANTS: dict[str, dict[str, Any]] = {
    "bare": BARE,
    "clipping": {**BARE, "train.clip.max_norm": 1.0},
    "guard": {**BARE, "train.guard.enabled": True},
    "norm behind the embedding": {**BARE, "model.embedding_norm": True},
    "norms of queries and keys": {**BARE, "model.qk_norm": "head"},
    "z-loss": {**BARE, "model.z_loss": 1e-4},
    "all": {"model.embedding_norm": True, "model.qk_norm": "head", "model.z_loss": 1e-4},
}
WITHIN = 1.1
LINES = "runs.jsonl"

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    write_rows(chosen.folder / f"text-{chosen.steps}", chosen.steps * BATCH_ROWS)
    done = {(line["variant"], line["rate"], line["seed"]) for line in _read(chosen.folder, chosen.steps)}
    work = [
        (chosen.folder, chosen.steps, variant, rate, seed)
        for seed in range(1, chosen.seeds + 1)
        for rate in RATES
        for variant in VARIANTS
        if (variant, rate, seed) not in done
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for line in pool.imap_unordered(_carried_out, work):
            with (chosen.folder / LINES).open("a") as lines:
                lines.write(json.dumps(line) + "\n")
    lines = _read(chosen.folder, chosen.steps)
    print(table(lines))
    _draw(lines, chosen.folder / "largest_rate.html")
    return 0


def _read(folder: Path, steps: int) -> list[Line]:
    path = folder / LINES
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["steps"] == steps]


def _carried_out(work: tuple[Path, int, str, float, int]) -> Line:
    folder, steps, variant, rate, seed = work
    from one_run import held_out_loss

    from model.engines.runtime import flush_denormals
    from model.errors import Numerics
    from model.guard.decisions import with_settings
    from model.train.trainer import train as train_to_the_end

    text = folder / f"text-{steps}"
    *_, held_out = write_rows(text, steps * BATCH_ROWS)
    out = folder / f"run-{variant.replace(' ', '-')}-{rate}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    train = {"seed": seed, "schedule": {"peak_lr": rate, "end_lr": rate / 10}}
    run = with_settings(byte_level_run(text, steps, out, layers=4, train=train), VARIANTS[variant])
    loss = None
    try:
        with flush_denormals():
            loss = held_out_loss(train_to_the_end(run), held_out)
    except Numerics:
        pass  # It ended early: the line has no loss.
    shutil.rmtree(out, ignore_errors=True)
    return {"variant": variant, "rate": rate, "seed": seed, "steps": steps, "loss": loss}


def table(lines: Sequence[Line]) -> str:
    """Return in Markdown the median held-out loss of each variant and rate, and the largest rate at which it trains."""
    medians = _medians(lines)
    rows = ["| | " + " | ".join(f"{rate:g}" for rate in RATES) + " | largest |", "|---" * (len(RATES) + 2) + "|"]
    for variant in VARIANTS:
        found = [medians.get((variant, rate), float("inf")) for rate in RATES]
        trained = [rate for rate, loss in zip(RATES, found, strict=True) if loss <= WITHIN * min(found)]
        cells = " | ".join("ended" if loss == float("inf") else f"{loss:.3f}" for loss in found)
        rows.append(f"| {variant} | {cells} | {f'{max(trained):g}' if trained else 'none'} |")
    return "\n".join(rows)


def _medians(lines: Sequence[Line]) -> dict[tuple[str, float], float]:
    """Return medians by variant and rate; a run that ended early, or whose loss is no number, counts as infinite."""
    losses: dict[tuple[str, float], list[float]] = {}
    for line in lines:
        loss = float("inf") if line["loss"] is None else line["loss"]
        losses.setdefault((line["variant"], line["rate"]), []).append(loss)
    return {place: statistics.median(found) for place, found in losses.items()}


def _draw(lines: Sequence[Line], path: Path) -> None:
    import plotly.graph_objects as go

    medians = _medians(lines)
    figure = go.Figure()
    for variant in VARIANTS:
        found = [(rate, medians[variant, rate]) for rate in RATES if medians.get((variant, rate), 9e9) < float("inf")]
        line = {"width": 4 if variant in ("bare", "all") else 2, "dash": "dot" if variant == "bare" else "solid"}
        figure.add_scatter(
            x=[rate for rate, _ in found], y=[loss for _, loss in found], name=variant, mode="lines+markers", line=line
        )
    figure.update_layout(template="plotly_white", legend_title="with", title="Held-out loss by learning rate")
    figure.update_xaxes(type="log", title="peak learning rate")
    figure.update_yaxes(type="log", title="nats a byte")
    figure.write_html(path, include_plotlyjs=True)


if __name__ == "__main__":
    sys.exit(main())
