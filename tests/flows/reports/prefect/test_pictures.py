"""Pictures are well-formed SVG whose bars are as long as their numbers and whose numbers are text."""

from xml.etree import ElementTree

import pytest

from flows.reports.charts.svg import BAR_WIDTH, MAX_POINTS, Bar, Curve, Interval, bars, curves, intervals

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def widths(svg: str, role: str) -> list[float]:
    return [float(e.attrib["width"]) for e in parsed(svg).iter(f"{SVG}rect") if e.attrib["class"] == role]


def test_bars_are_as_long_as_their_numbers_on_one_scale():
    svg = bars("Documents", [Bar("came in", ((80, "main"), (20, "lost")), "100"), Bar("out", ((50, "main"),), "50")])
    assert widths(svg, "main") == [0.8 * BAR_WIDTH, 0.5 * BAR_WIDTH]
    assert widths(svg, "lost") == [0.2 * BAR_WIDTH]
    assert {"Documents", "came in", "100", "50"} <= set(texts(svg))


def test_names_of_people_cannot_break_a_picture():
    name = '<script>alert("&")</script>'
    assert any(text.startswith("<script>") for text in texts(bars(name, [Bar(name, ((1, "main"),), name)])))


def test_nothing_at_all_can_be_drawn():
    for svg in (bars("none", [Bar("zero", ((0, "main"),), "0")]), bars("none", []), curves("none", [], "steps")):
        parsed(svg)
    parsed(curves("no finite value", [Curve("loss", [1.0], [float("nan")])], "steps"))


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    count = 10_000
    svg = curves("Training", [Curve("loss", range(count), [1.0 - n / count for n in range(count)], ".4f")], "steps")
    (line,) = parsed(svg).iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == MAX_POINTS
    assert "1.0000 → 0.0001" in texts(svg)


def test_steps_without_a_finite_value_are_gaps():
    svg = curves("Training", [Curve("loss", [1, 2, 3], [2.0, float("inf"), 1.0])], "steps")
    (line,) = parsed(svg).iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == 2


def test_an_interval_ends_at_the_borders_of_a_share():
    svg = intervals("Accuracy", [Interval("cloze", 0.5, 0.7, chance=0.25)])
    (mark,) = [line for line in parsed(svg).iter(f"{SVG}line") if line.attrib["class"] == "mark"]
    assert float(mark.attrib["x2"]) - float(mark.attrib["x1"]) == pytest.approx(BAR_WIDTH)
    assert "50% ± 70%, chance 25%" in texts(svg)
