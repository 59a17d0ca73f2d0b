"""The roots that requests are made in, and the table of what each cost beside its plan."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.checksummed_json import write_sealed
from tasks.artifacts.remote.metadata import read_record
from tests.prove_forget.removals import LASTING, Cost, run

COST = "cost"
KEEPING = (f"train.lasting_checkpoints={LASTING}", "train.validation_steps=0")
STABLE = (*KEEPING, "chunk.packing=stable")
LEARNING = ("train.optimizer.kind=muon", "train.schedule.peak_lr=0.015", "train.batch_rows=4")
GUARD = {"window": 16, "least_steps": 8, "most_unclean": 2, "unclean_window": 4, "healthy_steps": 6, "margin_steps": 2}
"""That notices, in a training this short, two steps of four that read words of no other document."""
BASES = {
    "gpt": STABLE,
    "bert": (*KEEPING, "train.model.architecture=bert"),
    "t5": (*KEEPING, "train.model.architecture=t5"),
    "zero-1": (*STABLE, "train.engine=deepspeed", "train.zero_stage=1", "train.ranks=2"),
    "may leave": (
        *STABLE,
        "sources.notes.may_leave=true",
        "sources.notes.weight=0.05",
        "sources.letters.weight=0.45",
    ),
    "guarded": (
        *STABLE,
        *LEARNING,
        "train.guard.most_skipped=0.5",
        *(f"train.guard.{name}={value}" for name, value in GUARD.items()),
        "sources.letters.weight=0.98",
        "sources.notes.weight=0.01",
        "sources.code.weight=0.01",
        "budget_tokens=22K",
    ),
}
"""Settings of the runs that documents leave. Only a GPT has a stable order; BERT and T5 train again from the start."""
LETTERS = 240
LICENCE = "CC-BY-NC-4.0"
_HEADER = ("request", "documents", "from step", "of", "tokens again", "of", "share", "predicted", "took", "command")


@pytest.fixture(scope="session")
def archive(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small recipe with letters besides, of which each source is read once at most.

    Five letters are a cluster of near-duplicates, and one has Armenian letters, at which a network is surprised.
    """
    folder = tmp_path_factory.mktemp("archive") / "archive"
    shutil.copytree(foundry, folder)
    place = folder / "letters"
    place.mkdir()
    words = (foundry / "notes" / "note-00.txt").read_text().lower().replace(".", "").split()
    draw = np.random.Generator(np.random.Philox(3))

    def prose(vocabulary: list[str], length: int) -> str:
        drawn = draw.choice(vocabulary, length).tolist()
        return "\n".join(" ".join(drawn[at : at + 10]).capitalize() + "." for at in range(0, length, 10)) + "\n"

    for number in range(LETTERS):
        (place / f"letter-{number:03d}.txt").write_text(prose(words, int(draw.integers(40, 80))))
    shared = prose(words, 400)
    for number in range(5):
        (place / f"cluster-{number}.txt").write_text(shared + prose(words, 10 * number + 10))
    letters = [chr(code) for code in range(ord("ա"), ord("և"))]
    strange = ["".join(draw.choice(letters, int(draw.integers(3, 8))).tolist()) for _ in range(80)]
    (place / "strange.txt").write_text(prose(strange, 80))
    recipe = folder / "foundry.toml"
    source = f"""[[sources]]
name = "letters"
paths = ["{{recipe}}/letters"]
format = "text"
weight = 0.3
language = "en"
licence = "{LICENCE}"

[sample]
"""
    text = recipe.read_text().replace("weight = 0.5", "weight = 0.2", 1).replace("[sample]\n", source, 1)
    recipe.write_text(text.replace('budget_tokens = "40K"', 'budget_tokens = "60K"'))
    return recipe


@pytest.fixture(scope="session")
def base(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A root with a run, by the name of its settings in `BASES`."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
            run(archive, made[name], *BASES[name])
        return made[name]

    return make


@pytest.fixture
def copy_root(tmp_path: Path) -> Callable[..., Path]:
    """Copy a root to one that the test may change, and name its artifacts in its records."""

    def copy(old: Path, name: str = "root") -> Path:
        new = tmp_path / name
        shutil.copytree(old, new)
        for path in (new / "runs").glob("*/run.json"):
            record = read_record(path)
            write_sealed(path, json.loads(json.dumps(record).replace(str(old), str(new))))
        return new

    return copy


@pytest.fixture
def record_cost(request: pytest.FixtureRequest) -> Callable[[str, Cost], None]:
    """Add a line to the table."""

    def record(name: str, cost: Cost) -> None:
        request.node.user_properties.append((COST, {"request": name, **asdict(cost)}))

    return record


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, at the end of the session; nothing where no cost was measured. PROVE_COSTS names a file for it."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.stats.get(group, [])]
    costs = [cost for report in reports for name, cost in report.user_properties if name == COST]
    if not costs:
        return
    terminalreporter.section("costs of removals, each beside its plan")
    rows = [_HEADER, *map(_cells, costs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        terminalreporter.write_line("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    if path := os.environ.get("PROVE_COSTS"):
        Path(path).write_text(json.dumps(costs, indent=1))


def _cells(cost: dict[str, Any]) -> tuple[str, ...]:
    counts = (f"{cost[name]:,}" for name in ("documents", "step", "steps", "tokens", "tokens_in_all"))
    seconds = (f"{cost[name]:.1f} s" for name in ("predicted", "seconds", "command"))
    return cost["request"], *counts, f"{cost['tokens'] / cost['tokens_in_all']:.0%}", *seconds
