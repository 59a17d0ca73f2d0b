"""One row of SCORES."""

import math
from typing import Any


def score_row(
    task: str,
    metric: str,
    *,
    n: int,
    value: float | None,
    stderr: float | None = None,
    shots: int = 0,
    subset: str = "all",
    note: str = "",
) -> dict[str, Any]:
    """A row of SCORES as a dict; a value that is not a finite number becomes null."""
    return {
        "task": task,
        "metric": metric,
        "shots": shots,
        "subset": subset,
        "n": n,
        "value": value if value is not None and math.isfinite(value) else None,
        "stderr": stderr if stderr is not None and math.isfinite(stderr) else None,
        "note": note,
    }
