"""What a trainer writes to the process that launched it: JSON objects, one a line, each with its `kind`.

Of the events those are declared whose fields are read; of all others each field is shown as it is.
"""

from typing import Any, Literal, NotRequired, TypedDict


class Start(TypedDict):
    """An attempt begins after `step` steps."""

    kind: Literal["start"]
    step: int
    steps: int
    parameters: int
    flops_per_token: float


class StepDone(TypedDict):
    """Sent for a step in half a second, and for the last one."""

    kind: Literal["step"]
    step: int
    steps: int
    loss: float
    lr: float
    tokens: int
    tokens_s: int


class SourceScore(TypedDict):
    """A row of VALIDATION: the held-out rows of a source."""

    source: str
    rows: int
    predictions: int
    nats_per_token: float | None
    bits_per_byte: float | None


class Validated(TypedDict):
    """Held-out text was scored after `step` steps."""

    kind: Literal["validation"]
    step: int
    rows: list[SourceScore]


class Sample(TypedDict):
    """What the model wrote after `step` steps, as token ids."""

    kind: Literal["sample"]
    step: int
    prompt: list[int]
    tokens: list[int]


class Saved(TypedDict):
    """A checkpoint after `step` steps is complete."""

    kind: Literal["checkpoint"]
    step: int


class PausedAt(TypedDict):
    """Training paused after `step` steps; `loss` is None where no recent step was applied."""

    kind: Literal["paused"]
    step: int
    steps: int
    loss: float | None


class Done(TypedDict):
    """The result is written."""

    kind: Literal["done"]
    steps: int
    folder: str


class BaseWeights(TypedDict):
    """The weights that training starts from; the rest where new rows were added to them."""

    weights: str
    """Their digest."""
    new_rows: NotRequired[int]
    start: NotRequired[str]
    """How the new rows are initialised."""
    without_meaning: NotRequired[int]
    """New rows whose tokens have no ids in the base."""


class BaseModel(BaseWeights):
    """Training starts from a base model."""

    kind: Literal["event"]
    event: Literal["base_model"]


class Restart(TypedDict):
    """Ranks are started again, from the checkpoint after `checkpoint` steps; written by the supervisor."""

    kind: Literal["event"]
    event: Literal["restart"]
    step: int
    checkpoint: int
    words: str
    """Why."""
    number: int
    seconds_lost: float


class Rollback(TypedDict):
    """The guard goes back to the checkpoint after `to_step` steps."""

    kind: Literal["event"]
    event: Literal["rollback"]
    step: int
    cause: str
    onset: int
    to_step: int
    skipped: tuple[int, int]
    """Positions of ORDER, [begin, end)."""
    firing: int
    settings: dict[str, Any]
    """Recipe key -> its new value."""


class Recovered(TypedDict):
    """A divergence has not recurred."""

    kind: Literal["event"]
    event: Literal["recovered"]
    step: int
    onset: int
    to_step: int
    cause: str


EventName = Literal[
    "all_ranks",
    "compiled_in_part",
    "damaged_checkpoint",
    "diverged",
    "fewer_ranks",
    "hosts",
    "layout_changed",
    "micro_batch_rows",
    "micro_batch_rows_anew",
    "no_lasting_checkpoint",
    "overflow",
    "replay",
    "skipped_data",
    "skipped_step",
    "slow_rank",
    "spike",
]


class Event(TypedDict):
    """Any other event; has more fields."""

    kind: Literal["event"]
    event: EventName


Message = (
    Start | StepDone | Validated | Sample | Saved | PausedAt | Done | BaseModel | Restart | Rollback | Recovered | Event
)
