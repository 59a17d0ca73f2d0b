"""The last screen of a run, and numbers in words."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.metrics.formatting import (
    describe_evidence,
    format_bytes,
    format_count,
    format_duration,
    format_shots,
    format_time,
)
from flows.metrics.run_metrics import collect_metrics
from flows.reports.summary import print_summary
from model.checksummed_json import write_sealed


def screen(made: Any, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_summary(made.record, made.root, console)
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


def test_one_screen_says_the_run(made_run: Any):
    lines = screen(made_run)
    assert len(lines) <= 40
    text = " ".join(" ".join(lines).split())
    for reported in (
        "web 20 20 14 10 8 8 1 40%",
        "books 50.0% 50.0% 480 0.67 2.000 2.500 4.000 3.000",
        "web 50.0% 50.0% 160 2.00",
        "all 2.250 2.750 4.250 3.250",
        "all: unweighted mean of the sources; bits per byte on held-out text, lower is better",
        "cloze, zero-shot acc 50.0 ± 19.6 (2) 50.0 ± 19.6 (1) 50.0 ± 19.6 (1) -",
        "recall 0.980 (0.900 to 0.990) at similarity 0.8 and above; found of injected, by similarity: 0.5-0.6 3/25",
        "vocabulary 512 tokens, extended from 480; tokens per character: en 0.250 to 0.250, zh 1.500 to 0.600; 0 lines",
        "leaked cloze 1 of 2 items; injected items found 48/50, recall 0.960 (0.865 to 0.989)",
        "warning training read another mixture than the recipe asks for: web 50.0% and not 60.0%",
        "6.000 -> 3.300 nats a token in 10 steps",
        "32 documents read = 1 rejected + 1 not selected",
    ):
        assert reported in text
    assert lines[-1].endswith(str(made_run.folder / "page.html")), "the path is not broken at the width"


def test_a_failed_run_says_what_failed_and_leaves_out_what_it_did_not_reach(make: Callable[..., Any], tmp_path: Path):
    text = "\n".join(screen(make(tmp_path, until="clean", failed="dedup")))
    assert "dedup failed  InputError: <b>no such file</b>" in text
    assert "mixture" not in text
    assert "accuracy" not in text
    assert "scores" not in text, "nothing is said of an evaluation that did not begin"


def test_an_evaluation_without_numbers_says_why(made_run: Any, monkeypatch: pytest.MonkeyPatch):
    """Of texts that it did not write it has lines without a value."""
    written = {"task": "written text", "metric": "shared_tokens", "shots": 0, "subset": "all", "note": ""}
    unwritten = {**written, "n": 0, "value": None, "stderr": None}
    empty = {"bits_per_byte": [], "measures": [], "gaps": [], "scores": [unwritten]}
    found = {**collect_metrics(made_run.record), **empty}
    monkeypatch.setattr("flows.reports.summary.metrics_of", lambda record: found)
    text = " ".join(" ".join(screen(made_run)).split())
    assert "scores none: too few documents to hold any out (at most a fifth of a source), and no benchmark" in text
    monkeypatch.setattr("flows.reports.summary.read_recipe", lambda folder: {"decontaminate": {"heldout_share": 0.0}})
    text = " ".join(" ".join(screen(made_run)).split())
    assert "scores none: decontaminate.heldout_share is 0, so that nothing was held out, and no benchmark" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (18120, "5 h 2 min")],
)
def test_durations(seconds: float, words: str):
    assert format_duration(seconds) == words


def test_counts_sizes_times_and_shots():
    assert [format_count(n) for n in (812, 9999, 12_300, 1_200_000, 4e9)] == ["812", "9,999", "12.3K", "1.2M", "4.0B"]
    assert [format_count(n) for n in (999_949, 999_950, 999_960_000)] == ["999.9K", "1.0M", "1.0B"]
    assert [format_bytes(n) for n in (812, 1_200_000, 999_949, 999_960)] == ["812 B", "1.2 MB", "999.9 kB", "1.0 MB"]
    assert (format_time(0.0), format_time(86_400.0)) == ("-", "1970-01-02 00:00:00 UTC")
    assert [format_shots(n) for n in (0, 1, 5)] == ["zero-shot", "one-shot", "5-shot"]


def test_artifacts_that_are_gone_are_named(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path)
    artifact = Path(made.record["stages"][-1]["path"])
    aside = artifact.rename(f"{artifact}.damaged-0f")
    text = "".join(" ".join(screen(made, width=1000)).split())
    reported = f"missing evaluate: its artifact {artifact} no longer exists; set aside as {aside.name}"
    assert reported.replace(" ", "") in text


def test_a_running_run_says_what_is_still_to_come(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path, until="chunk")
    record = {**made.record, "state": "running", "asked": {"only": None}}
    write_sealed(made.folder / "run.json", record)
    assert "train under way, evaluate to come" in " ".join(" ".join(screen(made)).split())
    write_sealed(made.folder / "run.json", {**record, "asked": {"only": "train"}})
    assert "train under way, evaluate skipped" in " ".join(" ".join(screen(made)).split())


@pytest.mark.parametrize(
    ("evidence", "reported"),
    [
        (None, ""),
        ("en", "en"),
        ("2 of 3", "2 of 3"),
        ('{"survivor":"3f0c81d2a9b4c5d6","jaccard":0.9125}', "in favour of 3f0c81d2a9b4 · similarity 0.912"),
        ('{"survivor":"3f0c81d2a9b4c5d6","jaccard":1.0,"earlier":"77aa"}',
         "in favour of 3f0c81d2a9b4 · which the earlier dedup artifact 77aa holds · similarity 1.000"),
        ('{"benchmark":"cloze","item_id":"q-1","start":1200,"end":1500,"pieces":11}',
         "item q-1 of cloze · bytes 1,200 to 1,500 · pieces 11"),
        ('{"cut off at 200 by', '{"cut off at 200 by'),
    ],
)  # fmt: skip
def test_evidence_in_words(evidence: str | None, reported: str):
    assert describe_evidence(evidence) == reported
