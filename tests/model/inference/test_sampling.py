"""Sampling: greedy, top k, nucleus, and allowed tokens."""

import pytest
import torch

from model.errors import InputError
from model.inference.generate import Sampling, pick

# Probabilities .5, .25, .15, .1 of the tokens 2, 0, 3, 1.
LOGITS = torch.tensor([0.25, 0.1, 0.5, 0.15]).log()


def drawn(sampling: Sampling, allowed: torch.Tensor | None = None, count: int = 2000) -> list[float]:
    generator = sampling.generator()
    tokens = torch.tensor([pick(LOGITS, sampling, generator, allowed) for _ in range(count)])
    return (torch.bincount(tokens, minlength=4) / count).tolist()


def test_temperature_0_takes_the_likeliest() -> None:
    assert drawn(Sampling(temperature=0.0), count=3) == [0, 0, 1, 0]


def test_top_k_keeps_the_k_likeliest_in_proportion() -> None:
    assert drawn(Sampling(top_k=1), count=50) == [0, 0, 1, 0]
    assert drawn(Sampling(top_k=2)) == pytest.approx([1 / 3, 0, 2 / 3, 0], abs=0.04)


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    assert drawn(Sampling(top_p=0.7)) == pytest.approx([1 / 3, 0, 2 / 3, 0], abs=0.04)
    assert drawn(Sampling(top_p=0.76)) == pytest.approx([0.25 / 0.9, 0, 0.5 / 0.9, 0.15 / 0.9], abs=0.04)


def test_the_nucleus_is_of_what_top_k_left() -> None:
    # Of two thirds and one third, .6 is reached by the first alone.
    assert drawn(Sampling(top_k=2, top_p=0.6), count=50) == [0, 0, 1, 0]


def test_temperature_sharpens() -> None:
    # The squares .25, .0625, .0225, .01 add up to .345.
    expected = [square / 0.345 for square in (0.0625, 0.01, 0.25, 0.0225)]
    assert drawn(Sampling(temperature=0.5)) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_allowed_is_never_drawn(temperature: float) -> None:
    shares = drawn(Sampling(temperature), torch.tensor([False, True, False, True]), count=300)
    assert shares[0] == shares[2] == 0
    assert shares[3] > 0.5


def test_samples_of_one_seed_differ_and_do_not_depend_on_their_number() -> None:
    sampling = Sampling(seed=7)
    draws = [[pick(LOGITS, sampling, generator) for _ in range(20)] for generator in map(sampling.generator, range(4))]
    assert len({tuple(draw) for draw in draws}) == 4
    again = sampling.generator(2)
    assert [pick(LOGITS, sampling, again) for _ in range(20)] == draws[2]


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Sampling(**wrong)  # pyright: ignore[reportArgumentType]
