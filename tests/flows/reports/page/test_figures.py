"""The pictures of the data: what each shows can be counted from the made run."""

import json
from typing import Any

import pyarrow as pa
import pytest

from flows.metrics.formatting import plot_labels, plot_text
from flows.metrics.heldout import tokens_per_character
from flows.metrics.run_metrics import collect_metrics
from flows.metrics.stage_lines import open_artifacts
from flows.reports.charts.data import (
    SOURCE_PREFIX,
    funnel_figure,
    leak_figure,
    lineage_figure,
    mixture_figure,
    token_figure,
)
from flows.reports.charts.scores import score_tables, scores_figure
from flows.reports.charts.training import speed_figure, training_figure
from flows.reports.page.page import page_view
from flows.reports.tables import scores_table
from model.data.schema import VALIDATION
from tasks.artifacts.report import SourceCounts, StageReport


def reports(made: Any) -> dict[str, StageReport]:
    return {stage: artifact.report for stage, artifact in open_artifacts(made.record).items()}


def links(figure: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    """(begin, end, source) -> documents; names without their counts."""
    (trace,) = figure["data"]
    names = [label.rpartition(" ")[0] for label in trace["node"]["label"]]
    link = trace["link"]
    sources = [reported.partition(":")[0] for reported in link["customdata"]]
    return {
        (names[begin], names[end], source): value
        for begin, end, source, value in zip(link["source"], link["target"], sources, link["value"], strict=True)
    }


def test_the_funnel_leads_each_document_to_one_outcome(made_run: Any) -> None:
    figure = funnel_figure(reports(made_run), {"books": 0, "web": 1})
    assert figure is not None
    assert links(figure) == {
        ("books", "unreadable", "books"): 1,
        ("books", "sampled", "books"): 10,
        ("web", "sampled", "web"): 20,
        ("sampled", "cleaned", "books"): 10,
        ("sampled", "filtered", "web"): 6,
        ("sampled", "cleaned", "web"): 14,
        ("cleaned", "unique", "books"): 10,
        ("cleaned", "duplicates", "web"): 4,
        ("cleaned", "unique", "web"): 10,
        ("unique", "held out", "books"): 1,
        ("unique", "packed", "books"): 9,
        ("unique", "leaks", "web"): 1,
        ("unique", "held out", "web"): 1,
        ("unique", "packed", "web"): 8,
    }
    narrow = links(figure["narrow"])
    assert sum(value for (begin, _, _), value in narrow.items() if begin == "books") == 11, (
        "the twelfth was not selected"
    )
    assert narrow["web", "packed", "web"] == 8
    assert {begin for begin, _, _ in narrow} == {"books", "web"}


def test_a_source_that_is_called_as_a_outcome_is_another_node() -> None:
    report = StageReport()
    report.sources = {"duplicates": SourceCounts(documents_in=4, documents_out=2, rejected=1, not_selected=1)}
    figure = funnel_figure({"sample": report}, {"duplicates": 0})
    assert figure is not None
    assert figure["data"][0]["node"]["label"] == ["duplicates 3", "unreadable 1", "sampled 2"]
    assert SOURCE_PREFIX.strip() not in json.dumps(figure["data"][0]["node"])


def test_an_empty_file_has_an_outcome_of_its_own(made_run: Any) -> None:
    made = reports(made_run)
    made["sample"].sources["books"].rejected = 3
    figure = funnel_figure(made, {"books": 0, "web": 1})
    assert figure is not None
    found = links(figure)
    assert (found["books", "unreadable", "books"], found["books", "empty", "books"]) == (1, 2)


def test_the_mixture_says_how_often_text_was_read(made_run: Any) -> None:
    figure = mixture_figure(collect_metrics(made_run.record)["mixture"])
    assert figure is not None
    assert [trace["name"].partition(",")[0] for trace in figure["data"]] == ["read", "weight", "planned"]
    assert figure["data"][0]["text"] == ["50.0%, 2.00 ×", "50.0%, 0.67 ×"]


def test_leaks_that_remain_are_distinguished() -> None:
    line = {"benchmark": "<b>x</b>", "items": 10, "leaked": 4, "remains": 1, "clean": 5, "unmatchable": 1}
    figure = leak_figure([line])
    assert figure is not None
    assert {trace["name"]: trace["customdata"] for trace in figure["data"]} == {
        "leaked, still in the text": [1],
        "leaked and removed": [3],
        "too short to match": [1],
        "clean": [5],
    }
    assert sum(trace["x"][0] for trace in figure["data"]) == pytest.approx(1)
    assert figure["data"][0]["y"] == ["&lt;b&gt;x&lt;/b&gt;"]


def test_tokens_a_character_are_those_of_the_packed_text(made_run: Any) -> None:
    # Each span has 16 tokens for 9 bytes, and a byte of these texts is a character.
    assert tokens_per_character(open_artifacts(made_run.record)) == {"en": pytest.approx(16 / 9)}
    figure = token_figure({"en": [0.25, 0.25], "zh": [1.5, 0.6]})
    assert figure is not None
    assert {trace["name"]: trace["x"] for trace in figure["data"]} == {"base": [1.5, 0.25], "now": [0.6, 0.25]}
    assert token_figure({}) is None


def test_speed_is_over_the_tokens_that_were_read(made_run: Any) -> None:
    train = open_artifacts(made_run.record)["train"]
    figure = speed_figure(train.table("perf"), train.table("metrics"))
    assert figure is not None
    speed, share = figure["data"]
    assert speed["x"][:2] == [64, 128]
    assert set(speed["y"]) == {1000.0}
    assert share["y"][:2] == [None, 0.5]
    assert speed_figure(train.table("perf").slice(0, 0), train.table("metrics")) is None


def test_every_parent_of_an_artifact_is_an_arc(made_run: Any) -> None:
    figure = lineage_figure(open_artifacts(made_run.record), {})
    assert figure is not None
    *arcs, dots = figure["data"]
    assert len(dots["text"]) == 8
    assert [arc["name"].partition(":")[0] for arc in arcs][:2] == ["sample to clean", "clean to dedup"]
    assert len(arcs) == 7, "in the made run each stage has the one before it as parent"


def test_the_loss_has_an_axis_of_bits_per_byte_that_agrees_with_nats(made_run: Any) -> None:
    train = open_artifacts(made_run.record)["train"]
    tables = (train.table("metrics"), train.table("steps"), train.table("events"))
    # A token of 2 bytes: ln 2 nats a token are half a bit per byte.
    layout = training_figure(*tables, 2.0, 2.25)["layout"]
    nats, bits = layout["yaxis"]["range"], layout["yaxis5"]["range"]
    assert [edge / 0.6931471805599453 / 2 for edge in nats] == pytest.approx(bits)
    assert bits[0] < 2.25 < bits[1]
    assert "yaxis5" not in training_figure(*tables)["layout"]
    seen = {"step": 3, "attempt": 0, "rows": 1, "predictions": 16, "nats_per_token": 3.0}
    rows = [{**seen, "source": "books", "bits_per_byte": 2.0}, {**seen, "source": "web", "bits_per_byte": 3.0}]
    rows += [
        {**seen, "source": "web", "step": 99, "bits_per_byte": 1.0},
        {**seen, "source": "x", "bits_per_byte": None},
    ]
    figure = training_figure(*tables, 2.0, None, pa.Table.from_pylist(rows, schema=VALIDATION))
    (curve,) = [trace for trace in figure["data"] if trace.get("yaxis") == "y5"]
    assert (curve["x"], curve["y"]) == ([4 * 64], [2.5]), "the mean of two sources; step 99 was never made"
    figure = training_figure(*tables, 2.0, 2.25, None, {"5-gram": 2.0, "xz": 9.0})
    lines = {trace["name"]: trace["y"] for trace in figure["data"] if trace.get("yaxis") == "y5"}
    assert lines == {"5-gram": [2.0, 2.0], "xz": [9.0, 9.0], "held-out text": [2.25]}
    assert figure["layout"]["yaxis5"]["range"][1] > 9.0, "no line is outside of the picture"


def test_a_gap_between_leaked_and_clean_items_is_beside_its_scores() -> None:
    row = {"task": "t", "metric": "acc", "n": 100, "note": "", "stderr": 0.03, "subset": "all", "value": 0.5}
    gap = {"task": "t", "metric": "acc", "shots": 1, "difference": 0.1, "stderr": 0.04, "p": 0.02}
    (table,) = score_tables([{**row, "shots": 0}, {**row, "shots": 1}], [gap])
    assert [line.gap for line in table.lines] == [None, gap]


def test_a_benchmark_without_right_answers_has_no_main_metric() -> None:
    row = {"task": "t", "shots": 0, "n": 9, "note": "", "stderr": None, "subset": "all"}
    (table,) = score_tables([{**row, "metric": "chrf", "value": 20.0}], [])
    assert (table.metric, table.lines, len(table.others)) == (None, [], 1)
    assert scores_figure([{**row, "metric": "chrf", "value": 20.0}]) is None
    (table,) = score_tables([{**row, "metric": "acc", "value": None}, {**row, "metric": "exact", "value": 0.5}], [])
    assert table.metric == "exact", "it has a value"


@pytest.mark.parametrize("metrics", [("f1", "exact"), ("exact", "f1"), ("rouge_l", "rouge_1"), ("acc", "acc_sum")])
def test_the_main_metric_is_the_primary_one_which_comes_first(metrics: tuple[str, str]) -> None:
    row = {"task": "t", "shots": 0, "n": 9, "note": "", "stderr": None, "subset": "all", "value": 0.5}
    gap = {"task": "t", "metric": metrics[0], "shots": 0, "difference": 0.1, "stderr": 0.04, "p": 0.02}
    (table,) = score_tables([{**row, "metric": metric} for metric in metrics], [gap])
    assert (table.metric, table.lines[0].gap) == (metrics[0], gap)


def test_scores_of_all_benchmarks_are_one_picture(made_run: Any) -> None:
    figure = scores_figure(collect_metrics(made_run.record)["scores"])
    assert figure is not None
    assert [trace["name"] for trace in figure["data"]] == ["all items", "clean items", "leaked items"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["cloze, zero-shot", "cloze, one-shot", "cloze, 5-shot"]
    assert scores_figure([]) is None


def test_items_that_are_all_wrong_have_an_interval_in_table_and_picture() -> None:
    row = {"task": "t", "metric": "acc", "shots": 0, "n": 3, "note": "", "stderr": 0.0, "subset": "all", "value": 0.0}
    table, figure = scores_table([row]), scores_figure([row])  # pyright: ignore[reportArgumentType]
    assert table is not None
    assert table.rows[0][2] == "0.0 (0.0 to 56.1) (3)", "Wilson: 1.96^2 / (3 + 1.96^2)"
    assert figure is not None
    bars = figure["data"][0]["error_x"]
    assert (bars["array"], bars["arrayminus"]) == ([pytest.approx(0.5615, abs=1e-4)], [0.0])


def test_figures_are_json_and_name_colours_that_the_page_has(made_run: Any) -> None:
    view = page_view(made_run.record, made_run.folder, made_run.root, lambda _, make, __: make())
    reported = json.dumps(view["figures"], allow_nan=False)
    assert {"funnel", "mixture", "removed", "leaks", "tokens", "training", "speed", "heat", "lineage", "scores"} <= set(
        view["figures"]
    )
    assert "<script" not in reported


def test_long_names_with_one_beginning_are_lines_of_their_own() -> None:
    """Plotly would draw the bars of the second over those of the first, and show one source of two."""
    counts = {"weight": 0.5, "planned_share": 0.5, "realised_share": 0.5, "epochs": 1.0}
    figure = mixture_figure([{"source": f"{'long-' * 10}{name}", **counts} for name in "ab"])  # pyright: ignore
    assert figure is not None
    assert [len(set(trace["y"])) for trace in figure["data"]] == [2, 2, 2]
    assert plot_labels(["a", "b", "a", "a (2)", "a"]) == ["a", "b", "a (2)", "a (2) (2)", "a (3)"]


def test_names_are_plain_text_for_plotly() -> None:
    assert plot_text("<b>a</b> & b") == "&lt;b&gt;a&lt;/b&gt; &amp; b"
    assert plot_text("a\n b") == "a b"
    assert plot_text("x" * 50) == "x" * 39 + "…"
