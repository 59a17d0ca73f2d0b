"""Plan from which step training is repeated: the last checkpoint before the first row that is another one.

A run by the recipe without the documents differs from one in an empty root in one point only: it continues a checkpoint
of the run before, where the rows read up to there are equal (`model/train/replay.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS, run_stages
from flows.runs.record import new_run_id
from model.checkpoint.metrics import final_steps
from model.checkpoint.run_folder import PREFIX
from model.data.dataset import SequenceReader
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.workspace import FileRecord

BATCH_POSITIONS = 4096


@dataclass(frozen=True)
class ReplayPlan:
    """From where training goes on, and how much it computes again."""

    step: int
    steps: int
    tokens: int
    """Tokens that are read again."""
    tokens_in_all: int
    positions: int
    """Positions of the order whose rows change."""
    first_position: int | None
    """The first of them; None where no row that training read changes."""
    seconds: float
    """Time of the repeated steps at the speed of the training before."""


def plan_replay(before: Mapping[str, Artifact], chunk: Artifact) -> ReplayPlan:
    """Return from which step training would go on with the sequences of `chunk`, by the rows of both orders.

    The trainer compares again, and takes no checkpoint whose settings or libraries are others."""
    mine, theirs = (SequenceReader(of.files("sequences"), of.files("order")[0]) for of in (before["chunk"], chunk))
    steps = final_steps(before["train"].table("steps"))
    tokens = before["train"].table("metrics").column("tokens").to_numpy()
    total = int(tokens[-1]) if len(tokens) else 0
    walls = before["train"].table("perf").column("wall_s").to_numpy()
    pace = float(np.median(walls)) if len(walls) else 0.0
    if mine.positions != theirs.positions or mine.row_length != theirs.row_length:
        everything = max(mine.positions, theirs.positions)
        return ReplayPlan(0, steps.num_rows, total, total, everything, 0, steps.num_rows * pace)
    changed = _changed_positions(mine, theirs)
    ends = steps.column("pos_end").to_numpy()
    kept = sorted({int(record.name[len(PREFIX) :].partition(".")[0]) for record in _lasting(before["train"])})
    first = int(changed[0]) if len(changed) else None
    usable = [step for step in kept if first is None or ends[step - 1] <= first]
    if _validation_rows(before["chunk"]) != _validation_rows(chunk):
        usable = [step for step in usable if not _validated_by(before["train"], step)]
    step = usable[-1] if usable else 0
    read = int(tokens[step - 1]) if step else 0
    seconds = (steps.num_rows - step) * pace
    return ReplayPlan(step, steps.num_rows, total - read, total, len(changed), first, seconds)


def _changed_positions(mine: SequenceReader, theirs: SequenceReader) -> np.ndarray:
    found = [np.zeros(0, np.int64)]
    for begin in range(0, mine.positions, BATCH_POSITIONS):
        end = min(begin + BATCH_POSITIONS, mine.positions)
        differ = (mine.rows(begin, end).tokens_BL != theirs.rows(begin, end).tokens_BL).any(axis=1)
        found.append(begin + np.flatnonzero(differ))
    return np.concatenate(found)


def _lasting(trained: Artifact) -> list[FileRecord]:
    return [record for record in trained.records if record.name.startswith(PREFIX)]


def _validation_rows(chunk: Artifact) -> list[str]:
    return [record.digest for record in chunk.records if record.table == "heldout_rows"]


def _validated_by(trained: Artifact, step: int) -> bool:
    rows = trained.table("validation").column("step").to_numpy() if trained.names("validation") else np.zeros(0)
    return bool(len(rows)) and int(rows.min()) < step


def build_sequences(recipe: Recipe, root: Path) -> Artifact:
    """Build the stages of a recipe up to chunk, and return the artifact of chunk."""
    context = RunContext(root, run_id=new_run_id())
    return run_stages(recipe, lambda stage, *inputs: BUILDERS[stage](context, *inputs), until="chunk")["chunk"]
