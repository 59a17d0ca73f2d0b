"""The rows of a run's tables that lead to its weights: what the guard went back from was computed for nothing."""

import pyarrow as pa


def kept_steps(steps: pa.Table) -> pa.Table:
    """Rows of STEPS in order of steps, each by its last attempt."""
    last = steps.group_by("step").aggregate([("attempt", "max")]).rename_columns(["step", "attempt"])
    kept = steps.join(last, ["step", "attempt"], join_type="inner").select(steps.column_names)
    return kept.sort_by("step").cast(steps.schema)


def kept_rows(table: pa.Table, steps: pa.Table) -> pa.Table:
    """Rows of METRICS or PERF, in order of steps, whose step and attempt are a kept row of STEPS: none for data that
    were skipped."""
    names = table.column_names
    if "attempt" not in names:
        return table
    # A join takes no columns of lists.
    numbered = table.select(["step", "attempt"]).append_column("place", pa.array(range(table.num_rows), pa.int64()))
    kept = numbered.join(kept_steps(steps).select(["step", "attempt"]), ["step", "attempt"], join_type="inner")
    return table.take(kept.sort_by("step").column("place"))
