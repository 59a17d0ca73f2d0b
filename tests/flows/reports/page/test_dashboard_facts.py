"""The artifacts that Prefect's UI shows say what the run page says."""

import base64
import re
from typing import Any

from flows.metrics.run_metrics import open_artifacts
from flows.reports.prefect.artifacts import run_markdown, stage_markdown


def pictures(markdown: str) -> dict[str, str]:
    """What each picture shows -> its SVG."""
    found = re.findall(r"!\[([^]]*)\]\(data:image/svg\+xml;base64,([^)]*)\)", markdown)
    return {words: base64.b64decode(svg).decode() for words, svg in found}


def test_the_summary_says_mixture_leaks_tokens_gaps_and_cost(made_run: Any) -> None:
    reported = run_markdown(made_run.record)
    shown = pictures(reported)
    assert "50.0%, 2.00 epochs" in shown["shares of the training tokens by source"]
    assert "1 of 2 leaked" in shown["benchmark items found in the text"]
    assert "1.778" in shown["tokens per character by language"]
    assert "leaked items" in shown["scores with their 95% intervals"]
    assert "Contamination gap (leaked minus clean items), significant: cloze zero-shot +100.0 points." in reported
    assert re.search(r"Building all stages took [\d.]+ s and an estimated \S+ Wh, from 2 cores of 12 W", reported)
    assert "`bessemer model card 20270115T080000Z-abcdef --root" in reported


def test_a_stage_says_what_it_was_made_from(made_run: Any) -> None:
    artifacts = open_artifacts(made_run.record)
    sample, clean = artifacts["sample"], artifacts["clean"]
    reported = stage_markdown(clean)
    assert f"| sample | sample | {sample.identity[:12]} | {sample.content[:12]} |" in reported
    assert "made from" not in stage_markdown(sample)


def test_dedup_says_how_much_of_what_was_planted_it_found(made_run: Any) -> None:
    shown = pictures(stage_markdown(open_artifacts(made_run.record)["dedup"]))
    svg = shown["dedup: recall of injected copies by similarity"]
    assert "49 of 50 injected copies found" in svg
    assert "2 clusters, the largest of 3" in svg
