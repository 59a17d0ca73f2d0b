"""The artifacts that Prefect's UI shows say what the run page says, in tables, and lead to the page."""

import re
from typing import Any

from flows.metrics.stage_lines import open_artifacts
from flows.reports.prefect.artifacts import run_markdown, stage_markdown


def spaced(markdown: str) -> str:
    """Short cells keep their words on one line."""
    return markdown.replace("\N{NO-BREAK SPACE}", " ")


def test_the_summary_says_mixture_leaks_tokens_gaps_and_cost(made_run: Any) -> None:
    reported = spaced(run_markdown({**made_run.record, "page": "/runs/one/page.html"}))
    assert "| web | 20 | 20 | 14 | 10 | 8 | 8 | 1 | 40% |" in reported
    assert "| web | 50.0% | 50.0% | 160 | 2.00 | " in reported
    assert "| cloze | 2 | 1 | 0 | 1 | 0 |" in reported
    assert "| en | 1.778 |" in reported
    assert "| cloze, zero-shot | acc | 50.0 ± 19.6 (2) | 50.0 ± 19.6 (1) | 50.0 ± 19.6 (1) | - |" in reported
    assert "Contamination gap (leaked minus clean items), significant: cloze zero-shot +100.0 points." in reported
    assert re.search(r"Building all stages took [\d.]+ s and an estimated \S+ Wh, from 2 cores of 12 W", reported)
    assert "`bessemer model card 20270115T080000Z-abcdef --root" in reported
    assert "Run page, on the machine of the run: `/runs/one/page.html`" in reported
    assert "data:image" not in reported


def test_a_stage_says_what_it_was_made_from(made_run: Any) -> None:
    artifacts = open_artifacts(made_run.record)
    sample, clean = artifacts["sample"], artifacts["clean"]
    reported = stage_markdown(clean)
    assert f"| sample | sample | {sample.identity[:12]} | {sample.content[:12]} |" in reported
    assert "| clean: gopher_words_min | 4 |" in spaced(reported)
    assert "| input | stage |" not in stage_markdown(sample)


def test_every_stage_has_its_own_numbers(made_run: Any) -> None:
    shown = {stage: spaced(stage_markdown(artifact)) for stage, artifact in open_artifacts(made_run.record).items()}
    for stage, row in (
        ("sample", "| web | 60% | 400 | 4 |"),
        ("dedup", "| 2 | 3 |"),
        ("dedup", "| 0.9 to 1 | 50 | 49 | 98.0% |"),
        ("decontaminate", "| cloze | 2 | 1 | 0 | 1 | 0 |"),
        ("chunk", "| web | "),
        ("evaluate", "| all (mean) | 2.250 | 2.750 | 4.250 | 3.250 |"),
    ):
        assert row in shown[stage], (stage, shown[stage])
