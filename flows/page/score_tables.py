"""Scores and other measures of held-out text as the tables of the run page."""

from typing import Any

from flows.measures import MEASURES, line_told
from flows.wording import shots_word

MAIN_METRICS = ("acc", "exact", "f1", "rouge_1", "rouge_2", "rouge_l")
"""Shares from 0 to 1; the first that a benchmark has is drawn."""


def main_metric(rows: list[dict[str, Any]]) -> str | None:
    """The metric of a benchmark's rows that is drawn, one with values before one without; None where it has no share
    of right answers."""
    measured = {row["metric"] for row in rows if row["value"] is not None}
    present = {row["metric"] for row in rows}
    return next((metric for found in (measured, present) for metric in MAIN_METRICS if metric in found), None)


def measure_table(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a BERT or a T5 is measured by: `names` of those that there are, `lines` a source with a cell for each."""
    present = [measure for measure in MEASURES if any(line["metric"] == measure.metric for line in lines)]
    by_source: dict[str, dict[str, str]] = {}
    for line in lines:
        by_source.setdefault(line["source"], {})[line["metric"]] = line_told(line)
    notes = list(dict.fromkeys(f"{line['source']}: {line['note']}" for line in lines if line["source"] != "all"))
    ordered = sorted(by_source.items(), key=lambda item: (item[0] == "all", item[0]))
    rows = [{"source": source, "cells": [cells.get(m.metric, "-") for m in present]} for source, cells in ordered]
    return {"names": [measure.words for measure in present], "lines": rows, "notes": notes}


def score_tables(rows: list[dict[str, Any]], gaps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By benchmark: its main metric as lines of shots with a cell for each subset and the gap between leaked and clean
    items where `gaps` tells it, and all other metrics."""
    tested = {(gap["task"], gap["metric"], gap["shots"]): gap for gap in gaps}
    tables: list[dict[str, Any]] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        metric = main_metric(mine)
        main = [row for row in mine if row["metric"] == metric]
        lines = []
        for shots in sorted({row["shots"] for row in main}):
            cells = {row["subset"]: row for row in main if row["shots"] == shots}
            lines.append({"shots": shots, "cells": cells, "gap": tested.get((task, metric, shots))})
        notes = list(dict.fromkeys(f"{shots_word(r['shots'])}: {r['note']}" for r in main if r["note"]))
        others = [row for row in mine if row["metric"] != metric]
        tables.append({"task": task, "metric": metric, "lines": lines, "notes": notes, "others": others})
    return tables
