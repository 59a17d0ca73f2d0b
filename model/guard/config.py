"""When the guard leaves a step out, when it goes back, and what it then changes."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.strict import RUNTIME, Strict


class Rung(Strict):
    """What changes at one firing of the guard, besides going back and skipping data; each is of what held before the
    episode."""

    lr_factor: float = Field(default=1.0, gt=0, le=100)
    """What the learning rate is multiplied by."""
    max_norm: float | None = Field(default=None, gt=0)
    """Limit of the gradient's norm."""
    beta2: float | None = Field(default=None, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    optimizer: Literal["adamw", "sgd", "lamb", "muon"] | None = None
    """Kind of optimizer; its state starts anew."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type in which matrices are multiplied; the loss scale starts anew."""


DEFAULT_LADDER = (
    Rung(),
    Rung(lr_factor=0.9),
    Rung(lr_factor=2 / 3),
    Rung(lr_factor=0.5, max_norm=0.3, beta2=0.95),
    Rung(lr_factor=10, max_norm=0.3, optimizer="sgd"),
)
"""Skip the data; OPT-175B's lower rates and its limit of .3; and its other optimizer, whose rate is some ten times
AdamW's."""
FLOAT16_RUNG = Rung(lr_factor=0.5, max_norm=0.3, dtype="bfloat16")
"""Last rung of a run in float16, whose range is often the cause."""


class GuardConfig(Strict):
    """What counts as a spike and as divergence, and what follows. Steps are optimizer steps."""

    enabled: bool = True
    """Whether spikes are left out and divergence leads back. Without, non-finite steps alone are left out, and end the
    run after `train.max_nonfinite_steps` in a row."""
    window: int = Field(default=128, ge=16)
    """Accepted steps against which loss and gradient norm are held."""
    least_steps: int = Field(default=64, ge=8)
    """Accepted steps before anything but a non-finite number is judged."""
    spike_deviations: float = Field(default=6.0, gt=0)
    """A step is a spike whose loss, or the logarithm of whose gradient norm, is more than so many deviations (1.4826
    times the median one from the median) above the window's median. It is left out, and its values do not enter the
    window."""
    least_loss_deviation: float = Field(default=0.01, gt=0)
    """Nats: a deviation of losses counts as no less."""
    least_norm_deviation: float = Field(default=0.4, gt=0)
    """A deviation of the gradient norm's logarithm counts as no less: six of them are eleven times the norm. Healthy
    runs of small batches reach six times it, and steady ones have deviations of .06."""
    most_unclean: int = Field(default=8, ge=1)
    """Steps left out among the last `unclean_window` that count as divergence."""
    unclean_window: int = Field(default=64, ge=1)
    """Steps over which `most_unclean` are counted."""
    most_halvings: int = Field(default=4, ge=1)
    """`float16`: halvings of the loss scale within 50 steps that count as divergence."""
    healthy_steps: int = Field(default=64, ge=1)
    """Clean steps behind a checkpoint after which it can be gone back to."""
    margin_steps: int = Field(default=20, ge=0)
    """Steps that the checkpoint gone back to lies before the first sign of trouble, at least."""
    skip_before: int = Field(default=2, ge=0)
    """Steps before the first sign of trouble whose data are skipped too."""
    skip_after: int = Field(default=2, ge=0)
    """Steps behind the divergence whose data are skipped too."""
    same_trouble_steps: int = Field(default=200, ge=1)
    """Trouble that begins this near to where the last one began is the same, and takes the next rung."""
    most_rollbacks: Annotated[int, RUNTIME] = Field(default=10, ge=1)
    """Ways back in all, before training stops with a report."""
    most_skipped: float = Field(default=0.1, gt=0, le=1)
    """Share of the run's rows that the guard may leave out on its ways back, before training stops with a report."""
    ladder: tuple[Rung, ...] | None = Field(default=None, min_length=1)
    """What changes at the first, second, ... time of the same trouble; behind the last rung training stops. By default:
    nothing, rate times .9, times 2/3, half the rate with clipping at .3, and SGD instead of AdamW (in `float16`:
    `bfloat16`)."""

    @model_validator(mode="after")
    def _nothing_is_set_in_vain(self) -> "GuardConfig":
        fields = type(self).model_fields
        others = [name for name in fields if name != "enabled" and getattr(self, name) != fields[name].default]
        if not self.enabled and others:
            raise ValueError(f"enabled = false, and {', '.join(others)} would say nothing. Leave one of them out")
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> "GuardConfig":
        if self.least_steps > self.window:
            raise ValueError(f"least_steps {self.least_steps} are never in a window of {self.window}")
        if self.most_unclean > self.unclean_window:
            raise ValueError(f"most_unclean {self.most_unclean} steps are never among {self.unclean_window}")
        return self
