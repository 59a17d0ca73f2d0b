"""Settings of a step (optimizer, clipping, schedules, warm-up of batch size and length, loss scale) and of the
guard."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import EXPERT, RUNTIME, BaseConfig
from model.config.extent import Extent, TokenExtent, amount_of, as_share


class OptimizerConfig(BaseConfig):
    """The optimizer, with decoupled weight decay of matrices."""

    kind: Literal["adamw", "lamb", "sgd", "muon"] = "adamw"
    """`adamw`; `lamb`, which scales AdamW's update of each matrix to its norm, for batches of tens of thousands of
    sequences (You et al. 2020); `sgd` with momentum, whose rate is ten to a hundred times AdamW's; `muon` for the
    matrices within blocks, at AdamW's rate, and AdamW for all else (Jordan et al. 2024). `lamb` and `muon` need whole
    matrices, which ZeRO partitions; `muon` does with FSDP and tensor parallelism too."""
    beta1: Annotated[float, EXPERT] = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment; `sgd` has none."""
    beta2: Annotated[float, EXPERT] = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment (0.95: OPT-175B, GPT-3); `sgd` has none."""
    eps: Annotated[float, EXPERT] = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    momentum: Annotated[float, EXPERT] = Field(default=0.95, ge=0, lt=1)
    """`sgd`, `muon`: decay of the sum of gradients."""
    nesterov: Annotated[bool, EXPERT] = True
    """`sgd`, `muon`: Nesterov's momentum."""
    weight_decay: Annotated[float, EXPERT] = Field(default=0.1, ge=0)
    """Decay of matrices per unit of learning rate; norms, biases and the embedding are not decayed."""
    l1: Annotated[float, EXPERT] = Field(default=0.0, ge=0)
    """Penalty in the objective: this times the sum of absolute values of the decayed matrices. Reported losses leave
    penalties out."""
    l2: Annotated[float, EXPERT] = Field(default=0.0, ge=0)
    """Penalty in the objective: half of this times the sum of squares. Unlike `weight_decay` it is part of the
    gradient, is clipped, and passes through Adam's division."""


class ClipConfig(BaseConfig):
    """Limit of the gradient norm as a function of the share of tokens read; larger gradients are scaled down to it."""

    max_norm: float = Field(default=1.0, gt=0)
    """The limit (1: GPT-3, OPT-175B)."""
    early_norm: float = Field(default=0.3, gt=0)
    """The limit up to `early_share` (0.3: OPT-175B's, after its first instabilities)."""
    early_share: Extent = 0.0
    """Over how much of the training `early_norm` holds: a share, "N steps" or "N tokens"."""


class BatchWarmupConfig(BaseConfig):
    """Smaller batches at the beginning, as a function of the sequences read so far."""

    start_rows: int = Field(default=1, ge=1)
    """Sequences of the first step."""
    step_rows: int = Field(default=1, ge=1)
    """Sequences by which the batch grows at a time, at even intervals, up to `batch_rows`."""
    share: TokenExtent = 0.0
    """Over how much of the training the batch grows: a share of all sequences, or "N tokens"; 0: all steps read
    `batch_rows`."""


class LengthWarmupConfig(BaseConfig):
    """Shorter sequences at the beginning: each is cut into pieces, which are all read."""

    start_length: int = Field(default=64, ge=1)
    """Tokens of the first pieces; the length doubles up to the model's context."""
    share: Extent = 0.0
    """Over how much of the training the length grows: a share of all sequences, "N steps" or "N tokens"; 0: all are
    read whole."""


class ScheduleConfig(BaseConfig):
    """Learning rate as a function of the share of tokens read: linear warm-up, then decay."""

    kind: Literal["cosine", "linear", "constant", "step", "warmup_stable_decay", "inverse_sqrt"] = "cosine"
    """After warm-up: half a `cosine` to the end (GPT-3), `linear` decay (BERT, OPT), a `constant` rate, a `step` down
    at each of `steps`, a constant rate that decays linearly over the last `decay_share` (`warmup_stable_decay`), for
    which the length of the run need not be known in advance, or a decay as one over the root of the tokens read
    (`inverse_sqrt`, T5)."""
    start_lr: Annotated[float, EXPERT] = Field(default=0.0, ge=0)
    """Learning rate before the first token."""
    peak_lr: float = Field(default=2e-3, gt=0)
    """Learning rate at the end of warm-up; unset 0.005 where `trainable = "new_rows"`."""
    end_lr: float = Field(default=2e-4, ge=0)
    """Learning rate at the end of the decay."""
    warmup_share: Extent = 0.05
    """Over how much of the training the rate rises: a share of all tokens, "N steps" or "N tokens"."""
    end_share: Annotated[Extent, EXPERT] = 1.0
    """Where the decay ends: a share of all tokens, "N steps" or "N tokens", which may be more than the training has;
    the rate is `end_lr` from there on (GPT-3: 260B of 300B tokens; OPT-175B: 300B, of which 180B were read)."""
    steps: Annotated[tuple[Extent, ...], EXPERT] = Field(default=(0.5, 0.75), min_length=1)
    """`step`: where the rate is multiplied by `step_factor`: shares of all tokens, "N steps" or "N tokens"."""
    step_factor: Annotated[float, EXPERT] = Field(default=0.1, gt=0, lt=1)
    """`step`: factor of the rate at each step; the rate is never below `end_lr`."""
    decay_share: Annotated[Extent, EXPERT] = 0.2
    """`warmup_stable_decay`: over how much of the training, before `end_share`, the rate decays: a share of all tokens,
    "N steps" or "N tokens"."""

    @model_validator(mode="after")
    def _phases_follow_each_other(self) -> "ScheduleConfig":
        used = {"warmup_share": self.warmup_share, "end_share": self.end_share}
        if self.kind == "step":
            used |= {f"steps[{number}]": step for number, step in enumerate(self.steps)}
        if self.kind == "warmup_stable_decay":
            used["decay_share"] = self.decay_share
        # What is in steps or tokens is checked once the training's are known.
        if not any(isinstance(extent, str) for extent in used.values()):
            self.check_shares()
        return self

    def check_shares(self) -> None:
        """Raise ValueError where parts of the schedule, all of them shares, do not follow each other."""
        warmup, end = as_share(self.warmup_share), as_share(self.end_share)
        if warmup >= min(1.0, end):
            raise ValueError(f"warmup_share {warmup:g} leaves nothing of the training before end_share {end:g}")
        if self.kind == "inverse_sqrt" and not warmup:
            raise ValueError("inverse_sqrt falls from the rate at the end of warm-up on; set warmup_share above 0")
        if self.kind == "step":
            steps = tuple(map(as_share, self.steps))
            if list(steps) != sorted(set(steps)) or steps[0] <= warmup or steps[-1] >= 1:
                raise ValueError(f"steps {steps} must rise, begin after warmup_share {warmup:g} and be below 1")
        if self.kind == "warmup_stable_decay" and not 0 < (decay := as_share(self.decay_share)) <= end - warmup:
            raise ValueError(
                f"warmup_share {warmup:g} and decay_share {decay:g} are nothing, or more than the whole run up to"
                f" end_share {end:g}"
            )


class PhaseConfig(BaseConfig):
    """The last part of a training, with another mixture of sources, another learning rate, or both: annealing on the
    best text (MiniCPM, Hu et al. 2024, section 4; OLMo 2, OLMo Team 2024, section 4)."""

    share: TokenExtent
    """Its length: a share of all tokens, or "N tokens"; phases follow each other up to the end."""
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Source -> its share of the phase's tokens, any positive numbers, others none; empty: as before."""
    start_lr: float | None = Field(default=None, ge=0)
    """Learning rate at its beginning; null: the rate that was reached."""
    end_lr: float | None = Field(default=None, ge=0)
    """Learning rate at its end, to which the rate goes in a line (OLMo 2: 0). Null: constant from `start_lr` on, or
    without that as the schedule says."""

    @model_validator(mode="after")
    def _something_changes(self) -> "PhaseConfig":
        if not self.weights and self.start_lr is None and self.end_lr is None:
            raise ValueError("a phase changes weights, start_lr or end_lr; set one of them, or leave it out")
        if self.weights and not sum(self.weights.values()):
            raise ValueError("weights are all 0, so the phase reads nothing; give a source a positive one")
        if self.share in (0.0, 1.0) or (isinstance(self.share, str) and not amount_of(self.share)[0]):
            raise ValueError("share must be above 0, and below 1: what comes before it is the main part")
        return self


class LossScaleConfig(BaseConfig):
    """Dynamic loss scaling for `float16`, so that small gradients do not become zero."""

    start: float = Field(default=2.0**16, gt=0)
    """Scale of the first step, a power of two."""
    growth_steps: int = Field(default=1000, ge=1)
    """Steps without overflow after which it doubles."""
    floor: float = Field(default=2.0**-5, gt=0)
    """Smallest scale, at which an overflow counts as a non-finite step (1/32: OPT-175B)."""

    @model_validator(mode="after")
    def _scales_are_powers_of_two(self) -> "LossScaleConfig":
        for name in ("start", "floor"):
            if math.frexp(getattr(self, name))[0] != 0.5:
                raise ValueError(
                    f"{name} {getattr(self, name):g} is not a power of two, so scaling would round. Choose one"
                )
        if self.floor > self.start:
            raise ValueError(f"floor {self.floor:g} is above start {self.start:g}")
        return self


class RecoveryStep(BaseConfig):
    """Settings that the guard changes at a rollback, besides skipping data; each relative to those before the
    episode."""

    lr_factor: float = Field(default=1.0, gt=0, le=100)
    """Factor of the learning rate."""
    max_norm: float | None = Field(default=None, gt=0)
    """Limit of the gradient norm."""
    beta2: float | None = Field(default=None, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    optimizer: Literal["adamw", "sgd", "lamb", "muon"] | None = None
    """Kind of optimizer; its state is reset."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of matrix products; the loss scale is reset."""


DEFAULT_POLICY = (
    RecoveryStep(),
    RecoveryStep(lr_factor=0.9),
    RecoveryStep(lr_factor=2 / 3),
    RecoveryStep(lr_factor=0.5, max_norm=0.3, beta2=0.95),
    RecoveryStep(lr_factor=10, max_norm=0.3, optimizer="sgd"),
)
"""Recovery steps in order: skip the data; OPT-175B's lower rates and its limit of 0.3; SGD, whose rate is about ten
times AdamW's."""

FLOAT16_RECOVERY_STEP = RecoveryStep(lr_factor=0.5, max_norm=0.3, dtype="bfloat16")
"""Last recovery step of a run in float16, whose range is often the cause."""


class GuardConfig(BaseConfig):
    """Detection of spikes and divergence, and recovery. Steps are optimizer steps."""

    enabled: bool = True
    """Whether spikes are skipped and divergence is rolled back. Otherwise only non-finite steps are skipped, and
    three of them in a row end the run."""
    window: int = Field(default=128, ge=16)
    """Accepted steps with which loss and gradient norm are compared."""
    least_steps: int = Field(default=64, ge=8)
    """Accepted steps before anything but non-finite numbers is detected."""
    least_loss_deviation: float = Field(default=0.01, gt=0)
    """Smallest deviation of losses, nats."""
    most_unclean: int = Field(default=8, ge=1)
    """Skipped steps among the last `unclean_window` that count as divergence."""
    unclean_window: int = Field(default=64, ge=1)
    """Steps over which `most_unclean` are counted."""
    healthy_steps: int = Field(default=64, ge=1)
    """Clean steps after a checkpoint that make it a target of rollbacks."""
    margin_steps: int = Field(default=20, ge=0)
    """Least number of steps from the checkpoint of a rollback to the first sign of trouble."""
    most_rollbacks: Annotated[int, RUNTIME] = Field(default=10, ge=1)
    """Rollbacks in all before training stops with a report."""
    most_skipped: float = Field(default=0.1, gt=0, le=1)
    """Share of the run's sequences that rollbacks may skip before training stops with a report."""
    ladder: tuple[RecoveryStep, ...] | None = Field(default=None, min_length=1)
    """Recovery steps at the first, second, ... rollback of the same divergence; after the last one training stops. By
    default: nothing but skipping data, rate times 0.9, times 2/3, half the rate with clipping at 0.3, and SGD instead
    of AdamW (in `float16`: `bfloat16`)."""

    @model_validator(mode="after")
    def _disabled_guard_has_no_settings(self) -> "GuardConfig":
        fields = type(self).model_fields
        others = [name for name in fields if name != "enabled" and getattr(self, name) != fields[name].default]
        if not self.enabled and others:
            raise ValueError(f"enabled = false, and {', '.join(others)} would have no effect. Leave one of them out")
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> "GuardConfig":
        if self.least_steps > self.window:
            raise ValueError(
                f"least_steps {self.least_steps} is larger than window {self.window}, which never holds so many"
            )
        if self.most_unclean > self.unclean_window:
            raise ValueError(f"most_unclean {self.most_unclean} is larger than unclean_window {self.unclean_window}")
        return self
