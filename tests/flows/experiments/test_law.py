"""The law of losses by size, on losses that follow one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.experiments.scaling_law import fit

SIZES = [1e4, 3e4, 1e5, 3e5]


def losses(irreducible: float, factor: float, exponent: float) -> list[tuple[float, float]]:
    return [(size, irreducible + factor * size**-exponent) for size in SIZES]


def test_a_law_without_scatter_is_found_again() -> None:
    """E = 1.69, A = 406.4, alpha = 0.34: that of Hoffmann et al. for parameters."""
    found = fit(losses(1.69, 406.4, 0.34))
    assert found.irreducible == pytest.approx(1.69, rel=1e-3)
    assert found.factor == pytest.approx(406.4, rel=1e-2)
    assert found.exponent == pytest.approx(0.34, rel=1e-3)
    reported = found.predict(3e6)
    assert reported.value == pytest.approx(1.69 + 406.4 * 3e6**-0.34, rel=1e-3)
    assert reported.high - reported.low < 0.01


@given(
    irreducible=st.floats(0.5, 3),
    factor=st.floats(5, 500),
    exponent=st.floats(0.15, 0.6),
)
@settings(max_examples=25, deadline=None)
def test_any_law_without_scatter_is_predicted(irreducible: float, factor: float, exponent: float) -> None:
    reported = fit(losses(irreducible, factor, exponent)).predict(1e6)
    assert reported.value == pytest.approx(irreducible + factor * 1e6**-exponent, rel=0.01)


def test_intervals_hold_what_they_say() -> None:
    """Of 100 ladders with a scatter of half a percent, about 95 in 100 intervals hold one more run."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        runs = [(n, loss * np.exp(draw.normal(0, 0.005))) for n, loss in losses(1.5, 60.0, 0.3) for _ in range(3)]
        reported = fit(runs).predict(1e6)
        new = (1.5 + 60.0 * 1e6**-0.3) * np.exp(draw.normal(0, 0.005))
        held += reported.low <= new <= reported.high
    assert 88 <= held <= 100


def test_one_run_that_went_wrong_hardly_counts() -> None:
    runs = [(n, loss) for n, loss in losses(1.5, 60.0, 0.3) for _ in range(3)]
    spoilt = [*runs[:-1], (runs[-1][0], runs[-1][1] * 1.2)]
    assert fit(spoilt).predict(1e6).value == pytest.approx(fit(runs).predict(1e6).value, rel=0.02)


@pytest.mark.parametrize("runs", [losses(1, 1, 1)[:3], [(1e4, 2.0)] * 3 + [(2e4, 1.9)] * 3])
def test_too_little_to_judge(runs: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="cannot determine three unknowns"):
        fit(runs)
