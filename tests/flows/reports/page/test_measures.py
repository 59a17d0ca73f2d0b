"""BERT and T5 on page, screen and summary: each figure under its own name, none under that of another measure."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.metrics.formatting import loss_unit
from flows.metrics.heldout import format_heldout_metric, heldout_metrics, summarize_heldout_metrics
from flows.metrics.run_metrics import collect_metrics
from flows.reports.charts.training import training_figure
from flows.reports.page.page import key_figures, write_page
from flows.reports.prefect.artifacts import run_markdown
from flows.reports.tables import bits_table, measures_table
from model.checksummed_json import read_sealed
from model.data.schema import EVENTS, METRICS, STEPS
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.tables.schema import SCORES
from tasks.artifacts.workspace import Unit

BERT = {
    "pseudo_bits_per_byte": 1.5,
    "masked_nats_per_token": 4.0,
    "unigram_masked_nats_per_token": 6.0,
    "masked_accuracy": 0.25,
    "frequent_token_accuracy": 0.05,
    "next_accuracy": 0.6,
    "majority_next_accuracy": 0.52,
    "5gram_bits_per_byte": 2.0,
    "unigram_bits_per_byte": 4.0,
    "xz_bits_per_byte": 3.0,
}


DECLINED = {
    "task": "cloze",
    "metric": "acc",
    "shots": 0,
    "subset": "all",
    "n": 8,
    "value": None,
    "stderr": None,
    "note": "declined: nothing goes on from a text",
}


def score_rows(values: dict[str, float], sources: tuple[str, ...] = ("web", "all")) -> list[dict[str, Any]]:
    place = {"shots": 0, "subset": "all", "n": 3, "stderr": 0.01, "note": "12 hidden tokens in 4 pairs"}
    return [
        {"task": f"heldout/{source}", "metric": metric, "value": value, **place}
        for source in sources
        for metric, value in values.items()
    ]


@pytest.fixture
def bert_run(make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write(unit: Unit) -> None:
        write_table(unit, "scores", pa.Table.from_pylist([*score_rows(BERT), DECLINED], schema=SCORES))
        samples = [
            {"prompt": "The ___ sat", "text": "dog", "temperature": 0.0, "seed": 1, "truth": "cat <i>"},
        ]
        write_table(unit, "samples", pa.Table.from_pylist(samples))
        unit.report.facts = {"headline": {}, "gaps": []}

    monkeypatch.setitem(make.__globals__["WRITERS"], "evaluate", write)
    return make(tmp_path)


def test_measures_are_beside_what_a_guess_reaches():
    lines = heldout_metrics(score_rows(BERT))
    assert [(line["metric"], line["source"]) for line in lines] == [
        (metric, source)
        for metric in ("pseudo_bits_per_byte", "masked_nats_per_token", "masked_accuracy", "next_accuracy")
        for source in ("web", "all")
    ]
    assert [format_heldout_metric(line) for line in lines if line["source"] == "web"] == [
        "1.500",
        "4.000 (by frequency 6.000)",
        "25.0% (the most frequent one 5.0%)",
        "60.0% (the more frequent answer 52.0%)",
    ]
    assert format_heldout_metric({**lines[0], "value": None}) == "-"
    assert summarize_heldout_metrics(lines).startswith(
        "pseudo-bits per byte 1.500, nats per hidden token 4.000 (by frequency 6.000), "
    )
    assert heldout_metrics(score_rows({"bits_per_byte": 1.0})) == []


def test_the_mean_of_several_sources_is_the_last_row_and_named_so():
    values = {"masked_accuracy": 0.25, "pseudo_bits_per_byte": 1.5}
    table = measures_table(heldout_metrics(score_rows(values, ("web", "all", "books"))))
    assert table is not None
    assert table.columns == ("source", "pseudo-bits per byte", "hidden tokens predicted correctly")
    assert [row[0] for row in table.rows] == ["books", "web", "all, mean of the sources"]
    assert measures_table([]) is None


def test_the_page_of_a_bert_shows_its_measures_and_no_bits_of_its_own(bert_run: Any):
    record = read_sealed(bert_run.folder / "run.json", "")
    found = collect_metrics(record)
    assert [(line["source"], line.get("model"), line["5gram"]) for line in found["bits_per_byte"]] == [
        ("web", None, 2.0),
        ("all", None, 2.0),
    ]
    names = [tile.name for tile in key_figures(record, found)]
    assert "hidden tokens predicted correctly, held out" in names, "of one source there is no mean"
    assert not any(name.startswith("bits per byte") for name in names)
    page = write_page(bert_run.folder, bert_run.root).read_text()
    assert 'id="measures"' in page
    assert 'id="figure-scores0"' not in page
    for reported in (
        "zero-shot: declined: nothing goes on from a text",
        "25.0% (the most frequent one 5.0%)",
        "pseudo-bits per byte",
        "original: cat &lt;i&gt;",
        "5-gram",
        "<li>web: 12 hidden tokens in 4 pairs</li>",
    ):
        assert reported in page
    assert "all: 12 hidden tokens" not in page
    assert 'id="figure-bits"' not in page
    table = page.partition('<section id="heldout">')[2].partition("</table>")[0]
    assert re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table) == ["source", "5-gram", "token unigram", "xz"]
    assert ">-<" not in table


def test_the_summary_for_a_dashboard_says_them_in_a_sentence(bert_run: Any):
    record = read_sealed(bert_run.folder / "run.json", "")
    reported = run_markdown(record)
    assert "Held-out text: pseudo-bits per byte 1.500" in reported
    assert bits_table(collect_metrics(record)["bits_per_byte"]) is None


def test_a_loss_says_what_it_is_counted_in():
    assert loss_unit({"objective": "masked_lm"}) == "nats (hidden tokens plus sentence pairs)"
    assert loss_unit({"objective": "span_corruption"}) == "nats a target of the decoder"
    assert loss_unit({"objective": "causal_lm"}) == loss_unit({}) == "nats a token"


def figure_of(**terms: float | None) -> dict[str, Any]:
    row = {"tokens": 4, "loss": 5.0, "grad_norm": 1.0, "lr": 1e-3, "scale": 1.0, "largest_activations": [], **terms}
    read = {"pos_start": 0, "pos_end": 4, "row_pieces": 1, "applied": True}
    metrics = pa.Table.from_pylist([{"step": step, "attempt": 0, **row} for step in range(3)], schema=METRICS)
    steps = pa.Table.from_pylist([{"step": step, "attempt": 0, **read} for step in range(3)], schema=STEPS)
    return training_figure(metrics, steps, EVENTS.empty_table())


def test_the_terms_of_a_loss_are_curves_where_there_are_some():
    plain = figure_of()
    assert [trace["name"] for trace in plain["data"]] == ["loss", "gradient norm", "learning rate"]
    figure = figure_of(masked_loss=4.4, masked_accuracy=0.2, next_loss=0.6, next_accuracy=0.7)
    curves = {trace["name"]: (trace["yaxis"], trace["y"][0]) for trace in figure["data"][3:]}
    assert curves == {
        "loss, masked tokens": ("y", 4.4),
        "loss, sentence pairs": ("y", 0.6),
        "accuracy, masked tokens": ("y4", 0.2),
        "accuracy, sentence pairs": ("y4", 0.7),
    }
    panels = sorted(axis["domain"] for name, axis in figure["layout"].items() if name.startswith("yaxis"))
    assert all(below[1] < above[0] for below, above in pairwise(panels))
