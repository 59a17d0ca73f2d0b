"""What the gate says of rises that are no numbers."""

from types import SimpleNamespace
from typing import Any

import pytest

from flows.runs.guards import check_gate, describe_gate
from model.errors import GuardError
from tasks.artifacts.report import StageReport
from tasks.evaluate.config import GateConfig


def test_a_network_that_broke_down_does_not_pass() -> None:
    """Scores that are not finite are null."""
    gate: Any = {"rises": {"en": None, "ru": -0.2}}
    said = "en not finite, ru -20.0%; the gate allows +2.0%: en did not pass"
    assert describe_gate({"max_rise": 0.02, **gate}).endswith(said)
    evaluated: Any = SimpleNamespace(report=StageReport(), path="evaluate/1")
    evaluated.report.facts = {"gate": gate, "headline": {}, "gaps": []}
    with pytest.raises(GuardError, match=r"en not finite.*en did not pass\. The model forgot too much"):
        check_gate(evaluated, GateConfig(sources=("en", "ru"), max_rise=0.02))
