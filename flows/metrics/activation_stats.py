"""The heat map of a training: what its thermometers read as it went on. The run page and the dashboard draw it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from model.checkpoint.metrics import kept_rows
from tasks.artifacts.artifact import Artifact

DESCRIPTION = "model.json"

MAX_DECADES = 8
"""Powers of ten that colours tell apart; what is below them has the colour of the lowest."""

STREAM, HEAD = "residual stream", "head"

_NAME = re.compile(r"(?P<stack>encoder |decoder )?(?P<segment>.*?)(?P<scores> (?:cross )?attention logits)?")


@dataclass(frozen=True)
class ActivationGroup:
    """Thermometers of one kind, in the order of the network."""

    title: str
    labels: tuple[str, ...]
    """What each reads, in words that are unique within the group."""
    rows: tuple[int, ...]
    """Their rows in the map."""


@dataclass(frozen=True)
class ActivationMap:
    """Readings of P thermometers in C columns, each of which stands for one step or for several in a row."""

    groups: tuple[ActivationGroup, ...]
    edges: np.ndarray
    """f64[C + 1]: tokens read before the first column, and up to the end of each."""
    largest: np.ndarray
    """f64[P, C]: largest absolute value; infinite where one was infinite or no number."""
    bounds: np.ndarray | None
    """f64[2, P, C]: smallest and largest value; None for trainings that kept magnitudes alone."""

    @property
    def decades(self) -> tuple[int, int]:
        """Powers of ten between which the finite readings lie, MOST_DECADES apart at most."""
        drawn = self.largest[np.isfinite(self.largest) & (self.largest > 0)]
        if not drawn.size:
            return 0, 1
        low, high = (int(np.floor(np.log10(drawn.min()))), int(np.ceil(np.log10(drawn.max()))))
        return max(low, high - MAX_DECADES), max(high, low + 1)

    @property
    def powers(self) -> np.ndarray:
        """f64[P, C]: logarithm to base 10 of the largest absolute value, within `decades`; NaN where not finite."""
        low, high = self.decades
        with np.errstate(divide="ignore"):
            powers = np.clip(np.log10(self.largest), low, high)
        return np.where(np.isfinite(self.largest), powers, np.nan)


def training_activation_map(train: Artifact, most_columns: int) -> ActivationMap | None:
    """The map of a training's artifact: of the steps that lead to its weights."""
    metrics = kept_rows(train.table("metrics"), train.table("steps")) if train.rows("metrics") else None
    if metrics is None or not any(record.name == DESCRIPTION for record in train.records):
        return None
    names = json.loads(train.file(DESCRIPTION).read_text(encoding="utf-8")).get("thermometers", [])
    return activation_map(metrics, names, most_columns)


def activation_map(metrics: pa.Table, names: Sequence[str], most_columns: int) -> ActivationMap | None:
    """The map of METRICS' rows, which are in the order of their steps; `names` are model.json's of the thermometers.

    A column that stands for several steps has their extremes, so that no spike is lost. None where nothing was read.
    """
    largest = _readings(metrics, "thermometers", len(names))
    if largest is None:
        return None
    starts = np.unique(np.linspace(0, metrics.num_rows, min(metrics.num_rows, most_columns) + 1).astype(np.int64))[:-1]
    tokens = metrics.column("tokens").to_numpy()
    lows, highs = (_readings(metrics, f"thermometer_{kind}", len(names)) for kind in ("lows", "highs"))
    bounds = None
    if lows is not None and highs is not None:
        bounds = np.stack((np.minimum.reduceat(lows, starts).T, np.maximum.reduceat(highs, starts).T))
    return ActivationMap(
        groups=_groups(names),
        edges=np.array([0.0, *tokens[starts[1:] - 1], tokens[-1]]),
        largest=np.maximum.reduceat(np.where(np.isnan(largest), np.inf, largest), starts).T,
        bounds=bounds,
    )


def _readings(metrics: pa.Table, column: str, count: int) -> np.ndarray | None:
    """f64[steps, count]; None where the table lacks them."""
    if column not in metrics.column_names or not metrics.num_rows or not count:
        return None
    values = metrics.column(column).combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return values.reshape(metrics.num_rows, count) if values.size else None


def _groups(names: Sequence[str]) -> tuple[ActivationGroup, ...]:
    found: dict[str, list[tuple[str, int]]] = {}
    for row, name in enumerate(names):
        match = _NAME.fullmatch(name)
        assert match is not None, "the pattern takes any name"
        kind = HEAD if name.endswith("logits") and not match["scores"] else (match["scores"] or STREAM).strip()
        title = f"{match['stack'] or ''}{kind}"
        found.setdefault(title, []).append((match["segment"], row))
    ordered = sorted(found.items(), key=lambda item: item[0] == HEAD)
    return tuple(
        ActivationGroup(title, tuple(label for label, _ in rows), tuple(row for _, row in rows))
        for title, rows in ordered
    )
