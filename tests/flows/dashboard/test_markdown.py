"""Tables keep their columns whatever stands in a cell."""

import base64

from flows.dashboard.markdown import picture, table


def test_numbers_stand_right_and_texts_left():
    made = table(("source", "documents", "why"), [("a|b", 12345, "a longer sentence\nin two lines")], texts=("why",))
    assert made.splitlines() == [
        "| source | documents | why |",
        "| :-- | --: | :-- |",
        "| a\\|b | 12,345 | a longer sentence in two lines |",
    ]


def test_a_number_keeps_its_unit_on_its_line():
    assert "3\N{NO-BREAK SPACE}min\N{NO-BREAK SPACE}20\N{NO-BREAK SPACE}s" in table(("time",), [("3 min 20 s",)])


def test_a_picture_travels_inside_the_text():
    made = picture("<svg/>", "a square")
    assert made.startswith("![a square](data:image/svg+xml;base64,")
    assert base64.b64decode(made.partition("base64,")[2].rstrip(")")) == b"<svg/>"
