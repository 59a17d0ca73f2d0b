"""The activation map of a training: ranges of activations by layer and step, as the network recorded them.

The run page and Prefect's artifacts draw it. Its values are METRICS' columns `largest_activations`, `activation_lows`
and `activation_highs`; `activation_ranges` of model.json are their names.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.checkpoint.metrics import final_rows
from model.checkpoint.run_folder import DESCRIPTION
from tasks.artifacts.artifact import Artifact

MAX_DECADES = 8
"""Powers of ten that colours distinguish; smaller values have the colour of the lowest."""

STREAM, HEAD = "residual stream", "head"

_NAME = re.compile(r"(?P<stack>encoder |decoder )?(?P<segment>.*?)(?P<scores> (?:cross )?attention logits)?")


@dataclass(frozen=True)
class ActivationGroup:
    """Activations of one kind, in the order of the network."""

    title: str
    labels: tuple[str, ...]
    """Name of each, unique within the group."""
    rows: tuple[int, ...]
    """Row of each in the map."""


@dataclass(frozen=True)
class ActivationMap:
    """Ranges of P activations in C columns, each of which covers one step or several in a row."""

    groups: tuple[ActivationGroup, ...]
    edges: np.ndarray
    """f64[C + 1]: tokens read before the first column, and up to the end of each column."""
    largest: np.ndarray
    """f64[P, C]: largest absolute value; infinite where one was infinite or NaN."""
    bounds: np.ndarray
    """f64[2, P, C]: smallest and largest value."""

    @property
    def decades(self) -> tuple[int, int]:
        """Powers of ten between which the finite readings lie, MAX_DECADES apart at most."""
        drawn = self.largest[np.isfinite(self.largest) & (self.largest > 0)]
        if not drawn.size:
            return 0, 1
        low, high = (int(np.floor(np.log10(drawn.min()))), int(np.ceil(np.log10(drawn.max()))))
        return max(low, high - MAX_DECADES), max(high, low + 1)

    @property
    def powers(self) -> np.ndarray:
        """f64[P, C]: log10 of the largest absolute value, clipped to `decades`; NaN where not finite."""
        low, high = self.decades
        with np.errstate(divide="ignore"):
            powers = np.clip(np.log10(self.largest), low, high)
        return np.where(np.isfinite(self.largest), powers, np.nan)


def training_activation_map(train: Artifact, most_columns: int) -> ActivationMap | None:
    """Return the map of a training's artifact, over the steps that led to its weights; None without recordings."""
    metrics = final_rows(train.table("metrics"), train.table("steps")) if train.rows("metrics") else None
    if metrics is None or not any(record.name == DESCRIPTION for record in train.records):
        return None
    names = json.loads(train.file(DESCRIPTION).read_text(encoding="utf-8")).get("activation_ranges", [])
    return activation_map(metrics, names, most_columns)


def activation_map(metrics: pa.Table, names: Sequence[str], most_columns: int) -> ActivationMap | None:
    """Return the map of METRICS' rows, in the order of their steps; `names` are those of model.json.

    A column that covers several steps has their extremes, so that no spike is lost. None where nothing was recorded.
    """
    columns = ("largest_activations", "activation_lows", "activation_highs")
    readings = [pc.list_flatten(metrics.column(column)).to_numpy().astype(np.float64) for column in columns]
    if not readings[0].size:
        return None
    largest, lows, highs = (values.reshape(-1, len(names)) for values in readings)
    starts = np.unique(np.linspace(0, metrics.num_rows, min(metrics.num_rows, most_columns) + 1).astype(np.int64))[:-1]
    tokens = metrics.column("tokens").to_numpy()
    return ActivationMap(
        groups=_groups(names),
        edges=np.array([0.0, *tokens[starts[1:] - 1], tokens[-1]]),
        largest=np.maximum.reduceat(np.where(np.isnan(largest), np.inf, largest), starts).T,
        bounds=np.stack((np.minimum.reduceat(lows, starts).T, np.maximum.reduceat(highs, starts).T)),
    )


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
