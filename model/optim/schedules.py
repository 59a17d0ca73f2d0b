"""Learning rate and clipping as pure functions of the share of tokens read: the data clock, not a step counter.

Steps that are skipped move the clock too, so what a token meets depends on its place in ORDER alone.

What each step reads: batches and rows that grow at the beginning.

Everything is a function of the place in ORDER. Batches follow each other without a gap, and a row that is cut into
pieces keeps every pair of input and target, so that a run with a curriculum reads what one without does.
"""

import math
from dataclasses import dataclass

from model.config.options import BatchWarmupConfig, ClipConfig, LengthWarmupConfig, ScheduleConfig
from model.config.train import TrainConfig


@dataclass(frozen=True)
class StepSchedule:
    """How a step goes, as the data clock says."""

    lr: float
    """Learning rate."""
    max_norm: float = 1.0
    """Largest norm of the gradient; a longer one is scaled down to it."""
    row_pieces: int = 1
    """Rows of the batch that were one row of SEQUENCES; so many more pass through the model at once."""


def clip_norm(share: float, config: ClipConfig) -> float:
    """The largest norm of a gradient; a step that ends at `early_share` still belongs to the early part."""
    return config.early_norm if config.early_share and share <= config.early_share else config.max_norm


def learning_rate(share: float, config: ScheduleConfig) -> float:
    """The rate after `share` (0 to 1) of all tokens; beyond the end, that of the end."""
    if share < config.warmup_share:
        return config.start_lr + (config.peak_lr - config.start_lr) * share / config.warmup_share
    progress = min(1.0, (share - config.warmup_share) / (1.0 - config.warmup_share))
    if config.kind == "cosine":
        return config.end_lr + (config.peak_lr - config.end_lr) * (1.0 + math.cos(math.pi * progress)) / 2.0
    if config.kind == "linear":
        return config.peak_lr + (config.end_lr - config.peak_lr) * progress
    if config.kind == "step":
        passed = sum(share >= step for step in config.steps)
        return max(config.end_lr, config.peak_lr * config.step_factor**passed)
    if config.kind == "warmup_stable_decay":
        # Hagele et al., 2024 (arXiv 2405.18392), section 3.
        fallen = max(0.0, min(1.0, (share - (1.0 - config.decay_share)) / config.decay_share))
        return config.peak_lr + (config.end_lr - config.peak_lr) * fallen
    return config.peak_lr


class TrainingSchedule:
    """The steps of a run over `positions` rows of ORDER, with `context` predictions a row."""

    def __init__(self, config: TrainConfig, positions: int, context: int) -> None:
        self._config = config
        self._positions = positions
        self._context = context
        self._growing = _growing_batches(config.batch_warmup, config.batch_rows, positions)
        """Where the steps begin whose batches still grow, and where the first whole batch does."""
        self.steps = len(self._growing) - 1 + -(-(positions - self._growing[-1]) // config.batch_rows)

    def positions(self, step: int) -> tuple[int, int]:
        """The positions [begin, end) of ORDER that a step reads."""
        return self._begin(step), min(self._begin(step + 1), self._positions)

    def steps_to(self, share: float) -> int:
        """Steps that read at least this share of all positions."""
        return next(step + 1 for step in range(self.steps) if self.positions(step)[1] >= share * self._positions)

    def step_schedule(self, step: int) -> StepSchedule:
        """Rate and limit after the step's tokens, and the length of its rows before them."""
        begin, end = self.positions(step)
        share = end / self._positions
        length = row_length(begin / self._positions, self._context, self._config.length_warmup)
        return StepSchedule(
            learning_rate(share, self._config.schedule), clip_norm(share, self._config.clip), self._context // length
        )

    def steps_with_rest(self) -> int:
        """Steps in which a rank's rows do not fill whole micro-batches: last, short ones, and some that still grow."""
        return sum(map(self._leaves_rest, range(self.steps)))

    def _leaves_rest(self, step: int) -> bool:
        begin, end = self.positions(step)
        pieces = self._context // row_length(begin / self._positions, self._context, self._config.length_warmup)
        share = -(-(end - begin) * pieces // self._config.data_parallel)
        return share % (self._config.rows_at_once * pieces) > 0

    def _begin(self, step: int) -> int:
        whole = step - (len(self._growing) - 1)
        return self._growing[step] if whole < 0 else self._growing[-1] + whole * self._config.batch_rows


def _growing_batches(config: BatchWarmupConfig, batch_rows: int, positions: int) -> list[int]:
    """Megatron-LM's ramp: B0 + Bi floor(c / (R / n)) rows after c of R, in n strides of Bi to the whole batch."""
    begins = [0]
    ramp = config.share * positions
    strides = (batch_rows - config.start_rows) // config.step_rows
    while begins[-1] < ramp and begins[-1] < positions:
        passed = math.floor(begins[-1] * strides / ramp)
        begins.append(begins[-1] + config.start_rows + config.step_rows * passed)
    return begins


def row_length(share: float, context: int, config: LengthWarmupConfig) -> int:
    """Predictions a row after `share` of all rows: what a straight line to the context has passed, by doublings."""
    if not config.share or share >= config.share:
        return context
    line = config.start_length + (context - config.start_length) * share / config.share
    return config.start_length * 2 ** int(math.log2(line / config.start_length))


def micro_batch_row_counts(config: TrainConfig, context: int) -> frozenset[int]:
    """Rows of whole micro-batches: as many tokens at once, in rows of each length that there is."""
    shortest = config.length_warmup.start_length if config.length_warmup.share else context
    return frozenset(config.rows_at_once * 2**doubling for doubling in range((context // shortest).bit_length()))
