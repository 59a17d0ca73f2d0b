"""What a stage found is read back as it was written, under the keys of its manifest."""

import json

import pytest

from model.errors import InputError
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import CleanResult, TrainResult, VocabResult

TRAINING = {
    "steps": 10,
    "skipped_steps": 1,
    "rollbacks": 0,
    "tokens": 640,
    "first_loss": 6.0,
    "last_loss": None,
    "seconds": 2.5,
    "tokens_s": 256.0,
}


def report_of(facts: dict[str, object]) -> StageReport:
    report = StageReport()
    report.facts = facts
    return report


def test_facts_are_read_back_and_what_is_none_is_no_key() -> None:
    facts = {"training": TRAINING, "exact": True}
    found = TrainResult.of(report_of(facts))
    assert (found.training["tokens_s"], found.exact, found.decisions) == (256.0, True, None)
    assert found.facts() == facts
    assert TrainResult.of(StageReport.from_json(json.loads(json.dumps(report_of(facts).to_json())))) == found


def test_a_stage_that_did_not_run_has_no_result() -> None:
    reports = {"train": report_of({"training": TRAINING, "exact": False})}
    assert VocabResult.among(reports) is None
    assert (found := TrainResult.among(reports)) is not None
    assert not found.exact


def test_parts_of_clean_add_up() -> None:
    parts = [CleanResult(languages={"en": 2}, kind_bytes_read={"prose": 10}), CleanResult(languages={"de": 1, "en": 1})]
    whole = CleanResult.of(StageReport.merged(report_of(part.facts()) for part in parts))
    assert whole == CleanResult(languages={"de": 1, "en": 3}, kind_bytes_read={"prose": 10})


def test_a_report_of_another_stage_is_no_result() -> None:
    with pytest.raises(InputError, match=r"manifest of train .*another version.*vocabulary"):
        TrainResult.of(report_of({"vocabulary": {}}))
