"""Sequences of another tokenizer, objective or size are refused, and so is a checkpoint of another tokenizer."""

import numpy as np
import pytest

from model.config.train import TrainerRun
from model.data.row_format import RowFormat
from model.errors import InputError
from model.train.trainer import train

FORMAT = RowFormat(objective="causal_lm", tokenizer_digest="tokenizer", vocab_size=48, eos=2, pad=3)


@pytest.fixture
def over(make_run, write_sequences):
    """The tiny run over the same rows, which now say what they are."""

    def run(row_format: RowFormat, **fields: object) -> TrainerRun:
        made = make_run(positions=4)
        rows = np.random.default_rng(5).integers(4, 48, size=(10, 17))
        file = write_sequences(made.out.with_suffix(".arrow"), rows, row_format=row_format)
        return made.model_copy(update={"sequences": (file,), **fields})

    return run


def test_rows_that_say_what_the_run_expects_are_trained_on(over) -> None:
    assert (train(over(FORMAT, eos=2)) / "model.json").exists()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"tokenizer_digest": "swapped"},
            r"made with the tokenizer swapped, and this run's tokenizer is\s+tokenizer;.*Run again from chunk",
        ),
        (
            {"objective": "span_corruption"},
            r'built for span_corruption.*Set chunk\.objective = "causal_lm"',
        ),
        (
            {"vocab_size": 47},
            r"vocabulary of 47 tokens.*network has 48\s+embedding rows.*Leave train\.model\.vocab_size out",
        ),
        ({"pad": 1}, r"padded with id 1 and end documents with id 2; this run expects\s+3 and 2"),
        ({"eos": 5}, r"padded with id 3 and end documents with id 5; this run expects\s+3 and 2"),
    ],
)
def test_rows_that_contradict_the_run_are_refused_with_the_cure(over, said: dict, words: str) -> None:
    run = over(FORMAT.model_copy(update=said), eos=2)
    with pytest.raises(InputError, match=rf"(?s){words}"):
        train(run)
    assert not (run.out / "checkpoints").exists()


def test_a_checkpoint_is_not_resumed_under_another_tokenizer(make_run) -> None:
    run = make_run(positions=8)
    train(run)
    (run.out / "result" / "model.json").unlink()
    with pytest.raises(InputError, match="its `tokenizer` is tokenizer, but this run asks for swapped"):
        train(run.model_copy(update={"tokenizer_digest": "swapped"}))
