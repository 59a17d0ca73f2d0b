"""The heat map as SVG: every activation range has a strip over the whole training, with its numbers as text."""

from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from flows.metrics.activation_stats import ActivationMap, activation_map
from flows.reports.charts.svg import LABEL_WIDTH
from flows.reports.charts.svg_heatmap import COLOURS, MAX_HEIGHT, STRIP_WIDTH, heatmap_chart
from model.config.network import GPTConfig
from model.nn.factory import activation_range_names

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["embedding", "block 0 attention logits", "block 0", "logits"]


def heat_of(readings: list[list[float]], names: list[str] = NAMES) -> ActivationMap:
    """Of the readings of each step; every step reads ten tokens."""
    tokens = pa.array(10 * (1 + np.arange(len(readings))))
    table = pa.table({"tokens": tokens, "thermometers": pa.array(readings, pa.list_(pa.float32()))})
    heat = activation_map(table, names, 100)
    assert heat is not None
    return heat


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def strips(svg: str) -> dict[float, list[tuple[str, float, float]]]:
    """By their height on the picture: colour, place and width of each piece."""
    found: dict[float, list[tuple[str, float, float]]] = {}
    for element in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        # Squares of the legend are eleven pixels high, strips are not.
        if element.attrib["class"].startswith(("heat", "bad")) and element.attrib["height"] != "11":
            piece = (element.attrib["class"], float(element.attrib["x"]), float(element.attrib["width"]))
            found.setdefault(float(element.attrib["y"]), []).append(piece)
    return found


def test_a_strip_changes_its_colour_where_the_reading_does() -> None:
    svg = heatmap_chart("Thermometers", heat_of([[1, 1, 1, 100], [1, 1, 1, 100], [10, 1, 100, 100], [100, 1, 1, 100]]))
    rows = list(strips(svg).values())
    assert len(rows) == 4
    half, quarter = STRIP_WIDTH / 2, STRIP_WIDTH / 4
    # The groups: the stream, then the scores, then the head.
    assert rows[0] == [
        ("heat0", LABEL_WIDTH, half),
        (f"heat{COLOURS // 2}", LABEL_WIDTH + half, quarter),
        (f"heat{COLOURS - 1}", LABEL_WIDTH + half + quarter, quarter),
    ]
    assert rows[2] == [("heat0", LABEL_WIDTH, STRIP_WIDTH)]
    assert rows[3] == [(f"heat{COLOURS - 1}", LABEL_WIDTH, STRIP_WIDTH)]
    assert {"residual stream", "attention logits", "embedding", "1 → 1e+02", "1", "100, largest magnitude"} <= set(
        texts(svg)
    )


def test_what_is_not_finite_is_red_and_said() -> None:
    svg = heatmap_chart("Thermometers", heat_of([[1, 1, 1, 1], [1, 1, 1, float("inf")]]))
    assert [role for role, _, _ in list(strips(svg).values())[3]] == ["heat0", "bad"]
    assert {"1 → not finite", "not finite"} <= set(texts(svg))
    assert "not finite" not in texts(heatmap_chart("Thermometers", heat_of([[1, 1, 1, 1]])))


@pytest.mark.parametrize("layers", [1, 12, 96])
def test_a_picture_of_a_deep_network_is_no_taller_than_a_page(layers: int) -> None:
    names = activation_range_names(GPTConfig(layers=layers))
    svg = heatmap_chart("Thermometers", heat_of([[1.0] * len(names)], names))
    assert len(strips(svg)) == len(names)
    assert float(ElementTree.fromstring(svg).attrib["height"]) < MAX_HEIGHT + 220
    assert len(svg) < 60_000
