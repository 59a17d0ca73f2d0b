"""Rows read ahead are those of their step, in whatever order steps come."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model.config.options import LengthWarmupConfig
from model.config.train import TrainerRun
from model.data.dataset import Rows, SequenceReader
from model.errors import InputError
from model.objectives import make_objective
from model.optim.schedules import TrainingSchedule
from model.train.loop import StepReader, StepRows


def reader_of(run: TrainerRun, *, ahead: bool, vocab_size: int | None = None) -> StepReader:
    data = SequenceReader(run.sequences, run.order, vocab_size or run.model.vocab_size)
    schedule = TrainingSchedule(run.train, data.positions, run.model.context)
    return StepReader(make_objective(run), data, schedule, run.model.context, ahead=ahead)


def assert_equal(one: StepRows, other: StepRows) -> None:
    assert one.text_tokens == other.text_tokens
    assert torch.equal(one.batch.tokens_BL, other.batch.tokens_BL)
    assert torch.equal(one.batch.loss_start_B, other.batch.loss_start_B)


@pytest.mark.parametrize("steps", [range(12), [0, 1, 2, 1, 2, 3, 11, 0, 11]])
def test_each_step_gets_its_rows_after_a_rollback_too(make_run: Callable[..., TrainerRun], steps: Any) -> None:
    run = make_run()
    with reader_of(run, ahead=True) as ahead, reader_of(run, ahead=False) as plain:
        for step in steps:
            assert_equal(ahead.read(step), plain.read(step))


def test_a_batch_of_two_rows_of_ten_tokens_counts_what_follows_another_token(make_run: Callable[..., TrainerRun]):
    run = make_run()
    with reader_of(run, ahead=False) as reader:
        context = run.model.context
        assert reader.read(0).batch.tokens_BL.shape == (2, context + 1)
        # Row 0 is full; row 7 too.
        assert reader.read(0).text_tokens == 2 * context


def test_the_rows_of_a_step_are_read_once(make_run: Callable[..., TrainerRun], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    read = SequenceReader.rows

    def rows(data: SequenceReader, begin: int, end: int) -> Rows:
        asked.append((begin, end))
        return read(data, begin, end)

    monkeypatch.setattr(SequenceReader, "rows", rows)
    with reader_of(make_run(), ahead=False) as reader:
        reader.read(0)
        reader.read(1)
    assert asked == [(0, 2), (2, 4)]


def test_what_cannot_be_read_is_an_error_of_its_own_step(make_run: Callable[..., TrainerRun]) -> None:
    run = make_run()
    data = SequenceReader(run.sequences, run.order)
    largest = [int(data.rows(2 * step, 2 * step + 2).tokens_BL.max()) for step in range(12)]
    # A vocabulary without the largest token: some steps can be read, and others not.
    vocabulary = max(largest)
    fits = [token < vocabulary for token in largest]
    before = next(step for step in range(11) if fits[step] and not fits[step + 1])
    with reader_of(run, ahead=True, vocab_size=vocabulary) as reader:
        reader.read(before)
        with pytest.raises(InputError, match="another tokenizer"):
            reader.read(before + 1)


def test_short_rows_of_the_length_warm_up(make_run: Callable[..., TrainerRun]) -> None:
    run = make_run()
    warmup = LengthWarmupConfig(share=0.5, start_length=run.model.context // 4)
    run = replace_train(run, length_warmup=warmup)
    with reader_of(run, ahead=True) as reader:
        rows = reader.read(0)
    assert rows.batch.tokens_BL.shape == (8, run.model.context // 4 + 1)


def replace_train(run: TrainerRun, **settings: Any) -> TrainerRun:
    return run.model_copy(update={"train": run.train.model_copy(update=settings)})
