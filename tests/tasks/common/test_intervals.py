"""Wilson's interval against its textbook values."""

import pytest

from tasks.common.numeric import wilson_interval


def test_known_values() -> None:
    assert wilson_interval(0, 0) == (None, None)
    assert wilson_interval(10, 10) == (pytest.approx(10 / (10 + 1.96**2), abs=1e-4), 1.0)
    assert wilson_interval(0, 10) == (0.0, pytest.approx(1.96**2 / (10 + 1.96**2), abs=1e-4))
    assert wilson_interval(50, 100) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
