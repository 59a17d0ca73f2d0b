"""How a step goes: optimizer, limit, rate, size and length of batches, and the scale of its loss.

When the guard leaves a step out, when it goes back, and what it then changes.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import RUNTIME, Strict


class OptimizerConfig(Strict):
    """What becomes of a gradient: a step, with decay of matrices apart from it."""

    kind: Literal["adamw", "lamb", "sgd", "muon"] = "adamw"
    """`adamw`; `lamb`, which scales AdamW's step of each matrix to its length, for batches of tens of thousands of rows
    (You et al. 2020); `sgd` with momentum, whose rate is ten to a hundred times AdamW's; `muon` for the matrices within
    blocks, at AdamW's rate, and AdamW for all else (Jordan et al. 2024). `lamb` and `muon` need whole matrices, which
    ZeRO cuts up."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment; `sgd` has none."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment (0.95: OPT-175B, GPT-3); `sgd` has none."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """`sgd`, `muon`: what is left of the sum of earlier gradients."""
    nesterov: bool = True
    """`sgd`, `muon`: whether the step looks ahead along the momentum."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decay of matrices per unit of learning rate; norms, biases and the embedding are not decayed."""
    l1: float = Field(default=0.0, ge=0)
    """Penalty in the loss: this times the sum of the magnitudes of the matrices that are decayed. The loss that is told
    leaves penalties out."""
    l2: float = Field(default=0.0, ge=0)
    """Penalty in the loss: half of this times the sum of squares. Unlike `weight_decay` it is part of the gradient, is
    clipped, and goes through Adam's division."""


class ClipConfig(Strict):
    """The largest gradient norm, as a function of the share of tokens read; a longer gradient is scaled down to it."""

    max_norm: float = Field(default=1.0, gt=0)
    """The limit (1: GPT-3, OPT-175B)."""
    early_norm: float = Field(default=0.3, gt=0)
    """The limit before `early_share` (0.3: OPT-175B's, after its first instabilities)."""
    early_share: float = Field(default=0.0, ge=0, le=1)
    """Share of all tokens over which `early_norm` holds."""


class BatchWarmupConfig(Strict):
    """Smaller batches at the beginning, as a function of the rows read so far."""

    start_rows: int = Field(default=1, ge=1)
    """Rows of the first step."""
    step_rows: int = Field(default=1, ge=1)
    """Rows by which the batch grows at a time, in even strides, up to `batch_rows`."""
    share: float = Field(default=0.0, ge=0, le=1)
    """Share of all rows over which the batch grows; 0: all steps read `batch_rows`."""


class LengthWarmupConfig(Strict):
    """Shorter rows at the beginning: each is cut into pieces, and all its tokens are read all the same."""

    start_length: int = Field(default=64, ge=1)
    """Tokens of the first pieces; the length doubles up to the model's context."""
    share: float = Field(default=0.0, ge=0, le=1)
    """Share of all rows over which the length grows; 0: all rows are read whole."""


class ScheduleConfig(Strict):
    """Linear warm-up, then the way back down, as functions of the share of tokens read."""

    kind: Literal["cosine", "linear", "constant", "step", "warmup_stable_decay"] = "cosine"
    """What follows warm-up: half a `cosine` to the end (GPT-3, OPT), a `linear` fall (BERT), a `constant` rate, `step`s
    down at `steps`, or a constant rate that falls linearly over the last `decay_share` (`warmup_stable_decay`), which a
    run can leave without having known its length."""
    start_lr: float = Field(default=0.0, ge=0)
    """Learning rate before the first token."""
    peak_lr: float = Field(default=2e-3, gt=0)
    """Learning rate at the end of warm-up."""
    end_lr: float = Field(default=2e-4, ge=0)
    """Learning rate after the last token."""
    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of all tokens over which the rate rises."""
    steps: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(0.5, 0.75), min_length=1)
    """`step`: shares of all tokens at which the rate is multiplied by `step_factor`."""
    step_factor: float = Field(default=0.1, gt=0, lt=1)
    """`step`: what is left of the rate after each step; never less than `end_lr`."""
    decay_share: float = Field(default=0.2, gt=0, le=1)
    """`warmup_stable_decay`: share of all tokens, at the end, over which the rate falls."""

    @model_validator(mode="after")
    def _phases_follow_each_other(self) -> "ScheduleConfig":
        if self.kind == "step" and (list(self.steps) != sorted(set(self.steps)) or self.steps[0] <= self.warmup_share):
            raise ValueError(f"steps {self.steps} must rise, and begin after warmup_share {self.warmup_share}")
        if self.kind == "warmup_stable_decay" and self.warmup_share + self.decay_share > 1:
            raise ValueError(
                f"warmup_share {self.warmup_share} and decay_share {self.decay_share} are more than the whole run"
            )
        return self


class LossScaleConfig(Strict):
    """How the loss of `float16` is scaled, so that small gradients do not become zero; other types need none."""

    start: float = Field(default=2.0**16, gt=0)
    """Scale of the first step, a power of two."""
    growth_steps: int = Field(default=1000, ge=1)
    """Steps without overflow after which it doubles."""
    floor: float = Field(default=2.0**-5, gt=0)
    """Where it stops halving, and an overflow counts as a non-finite step (1/32: OPT-175B)."""

    @model_validator(mode="after")
    def _scales_change_no_digit(self) -> "LossScaleConfig":
        for name in ("start", "floor"):
            if math.frexp(getattr(self, name))[0] != 0.5:
                raise ValueError(f"{name} {getattr(self, name):g} is no power of two, so that scaling would round")
        if self.floor > self.start:
            raise ValueError(f"floor {self.floor:g} is above start {self.start:g}")
        return self


class RecoveryStep(Strict):
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


DEFAULT_POLICY = (
    RecoveryStep(),
    RecoveryStep(lr_factor=0.9),
    RecoveryStep(lr_factor=2 / 3),
    RecoveryStep(lr_factor=0.5, max_norm=0.3, beta2=0.95),
    RecoveryStep(lr_factor=10, max_norm=0.3, optimizer="sgd"),
)
"""Skip the data; OPT-175B's lower rates and its limit of .3; and its other optimizer, whose rate is some ten times
AdamW's."""

FLOAT16_RECOVERY_STEP = RecoveryStep(lr_factor=0.5, max_norm=0.3, dtype="bfloat16")
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
    ladder: tuple[RecoveryStep, ...] | None = Field(default=None, min_length=1)
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
