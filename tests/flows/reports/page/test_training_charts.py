"""The pictures of a training: its curves with its events, and the heat map of its activation ranges."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reports.charts.heatmap import MAX_HEIGHT, ActivationMap, activation_map, heatmap_figure
from flows.reports.charts.training import training_figure
from flows.reports.page.page import write_page
from flows.reports.prefect.artifacts import stage_markdown
from model.config.network import BERTConfig, GPTConfig, T5Config
from model.data.schema import EVENTS, METRICS, STEPS
from model.nn.factory import activation_range_names
from tasks.artifacts.artifact import Artifact

INFINITY = float("inf")
NAMES = ["embedding", "block 0 attention logits", "block 0", "logits"]


def slice_batch(*steps: tuple[int, int, float]) -> tuple[pa.Table, pa.Table]:
    """METRICS and STEPS of (step, attempt, loss); each step reads ten tokens."""
    measured = {"grad_norm": 1.0, "lr": 1e-3, "max_norm": 1.0, "scale": 1.0, "largest_activations": []}
    read = {"row_pieces": 1, "applied": True}
    metrics = [
        {"step": step, "attempt": attempt, "tokens": 10 * (step + 1), "loss": loss, **measured}
        for step, attempt, loss in steps
    ]
    places = [
        {"step": step, "attempt": attempt, "pos_start": step, "pos_end": step + 1, **read} for step, attempt, _ in steps
    ]
    return pa.Table.from_pylist(metrics, schema=METRICS), pa.Table.from_pylist(places, schema=STEPS)


def events_of(*reported: tuple[int, int, str, dict[str, Any]]) -> pa.Table:
    rest = {"time": 0.0, "class": "Numerics", "positions": [7, 8]}
    rows = [
        {"seq": seq, "step": step, "attempt": attempt, "kind": kind, "detail": json.dumps(detail), **rest}
        for seq, (step, attempt, kind, detail) in enumerate(reported)
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def curves(figure: dict[str, Any], axis: str = "y") -> dict[str, tuple[list[float], list[float | None]]]:
    return {
        trace["name"]: (trace["x"], trace["y"])
        for trace in figure["data"]
        if trace["mode"] == "lines" and trace["yaxis"] == axis
    }


def test_what_the_guard_went_back_from_is_a_pale_line_beside_the_curve() -> None:
    table, steps = slice_batch((0, 0, 5.0), (1, 0, 4.0), (2, 0, 9.0), (1, 1, 3.5), (2, 1, 3.0))
    figure = training_figure(table, steps, EVENTS.empty_table())
    assert curves(figure) == {"loss, rolled back": ([20, 30], [4.0, 9.0]), "loss": ([10, 20, 30], [5.0, 3.5, 3.0])}
    assert [trace["meta"]["role"] for trace in figure["data"] if "rolled back" in trace["name"]] == ["muted1"] * 3
    assert not figure["layout"]["showlegend"]


def test_events_are_where_their_step_is_and_say_what_they_know() -> None:
    table, steps = slice_batch((0, 0, 5.0), (1, 0, 9.0), (2, 0, INFINITY), (1, 1, 4.0), (2, 1, 3.0))
    reported = events_of(
        (0, 0, "start", {}),
        (1, 0, "spike", {"loss": "9.0"}),
        (2, 0, "skipped_step", {"loss": "inf"}),
        (2, 0, "rollback", {"cause": "a loss <b>beyond</b> all"}),
        (3, 1, "resume", {"pid": 12, "ranks": 1}),
    )
    marks = {
        trace["name"]: trace for trace in training_figure(table, steps, reported)["data"] if trace["mode"] == "markers"
    }
    places = {name: (trace["x"], trace["y"]) for name, trace in marks.items()}
    # Step 2 of the first attempt has no finite loss, and there is no step 3 yet.
    assert places == {
        "spike, skipped": ([20], [9.0]),
        "non-finite step": ([30], [9.0]),
        "rollback": ([30], [9.0]),
        "resumed": ([30], [3.0]),
    }
    assert marks["spike, skipped"]["text"] == ["step 1<br>positions 7 to 9 of ORDER<br>loss: 9.0"]
    assert marks["rollback"]["text"][0].endswith("cause: a loss &lt;b&gt;beyond&lt;/b&gt; all")
    assert marks["resumed"]["text"] == ["step 3, attempt 1<br>positions 7 to 9 of ORDER<br>ranks: 1"]


def test_thousands_of_overflows_are_as_many_marks_as_can_be_seen() -> None:
    table, steps = slice_batch(*((step, 0, 2.0) for step in range(3000)))
    reported = events_of(*((step, 0, "overflow", {}) for step in range(3000)))
    (marks,) = (trace for trace in training_figure(table, steps, reported)["data"] if trace["mode"] == "markers")
    assert marks["name"] == "overflow (3000)"
    assert len(marks["x"]) == 200
    assert (marks["x"][0], marks["x"][-1]) == (10, 30_000)


def heat_of(lows: Any, highs: Any, columns: int, names: list[str] = NAMES) -> ActivationMap:
    """Of the readings of each step; every step reads ten tokens."""
    low, high = np.array(lows, dtype=np.float32), np.array(highs, dtype=np.float32)
    table = pa.table(
        {
            "tokens": pa.array(10 * (1 + np.arange(len(low)))),
            "largest_activations": pa.array(list(np.maximum(-low, high)), pa.list_(pa.float32())),
            "activation_lows": pa.array(list(low), pa.list_(pa.float32())),
            "activation_highs": pa.array(list(high), pa.list_(pa.float32())),
        }
    )
    heat = activation_map(table, names, columns)
    assert heat is not None
    return heat


def test_a_column_of_several_steps_has_their_extremes() -> None:
    lows = [[-1, -1, -1, -1], [-1, -9, -1, -1], [-2, -1, -1, -1], [-1, -1, -1, -INFINITY]]
    highs = [[1, 2, 0, 1], [1, 2, 0, 1], [1, 100, 0, 1], [1, 2, 0, INFINITY]]
    heat = heat_of(lows, highs, columns=2)
    assert heat.edges.tolist() == [0, 20, 40]
    assert heat.largest.tolist() == [[1, 2], [9, 100], [1, 1], [1, INFINITY]]
    assert heat.bounds[:, 1].tolist() == [[-9, -1], [2, 100]]
    assert heat.decades == (0, 2)
    np.testing.assert_allclose(heat.powers[1], [np.log10(9), 2])
    assert np.isnan(heat.powers[3, 1])


@given(steps=st.integers(1, 40), columns=st.integers(1, 12), seed=st.integers(0, 9))
def test_no_reading_is_lost_whatever_the_number_of_columns(steps: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed).normal(size=(steps, 4)).astype(np.float32)
    heat = heat_of(random, random, columns)
    assert heat.bounds is not None
    assert heat.bounds.shape == (2, 4, min(steps, columns))
    assert heat.bounds[0].min(1).tolist() == random.min(0).tolist()
    assert heat.bounds[1].max(1).tolist() == random.max(0).tolist()
    assert (heat.edges[0], heat.edges[-1]) == (0, 10 * steps)
    assert (np.diff(heat.edges) > 0).all()


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        (
            GPTConfig(layers=2),
            {
                "residual stream": ("embedding", "block 0", "block 1"),
                "attention logits": ("block 0", "block 1"),
                "head": ("logits",),
            },
        ),
        (
            BERTConfig(layers=1),
            {
                "residual stream": ("embedding", "block 0"),
                "attention logits": ("block 0",),
                "head": ("masked logits", "next logits"),
            },
        ),
        (
            T5Config(layers=1),
            {
                "encoder residual stream": ("embedding", "block 0"),
                "encoder attention logits": ("block 0",),
                "decoder residual stream": ("embedding", "block 0"),
                "decoder attention logits": ("block 0",),
                "decoder cross attention logits": ("block 0",),
                "head": ("logits",),
            },
        ),
    ],
)
def test_activation_ranges_of_a_kind_are_together(config: Any, groups: dict[str, tuple[str, ...]]) -> None:
    names = activation_range_names(config)
    ones = np.ones((1, len(names)))
    heat = heat_of(-ones, ones, 5, names)
    assert {group.title: group.labels for group in heat.groups} == groups
    assert sorted(row for group in heat.groups for row in group.rows) == list(range(len(names)))


def test_what_is_no_number_is_a_gap_with_a_cross() -> None:
    figure = heatmap_figure(heat_of([[-1, -1, -1, -1], [-1, -INFINITY, -1, -1]], [[1, 10, 0.1, 0], [1, 10, 0.1, 0]], 5))
    scores = [trace for trace in figure["data"] if trace["yaxis"] == "y2"]
    assert scores[0]["z"] == [[1.0, None]]
    assert scores[0]["customdata"] == [[[-1.0, 10.0], [None, 10.0]]]
    assert (scores[1]["x"], scores[1]["y"], scores[1]["meta"]["role"]) == ([15.0], ["block 0"], "series1")
    assert [trace["type"] for trace in figure["data"]] == ["heatmap", "heatmap", "scatter", "heatmap"]
    # JSON knows neither NaN nor infinities.
    json.dumps(figure, allow_nan=False)


@given(small=st.floats(0, 1e-30), large=st.floats(1e-3, 1e30))
def test_colours_distinguish_a_few_powers_of_ten(small: float, large: float) -> None:
    heat = heat_of([[-small, -1, -1, -1]], [[small, large, 1, 1]], 5)
    low, high = heat.decades
    assert 1 <= high - low <= 8
    assert ((heat.powers >= low) & (heat.powers <= high)).all()


def test_trainings_without_readings_have_no_map() -> None:
    nothing = pa.array([[]], pa.list_(pa.float32()))
    columns = ("largest_activations", "activation_lows", "activation_highs")
    assert activation_map(pa.table({"tokens": [5], **dict.fromkeys(columns, nothing)}), ["embedding"], 9) is None


def test_a_deep_network_has_a_map_of_a_page_s_height_and_fewer_labels() -> None:
    names = activation_range_names(GPTConfig(layers=96))
    ones = np.ones((3, len(names)))
    layout = heatmap_figure(heat_of(-ones, ones, 9, names))["layout"]
    assert layout["height"] < MAX_HEIGHT + 220
    assert len(layout["yaxis"]["tickvals"]) == 20
    domains = [layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert all(0 <= low < high <= 1 for low, high in domains)
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]


def test_the_page_shows_the_map_of_the_run(made_run: Any) -> None:
    page = write_page(made_run.folder, made_run.root).read_text()
    assert 'id="figure-heat"' in page
    assert "non-finite step" in page
    assert "not finite at" in page
    assert "could not be made" not in page


def test_the_dashboard_has_the_first_and_the_last_value_of_each_curve(made_run: Any) -> None:
    (entry,) = [entry for entry in made_run.record["stages"] if entry["stage"] == "train"]
    shown = stage_markdown(Artifact.open(Path(entry["path"])), "/runs/one/page.html").replace("\N{NO-BREAK SPACE}", " ")
    assert "| measure | first step | last step |" in shown
    assert re.search(r"\| loss, nats \| 6\.000 \| 3\.\d00 \|", shown)
    assert "| model FLOPs utilisation | 50.0% | 50.0% |" in shown
    assert re.search(r"\| tokens per second \| [\d,]+ \| [\d,]+ \|", shown)
    assert "data:image" not in shown
    assert "`/runs/one/page.html`" in shown
