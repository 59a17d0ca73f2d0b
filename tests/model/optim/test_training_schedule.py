"""What each step reads: warm-up of batch size and length changes no pair of input and target."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config.network import BERTConfig, GPTConfig
from model.config.options import BatchWarmupConfig, ClipConfig, LengthWarmupConfig
from model.config.rules import check_lengths
from model.config.train import TrainConfig
from model.data.loader import CausalBatch
from model.errors import RecipeError
from model.optim.schedules import StepSchedule, TrainingSchedule, learning_rate, micro_batch_row_counts, row_length


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate({"batch_rows": 8, "micro_batch_rows": 4, **settings})


def batches(curriculum: TrainingSchedule) -> list[int]:
    return [end - begin for begin, end in map(curriculum.positions, range(curriculum.steps))]


@pytest.mark.parametrize(
    ("warmup", "positions", "rows"),
    [
        # Without a ramp all batches are whole but the last.
        ({}, 20, [8, 8, 4]),
        # Half of 32 rows in three strides of 5 1/3: steps before row 5 1/3 read 2, before 10 2/3 they read 4.
        ({"start_rows": 2, "step_rows": 2, "share": 0.5}, 32, [2, 2, 2, 4, 4, 6, 8, 4]),
        ({"start_rows": 4, "step_rows": 4, "share": 1.0}, 16, [4, 4, 4, 4]),
        # A ramp that is longer than a batch needs ends with the run.
        ({"start_rows": 4, "step_rows": 4, "share": 1.0}, 6, [4, 2]),
    ],
)
def test_batches_grow_in_strides(warmup: dict, positions: int, rows: list[int]) -> None:
    assert batches(TrainingSchedule(config(batch_warmup=warmup), positions, 16)) == rows


@given(st.integers(1, 500), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.floats(0, 1))
def test_every_row_is_read_once_and_batches_never_shrink(positions: int, start: int, step: int, share: float) -> None:
    warmup = {"start_rows": start * step, "step_rows": step, "share": share}
    try:
        curriculum = TrainingSchedule(config(batch_warmup=warmup), positions, 16)
    except ValidationError:
        assert (8 - start * step) % step or start * step >= 8
        return
    read = list(map(curriculum.positions, range(curriculum.steps)))
    assert read[0][0] == 0
    assert read[-1][1] == positions
    assert all(one[1] == other[0] for one, other in itertools.pairwise(read))
    assert batches(curriculum)[:-1] == sorted(batches(curriculum)[:-1])
    assert all(0 < rows <= 8 for rows in batches(curriculum))


@pytest.mark.parametrize(
    ("settings", "positions", "steps"),
    [
        ({}, 24, 0),
        # Of 8, 8 and 4 rows in micro-batches of 4 none is left over; of 8, 8 and 5 one is.
        ({}, 20, 0),
        ({}, 21, 1),
        # Steps of 2, 2, 2, 4, 4, 6, 8 and 4 rows.
        ({"batch_warmup": {"start_rows": 2, "step_rows": 2, "share": 0.5}}, 32, 4),
        # Two ranks read 1, 1, 1, 2, 2, 3, 4 and 2 of these each.
        ({"batch_warmup": {"start_rows": 2, "step_rows": 2, "share": 0.5}, "ranks": 2}, 32, 7),
        ({"length_warmup": {"start_length": 4, "share": 0.5}}, 24, 0),
        # As above, each row in two pieces.
        (
            {
                "batch_warmup": {"start_rows": 2, "step_rows": 2, "share": 0.5},
                "length_warmup": {"start_length": 8, "share": 1.0},
            },
            32,
            4,
        ),
    ],
)
def test_steps_whose_rows_fill_no_micro_batch_are_counted(settings: dict, positions: int, steps: int) -> None:
    assert TrainingSchedule(config(**settings), positions, 16).steps_with_partial_micro_batches() == steps


def test_whole_micro_batches_hold_the_same_tokens_at_every_length() -> None:
    assert micro_batch_row_counts(config(), 64) == {4}
    # Rows of 16, 32 and 64 tokens.
    assert micro_batch_row_counts(config(length_warmup={"start_length": 16, "share": 0.5}), 64) == {16, 8, 4}
    assert micro_batch_row_counts(config(length_warmup={"start_length": 16}), 64) == {4}
    assert micro_batch_row_counts(config(ranks=4), 64) == {2}


def test_lengths_double_where_a_straight_line_passes_them() -> None:
    warmup = LengthWarmupConfig(start_length=16, share=0.5)
    # The line is 16 at 0, 32 at 1/7, 64 at 3/7 of the way to 128.
    shares = (0.0, 0.07, 0.072, 0.21, 0.215, 0.49, 0.5, 1.0)
    assert [row_length(share, 128, warmup) for share in shares] == [16, 16, 32, 32, 64, 64, 128, 128]
    assert row_length(0.0, 128, LengthWarmupConfig()) == 128


def test_the_pace_of_a_step() -> None:
    settings = config(
        length_warmup={"start_length": 4, "share": 0.5},
        clip={"max_norm": 5.0, "early_norm": 0.3, "early_share": 0.25},
        batch_warmup={"start_rows": 4, "step_rows": 4, "share": 0.25},
    )
    curriculum = TrainingSchedule(settings, 32, 16)
    assert [curriculum.positions(step) for step in range(curriculum.steps)] == [
        (0, 4),
        (4, 8),
        (8, 16),
        (16, 24),
        (24, 32),
    ]
    norms = [0.3, 0.3, 5.0, 5.0, 5.0]
    # Lengths at 0, 4, 8 of 16 rows of warm-up: 4, 7, 10 on the line, by doublings 4, 4, 8.
    pieces = [4, 4, 2, 1, 1]
    ends = [4, 8, 16, 24, 32]
    expected = [
        StepSchedule(learning_rate(end / 32, settings.schedule), norm, piece)
        for end, norm, piece in zip(ends, norms, pieces, strict=True)
    ]
    assert [curriculum.step_schedule(step) for step in range(5)] == expected


@given(st.sampled_from([4, 8, 16]), st.floats(0, 1), st.floats(0, 1))
def test_the_pairs_of_input_and_target_are_those_of_a_run_without(length: int, rows: float, lengths: float) -> None:
    context, positions = 16, 21
    ids = torch.randint(0, 9, (positions, context + 1), generator=torch.Generator().manual_seed(3))
    starts = torch.randint(0, 6, (positions,), generator=torch.Generator().manual_seed(4))

    def pairs(settings: TrainConfig) -> Counter[tuple[int, int, bool]]:
        curriculum, seen = TrainingSchedule(settings, positions, context), Counter[tuple[int, int, bool]]()
        for step in range(curriculum.steps):
            begin, end = curriculum.positions(step)
            pieces = curriculum.step_schedule(step).row_pieces
            batch = CausalBatch(ids[begin:end], starts[begin:end]).shortened(context // pieces)
            assert batch.tokens_BL.shape == ((end - begin) * pieces, context // pieces + 1)
            for row, start in zip(batch.tokens_BL.tolist(), batch.loss_start_B.tolist(), strict=True):
                seen.update((row[i - 1], row[i], i >= start) for i in range(1, len(row)))
        return seen

    warm = config(
        batch_warmup={"start_rows": 2, "step_rows": 2, "share": rows},
        length_warmup={"start_length": length, "share": lengths},
    )
    assert pairs(warm) == pairs(config())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_warmup": {"start_rows": 3, "step_rows": 2, "share": 0.1}}, "do not lead to batch_rows 8"),
        ({"batch_warmup": {"start_rows": 8, "share": 0.1}}, "do not lead to batch_rows 8"),
        ({"batch_warmup": {"start_rows": 4, "step_rows": 1, "share": 0.1}, "ranks": 2}, "ranks 2 does not divide"),
    ],
)
def test_batches_that_cannot_grow_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(**settings)


def test_lengths_that_do_not_double_up_to_the_context_are_refused_and_so_are_rows_of_pairs() -> None:
    gpt = GPTConfig(vocab_size=48, context=96, layers=1, heads=2, width=16)
    check_lengths(gpt, LengthWarmupConfig(start_length=24, share=0.1))
    check_lengths(gpt, LengthWarmupConfig(start_length=7))
    for length in (7, 32, 192):
        with pytest.raises(ValueError, match=r"does not double up to model\.context 96"):
            check_lengths(gpt, LengthWarmupConfig(start_length=length, share=0.1))
    bert = BERTConfig(architecture="bert", vocab_size=48, context=96, layers=1, heads=2, width=16)
    with pytest.raises(ValueError, match=r"sequences of a bert cannot be cut.*keeps its context"):
        check_lengths(bert, LengthWarmupConfig(start_length=24, share=0.1))


def test_defaults_change_nothing() -> None:
    settings = config()
    assert (settings.batch_warmup, settings.clip) == (BatchWarmupConfig(), ClipConfig())
    curriculum = TrainingSchedule(settings, 24, 16)
    assert [curriculum.step_schedule(step).row_pieces for step in range(3)] == [1, 1, 1]
    assert [curriculum.step_schedule(step).max_norm for step in range(3)] == [1.0, 1.0, 1.0]


def test_a_phase_has_a_rate_of_its_own_and_others_go_on() -> None:
    settings = config(
        schedule={"kind": "constant", "warmup_share": 0.0, "peak_lr": 1.0},
        phases=[
            {"share": 0.2, "weights": {"a": 1}},
            {"share": "640 tokens", "end_lr": 0.0},
            {"share": 0.1, "start_lr": 0.5},
        ],
    )
    # 100 steps of 8 rows with 8 predictions are 6,400 tokens: phases begin after 60, 80 and 90 steps.
    curriculum = TrainingSchedule(settings, 800, 8)
    rates = [curriculum.step_schedule(step).lr for step in range(curriculum.steps)]
    assert rates[:80] == [1.0] * 80
    assert rates[80:90] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], abs=1e-12)
    assert rates[90:] == [0.5] * 10


def test_phases_that_leave_nothing_before_them_or_change_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"train\.phases take 1\.1 times the 6,400 tokens"):
        TrainingSchedule(config(phases=[{"share": 0.6, "end_lr": 0}, {"share": "3.2K tokens", "end_lr": 0}]), 800, 8)
    with pytest.raises(ValidationError, match="a phase changes weights, start_lr or end_lr"):
        config(phases=[{"share": 0.1}])
    for nothing in (0, "0 tokens", "0.4 tokens"):
        with pytest.raises(ValidationError, match="share must be above 0"):
            config(phases=[{"share": nothing, "end_lr": 0}, {"share": 0.1, "weights": {"web": 1}}])
    with pytest.raises(ValidationError, match="cannot be counted in steps"):
        config(phases=[{"share": "10 steps", "end_lr": 0}])
