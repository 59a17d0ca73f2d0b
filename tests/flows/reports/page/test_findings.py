"""Numbers of a run, from artifacts alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.metrics.accounting import describe_conservation
from flows.metrics.run_metrics import collect_metrics, skipped_steps
from flows.metrics.stage_lines import open_artifacts
from flows.reports.page.page import write_page
from tasks.artifacts.manifest import read_manifest, write_manifest


def test_the_funnel_counts_documents_by_source_after_each_stage(made_run: Any):
    assert collect_metrics(made_run.record)["funnel"] == [
        {"source": "web", "read": 20, "sample": 20, "clean": 14, "dedup": 10, "decontaminate": 8, "chunk": 8}
        | {"held_out": 1},
        {"source": "books", "read": 12, "sample": 10, "clean": 10, "dedup": 10, "decontaminate": 9, "chunk": 9}
        | {"held_out": 1},
    ]


def test_the_law_of_conservation_is_one_line(made_run: Any):
    found = collect_metrics(made_run.record)["conservation"]
    assert found["balanced"]
    assert describe_conservation(found) == (
        "32 documents read = 1 rejected + 1 not selected + 6 dropped in clean + 4 dropped in dedup"
        " + 1 dropped in decontaminate + 2 held out + 17 packed; 40 rows given = 40 trained"
    )
    assert found["rows"] == {"packed": 40, "in_order": 30, "never_read": 10}


def test_a_document_without_a_outcome_is_said_loudly(made_run: Any):
    found = collect_metrics(made_run.record)["conservation"]
    assert "DOES NOT BALANCE" in describe_conservation({**found, "balanced": False})


def test_a_vanished_document_breaks_the_balance(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path, until="dedup")
    (entry,) = [entry for entry in made.record["stages"] if entry["stage"] == "dedup"]
    path = Path(entry["path"]) / "manifest.json"
    manifest = read_manifest(path.parent)
    manifest["report"]["sources"]["web"]["documents_out"] -= 1
    write_manifest(path.parent, manifest)
    assert not collect_metrics(made.record)["conservation"]["balanced"]


def test_rules_are_listed_by_stage_with_the_most_frequent_first(made_run: Any):
    removed = [(line["stage"], line["rule"], line["documents"]) for line in collect_metrics(made_run.record)["removed"]]
    assert removed == [
        ("clean", "gopher_words_min", 4),
        ("clean", "gopher_stop_words", 2),
        ("dedup", "near_duplicate", 3),
        ("dedup", "exact_duplicate", 1),
        ("decontaminate", "too_many_pieces", 1),
    ]


def test_bits_per_byte_are_beside_their_baselines_with_all_last(made_run: Any):
    lines = collect_metrics(made_run.record)["bits_per_byte"]
    assert [tuple(line[who] for who in ("source", "model", "5gram", "unigram", "xz")) for line in lines] == [
        ("books", 2.0, 2.5, 4.0, 3.0),
        ("web", 2.5, 3.0, 4.5, 3.5),
        ("all", 2.25, 2.75, 4.25, 3.25),
    ]


def test_a_run_that_ended_early_has_fewer_findings_and_its_error(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path, until="dedup", failed="decontaminate")
    found = collect_metrics(made.record)
    assert [line["outcome"] for line in found["stages"]] == ["built"] * 3 + ["failed"] + ["skipped"] * 4
    assert found["conservation"]["documents"]["kept"] == 20
    assert found["conservation"]["balanced"]
    assert found["mixture"] == found["bits_per_byte"] == found["scores"] == []


def test_an_artifact_that_was_removed_is_reported(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path, until="clean")
    shutil.rmtree(made.record["stages"][0]["path"])
    stages = collect_metrics(made.record)["stages"]
    assert "no longer exists" in stages[0]["error"]
    assert stages[1]["result"] == {"amount": 24, "unit": "documents"}


def test_what_the_guard_left_out_names_its_documents(made_run: Any):
    """Positions 4 to 7 are rows of the fifth to eighth book; 20 to 23, those of step 5, are of the first pages."""
    back, by_hand, single = skipped_steps(open_artifacts(made_run.record))
    assert (back["kind"], back["to_step"], back["documents"]) == ("rollback", 1, 4)
    assert [one["path"] for one in back["first_documents"]] == [f"books/{number}.txt" for number in (4, 5, 6, 7)]
    assert by_hand | {"kind": "by hand", "documents": 0, "settings": {"train.schedule.peak_lr": 1e-4}} == by_hand
    assert (single["kind"], single["step"]) == ("skipped_step", 5)
    assert [one["path"] for one in single["first_documents"]] == [f"web/{number}.txt" for number in range(4)]
    page = write_page(made_run.folder, made_run.root).read_text()
    assert "back to step 1: it rose" in page
    assert "<code>train.schedule.peak_lr = 0.0001</code>" in page


def test_findings_are_json(made_run: Any):
    found = collect_metrics(made_run.record)
    assert json.loads(json.dumps(found)) == found
