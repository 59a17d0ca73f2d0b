"""Time that was measured, and energy that is an estimate and says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.metrics.accounting import cost, format_energy
from flows.metrics.stage_lines import open_artifacts
from flows.reports.page.page import write_page
from model.checksummed_json import write_sealed


class Built:
    """An artifact of one stage that took an hour."""

    def __init__(self, stage: str, params: dict[str, Any] | None = None, gpu: str = "") -> None:
        self.stage = stage
        parts = {"params": params or {}, "libs": {"gpu": gpu}}
        self.manifest = {"timings": {"seconds": 3600.0}, "identity_parts": parts}


def test_an_hour_of_two_cores() -> None:
    machine = {"cores": 2, "memory_bytes": 10_000_000_000}
    found = cost({"machine": machine}, {"clean": Built("clean")})  # pyright: ignore[reportArgumentType]
    # (2 x 12 W + 10 GB x 0.3725 W) x 1.67
    assert found["watt_hours"] == pytest.approx(1.67 * 27.725)
    assert found["assumption"].startswith("2 cores of 12 W, 10 GB of memory of 0.3725 W a GB, all of them busy")


def test_gpus_count_while_training_alone() -> None:
    machine = {"cores": 0, "memory_bytes": 0}
    training = Built("train", {"device": "cuda", "ranks": 2}, "NVIDIA H200")
    found = cost({"machine": machine}, {"clean": Built("clean"), "train": training})  # pyright: ignore[reportArgumentType]
    assert [line["watt_hours"] for line in found["stages"]] == [0, pytest.approx(1.67 * 1400)]
    assert "2 GPUs of 700 W while training" in found["assumption"]


def test_a_run_that_did_not_note_its_machine_has_time_alone(made_run: Any) -> None:
    artifacts = open_artifacts(made_run.record)
    found = cost({}, artifacts)
    assert found["watt_hours"] is None
    assert len(found["stages"]) == 8
    assert found["seconds"] == pytest.approx(sum(line["seconds"] for line in found["stages"]))
    assert cost({}, {}) is None


def test_money_is_the_price_of_all_hours(make: Callable[..., Any], tmp_path: Path) -> None:
    found = cost({"hour_price": 2.5}, {"clean": Built("clean"), "train": Built("train")})  # pyright: ignore[reportArgumentType]
    assert found["money"] == 5.0
    assert cost({}, {"clean": Built("clean")})["money"] is None  # pyright: ignore[reportArgumentType]
    made = make(tmp_path)
    assert "an hour" not in write_page(made.folder, made.root).read_text()
    write_sealed(made.folder / "run.json", {**made.record, "hour_price": 7200.0})
    money = 2 * cost(made.record, open_artifacts(made.record))["seconds"]
    assert f"{money:.2f} at 7200 an hour" in write_page(made.folder, made.root).read_text()


@pytest.mark.parametrize(
    ("hours", "reported"),
    [(0.0312, "0.031 Wh"), (8.1, "8.1 Wh"), (412, "412 Wh"), (999.7, "1.0 kWh"), (1234, "1.2 kWh"), (3.4e6, "3.4 MWh")],
)
def test_energy_in_words(hours: float, reported: str) -> None:
    assert format_energy(hours) == reported
