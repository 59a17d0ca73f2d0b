"""What a checkpoint records beside its tensors and tables: the JSON of `state.json`.

Numbers are Python's, which JSON keeps to the last bit; infinities are written as `Infinity`.
"""

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from model.engines.runtime import LossScaleState


class Requirements(TypedDict):
    """What a run must agree with to resume from the checkpoint (`model/train/resume.py`)."""

    engine: str
    ranks: NotRequired[int | None]
    """Absent where ranks write parts of weights, which ranks of any number read."""
    tokenizer: str
    config: str
    """Digest of the settings that change a bit of the result."""
    order: str
    machine: dict[str, str]
    """The parts of the machine that decide last bits, each described."""
    torch: str
    base: str | None


class OptimizerLayout(TypedDict):
    """What the optimizer's state must agree with to be restored."""

    kind: str
    engine: str


class ChangePointsState(TypedDict):
    """Cumulative sums of loss, norm and each range over a window of steps (`model/guard/change_points.py`)."""

    rows: list[list[float]]
    sums: list[float]
    levels: list[float]
    slopes: list[float]
    deviations: list[float]
    onsets: list[int]
    last: list[float]


class DetectorState(TypedDict):
    """What the guard has seen of earlier steps (`model/guard/detection.py`)."""

    losses: list[float]
    norms: list[float]
    changes: ChangePointsState
    unclean: list[int]
    nonfinite: int
    halved: list[int]


class HealthState(TypedDict):
    """Which checkpoints are healthy, or may become so, by the steps before them."""

    candidates: list[int]
    healthy: list[int]


class GuardState(TypedDict):
    """The state of the guard."""

    detector: DetectorState
    health: HealthState


class AttemptState(Requirements):
    """What all checkpoints of an attempt record."""

    attempt: int
    """Decisions before it."""
    optimizer: OptimizerLayout
    dtype: str
    layout: str
    """Engine and ranks of each kind, for people to read."""


class CheckpointState(AttemptState):
    """What one checkpoint records."""

    step: int
    """Steps before it."""
    tokens: int
    """Tokens of text that they read."""
    loss_scale: "LossScaleState"
    guard: GuardState
