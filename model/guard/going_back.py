"""Going back: the decision is written before anything is acted on, or the run ends with a report."""

import shutil
from collections.abc import Sequence
from typing import NoReturn

from model.checkpoint import standing_steps
from model.config import TrainerRun
from model.curriculum import Curriculum
from model.durable import sync_directory
from model.errors import Numerics
from model.guard.attempts import write_decision
from model.guard.deciding import NothingLeft
from model.guard.decision import Decision
from model.guard.detection import Divergence
from model.guard.guard import Guard
from model.journal import Journal
from model.link import Link
from model.ranks import Ranks
from model.run_folder import CHECKPOINTS

DIVERGED = "diverged"
"""Folder with the tables of a run that ended so."""


def go_back(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    guard: Guard,
    curriculum: Curriculum,
    journal: Journal,
    ranks: Ranks,
    link: Link,
) -> None:
    """Write down where the next attempt goes on from, and why. Raises Numerics where nothing is left to be tried.

    All ranks come here with the same divergence, and wait for the first one, which writes.
    """
    standing = standing_steps(run.out / CHECKPOINTS)
    try:
        decision = guard.decide(divergence, standing, curriculum.positions, curriculum.steps)
    except NothingLeft as reason:
        _end(run, decisions, divergence, str(reason), curriculum, journal, ranks, link)
    # The first rank deletes nothing before all have seen what stands.
    ranks.barrier()
    skipped = range(*decision.skipped) if decision.skipped else None
    facts = decision.model_dump(mode="json", include={"cause", "onset", "to_step", "firing", "settings"})
    journal.event(divergence.step, "rollback", "Numerics", skipped, **facts)
    if ranks.is_first:
        write_decision(run.out, decision, journal)
    link.tell("event", event="rollback", step=divergence.step, skipped=decision.skipped, **facts)
    ranks.barrier()


def _end(
    run: TrainerRun,
    decisions: Sequence[Decision],
    divergence: Divergence,
    reason: str,
    curriculum: Curriculum,
    journal: Journal,
    ranks: Ranks,
    link: Link,
) -> NoReturn:
    begin, end = curriculum.positions(divergence.onset)[0], curriculum.positions(divergence.step)[1]
    journal.event(divergence.step, "diverged", "Numerics", range(begin, end), cause=divergence.cause)
    link.tell("event", event="diverged", step=divergence.step, cause=divergence.cause)
    told = run.out / DIVERGED
    if ranks.is_first:
        shutil.rmtree(told, ignore_errors=True)
        told.mkdir()
        journal.write(told)
        sync_directory(told)
    tried = [_told(decision) for decision in decisions if decision.by == "guard"]
    raise Numerics(
        f"training diverged: {divergence.cause}, the last at step {divergence.step} (positions {begin} to {end} of"
        f" ORDER; trouble began at step {divergence.onset}), and {reason}."
        + (f" Tried before: {'; '.join(tried)}." if tried else "")
        + f" Its tables are in {told}. Lower train.schedule.peak_lr, or look at these documents with `bessemer step`."
    )


def _told(decision: Decision) -> str:
    changes = ", ".join(f"{path} = {value}" for path, value in decision.settings.items()) or "nothing else changed"
    begin, end = decision.skipped or (0, 0)
    return f"back from step {decision.step} to {decision.to_step}, positions {begin} to {end} left out, {changes}"
