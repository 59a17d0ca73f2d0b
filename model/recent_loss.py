"""How far a training has come: the mean of its last losses, since a single step's loss is its rows' as much as the
network's."""

import pyarrow.compute as pc

from model.journal import Journal
from model.kept_rows import kept_rows

RECENT_SHARE = 0.1
"""Share of the steps made, the last ones, that count."""


def recent_loss(journal: Journal, step: int) -> float | None:
    """Mean training loss of the last tenth of the first `step` steps; None where none of them was applied."""
    tables = journal.tables()
    metrics = kept_rows(tables["metrics"], tables["steps"])
    steps = metrics.column("step")
    first = step - max(1, round(RECENT_SHARE * step))
    recent = metrics.filter(pc.and_(pc.greater_equal(steps, first), pc.less(steps, step)))
    return pc.mean(recent.column("loss")).as_py()
