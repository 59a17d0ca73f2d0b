"""What estimates consist of, which commands print as JSON or as tables (`flows/planning/terminal.py`)."""

from typing import TYPE_CHECKING, NotRequired, TypedDict

from flows.metrics.statistics import Interval

if TYPE_CHECKING:
    from model.engines.memory import RankMemory


class Work(TypedDict):
    """What a training computes."""

    parameters: float
    """Those that a token uses."""
    total_parameters: float
    tokens: float
    flops: float
    flops_per_token: float
    attention: str
    """Whether FLOPs include attention."""
    devices: float | None


class TrainingEstimate(Work):
    """A training on some hardware; None for what depends on an unknown speed."""

    hardware: str
    hardware_source: str
    peak_flops: float | None
    days: float | None
    device_hours: float | None
    mfu: float | None
    origins: dict[str, str]
    """Where each number comes from."""
    sustained_flops: float | None
    price: float | None
    """Of a device hour."""
    cost: float | None
    arithmetic: str | None
    memory_bytes: float | None
    """Of a device."""
    memory: "dict[str, RankMemory]"
    """By layout."""


class PilotSource(TypedDict):
    """A source's documents in the pilot, and how they were drawn."""

    documents: int
    share: float
    raised: bool


class PilotSummary(TypedDict):
    """The pilot."""

    root: str
    asked: float
    seconds: float
    vocabulary: int
    sources: dict[str, PilotSource]


class StageEstimate(TypedDict):
    """A stage's output, disk and seconds on this machine for all data, and the memory that the pilot took."""

    stage: str
    documents: Interval
    bytes: Interval
    tokens: Interval | None
    disk_bytes: float
    seconds: float
    pilot_peak_bytes: int | None


class SourceValues(TypedDict):
    """A source in the mixture: tokens that it has and that training reads of it."""

    source: str
    tokens: Interval
    weight: float
    read_tokens: int
    wanted_epochs: float | None
    epochs: float
    removed_as_duplicates: Interval
    held_out: float
    tokens_per_byte: float


class MixtureEstimate(TypedDict):
    """The mixture as the chunk stage will plan it."""

    sources: list[SourceValues]
    warnings: list[str]
    read_tokens: int


class OptimalSizes(TypedDict):
    """Compute-optimal parameters for all text, read `epochs` times, and for the time."""

    unique_tokens: float
    epochs: float
    effective_tokens: float
    """New tokens that are worth as much as the repeated ones."""
    parameters_by_data: float
    read_tokens: float
    days: float | None
    days_for_data: float | None
    parameters_by_hours: NotRequired[float]
    bound: NotRequired[str]
    """What limits the size: `data` or `hours`."""


class TrainingDisk(TypedDict):
    """Bytes of the trained model, and of checkpoints while it is trained."""

    model_bytes: float
    checkpoint_bytes: float


class RecipePlan(TypedDict):
    """The estimate of a recipe from a pilot."""

    recipe: str
    pilot: PilotSummary
    stages: list[StageEstimate]
    sources: list[SourceValues]
    training: TrainingEstimate
    optimal_sizes: OptimalSizes
    disk_of_training: TrainingDisk
    warnings: list[str]


class DeclaredSource(TypedDict):
    """A source by its declared size; None for what depends on a size that is not declared."""

    source: str
    tokens: int | None
    weight: float
    read_tokens: int
    epochs: float | None
    asked_epochs: float | None


class DeclaredPlan(TypedDict):
    """The mixture of a recipe whose text is missing, and its training where the hardware is named."""

    recipe: str
    sources: list[DeclaredSource]
    training: TrainingEstimate | None
    warnings: list[str]
