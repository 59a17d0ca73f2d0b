"""Learning rate, clipping limit, batch size and row length of each step, as functions of the position in ORDER.

The clock is the share of tokens or rows read, not a count of optimizer steps: skipped steps advance it too, so that
what a token meets depends on its position alone. Batches follow each other without a gap, and a row that is cut into
pieces keeps every pair of input and target, so a run with warm-up of batch size and length reads the same data.
"""

import math
from dataclasses import dataclass

from model.config.extent import as_share, share_of
from model.config.options import BatchWarmupConfig, ClipConfig, LengthWarmupConfig, PhaseConfig, ScheduleConfig
from model.config.train import TrainConfig
from model.errors import RecipeError


@dataclass(frozen=True)
class StepSchedule:
    """The scheduled settings of one step."""

    lr: float
    max_norm: float = 1.0
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    row_pieces: int = 1
    """Pieces that each row of SEQUENCES is cut into; a micro-batch has so many times as many rows."""


def clip_norm(share: float, config: ClipConfig) -> float:
    """Return the clipping limit; a step that ends at `early_share` still belongs to the early part."""
    early = as_share(config.early_share)
    return config.early_norm if early and share <= early else config.max_norm


def learning_rate(share: float, config: ScheduleConfig) -> float:
    """Return the learning rate after `share` (0 to 1) of all tokens; beyond `end_share` that of the end."""
    warmup, end = as_share(config.warmup_share), as_share(config.end_share)
    if share < warmup:
        return config.start_lr + (config.peak_lr - config.start_lr) * share / warmup
    progress = min(1.0, (share - warmup) / (end - warmup))
    if config.kind == "cosine":
        return config.end_lr + (config.peak_lr - config.end_lr) * (1.0 + math.cos(math.pi * progress)) / 2.0
    if config.kind == "linear":
        return config.peak_lr + (config.end_lr - config.peak_lr) * progress
    if config.kind == "step":
        passed = sum(share >= as_share(step) for step in config.steps)
        return max(config.end_lr, config.peak_lr * config.step_factor**passed)
    if config.kind == "warmup_stable_decay":
        # Hägele et al. 2024, https://arxiv.org/abs/2405.18392, section 3.
        decay = as_share(config.decay_share)
        fallen = max(0.0, min(1.0, (share - (end - decay)) / decay))
        return config.peak_lr + (config.end_lr - config.peak_lr) * fallen
    if config.kind == "inverse_sqrt":
        # Raffel et al. 2020, section 3.1.2: 1 / sqrt(max(n, k)) after n steps, with k those of warm-up.
        return max(config.end_lr, config.peak_lr * math.sqrt(warmup / min(share, end)))
    return config.peak_lr


class TrainingSchedule:
    """All steps of a run over `positions` rows of ORDER, with `context` predictions a row.

    Raises RecipeError where a part of the schedule that is given in steps or tokens does not fit into the run.
    """

    def __init__(self, config: TrainConfig, positions: int, context: int) -> None:
        self._config = config
        self._positions = positions
        self._context = context
        tokens = positions * context
        batch_warmup = config.batch_warmup.model_copy(update={"share": share_of(config.batch_warmup.share, tokens)})
        self._growing = _growing_batches(batch_warmup, config.batch_rows, positions)
        """First position of each step whose batch still grows, and of the first full batch."""
        self.steps = len(self._growing) - 1 + -(-(positions - self._growing[-1]) // config.batch_rows)
        self._schedule, self._clip, self._length_warmup = self._in_shares(tokens)
        self._phases = self._begins_of_phases(tokens)

    def _in_shares(self, tokens: int) -> tuple[ScheduleConfig, ClipConfig, LengthWarmupConfig]:
        """Return the settings with steps and tokens as shares of the training."""

        def share(extent: float | str) -> float:
            return share_of(extent, tokens, lambda steps: self._begin(steps) / self._positions)

        given = self._config.schedule

        def share_at_end(steps: int) -> float:
            return 1.0 - self._begin(max(0, self.steps - steps)) / self._positions

        schedule = given.model_copy(
            update={
                "warmup_share": share(given.warmup_share),
                "end_share": share(given.end_share),
                "steps": tuple(share(step) for step in given.steps),
                "decay_share": share_of(given.decay_share, tokens, share_at_end),
            }
        )
        try:
            schedule.check_shares()
        except ValueError as error:
            raise RecipeError(
                f"train.schedule, for a training of {self.steps:,} steps and {tokens:,} tokens: {error}. Give shorter"
                f" parts (warmup_share {given.warmup_share}, end_share {given.end_share}), or more budget_tokens."
            ) from error
        clip, warmup = self._config.clip, self._config.length_warmup
        return (
            schedule,
            clip.model_copy(update={"early_share": share(clip.early_share)}),
            warmup.model_copy(update={"share": share(warmup.share)}),
        )

    def _begins_of_phases(self, tokens: int) -> list[tuple[float, PhaseConfig]]:
        """Return (share of the training before it, phase) of each."""
        lengths = [share_of(phase.share, tokens) for phase in self._config.phases]
        if sum(lengths) >= 1:
            raise RecipeError(
                f"train.phases take {sum(lengths):.4g} times the {tokens:,} tokens of the training, and leave none for"
                f" what comes before them. Give shorter shares, or more budget_tokens."
            )
        return [(1.0 - sum(lengths[number:]), phase) for number, phase in enumerate(self._config.phases)]

    def learning_rate(self, share: float) -> float:
        """Return the learning rate after `share` (0 to 1) of all tokens, by the schedule and the phases."""
        return self._rate(share, len(self._phases))

    def _rate(self, share: float, phases: int) -> float:
        """Return the rate by the schedule and the first `phases` phases."""
        if not phases:
            return learning_rate(share, self._schedule)
        begin, phase = self._phases[phases - 1]
        if share <= begin or (phase.start_lr is None and phase.end_lr is None):
            return self._rate(share, phases - 1)
        end = self._phases[phases][0] if phases < len(self._phases) else 1.0
        start_lr = self._rate(begin, phases - 1) if phase.start_lr is None else phase.start_lr
        end_lr = start_lr if phase.end_lr is None else phase.end_lr
        return start_lr + (end_lr - start_lr) * min(1.0, (share - begin) / (end - begin))

    def positions(self, step: int) -> tuple[int, int]:
        """Return the positions [begin, end) of ORDER that a step reads."""
        return self._begin(step), min(self._begin(step + 1), self._positions)

    def steps_to(self, share: float) -> int:
        """Return how many steps read at least this share of all positions."""
        return next(step + 1 for step in range(self.steps) if self.positions(step)[1] >= share * self._positions)

    def step_schedule(self, step: int) -> StepSchedule:
        """Return the settings of a step: rate and limit as after its tokens, row length as before them."""
        begin, end = self.positions(step)
        share = end / self._positions
        length = row_length(begin / self._positions, self._context, self._length_warmup)
        return StepSchedule(self.learning_rate(share), clip_norm(share, self._clip), self._context // length)

    def steps_with_partial_micro_batches(self) -> int:
        """Return how many steps leave a partial micro-batch on a rank: a short last one, and some that still grow."""
        return sum(map(self._has_partial_micro_batch, range(self.steps)))

    def _has_partial_micro_batch(self, step: int) -> bool:
        begin, end = self.positions(step)
        pieces = self._context // row_length(begin / self._positions, self._context, self._length_warmup)
        share = -(-(end - begin) * pieces // self._config.data_parallel)
        return share % (self._config.rows_at_once * pieces) > 0

    def _begin(self, step: int) -> int:
        full = step - (len(self._growing) - 1)
        return self._growing[step] if full < 0 else self._growing[-1] + full * self._config.batch_rows


def _growing_batches(config: BatchWarmupConfig, batch_rows: int, positions: int) -> list[int]:
    """Return the first position of each growing batch and of the first full one.

    Megatron-LM's ramp: B0 + Bi floor(c / (R / n)) rows after c of R rows, in n increments of Bi to the full batch.
    """
    begins = [0]
    ramp = as_share(config.share) * positions
    increments = (batch_rows - config.start_rows) // config.step_rows
    while begins[-1] < ramp and begins[-1] < positions:
        passed = math.floor(begins[-1] * increments / ramp)
        begins.append(begins[-1] + config.start_rows + config.step_rows * passed)
    return begins


def row_length(share: float, context: int, config: LengthWarmupConfig) -> int:
    """Return the predictions of a row after `share` of all rows: the largest doubling of `start_length` that a straight
    line to the context has reached."""
    whole = as_share(config.share)
    if share >= whole:
        return context
    line = config.start_length + (context - config.start_length) * share / whole
    return config.start_length * 2 ** int(math.log2(line / config.start_length))


def micro_batch_row_counts(config: TrainConfig, context: int) -> frozenset[int]:
    """Return the rows of a full micro-batch for each row length of the run; their tokens are as many."""
    shortest = config.length_warmup.start_length if config.length_warmup.share else context
    return frozenset(config.rows_at_once * 2**doubling for doubling in range((context // shortest).bit_length()))
