"""Two runs beside each other: what differs is named once, with its cause; what is the same is named as such."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from flows.metrics.heldout import HeldOut
from flows.metrics.stage_lines import open_artifacts
from flows.recipe.schema import differing_settings
from flows.reports import comparison as differing
from flows.reports import comparison_page
from flows.reports.comparison import compare, score_differences
from flows.reports.comparison_page import comparison_document, loss_figure, pairs_figure, scores_figure
from flows.reports.document import Table
from model.checksummed_json import write_sealed
from tasks.artifacts.tables.schema import ITEM_SCORES

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def other(made_run: Any, make: Callable[..., Any], tmp_path: Path) -> dict[str, Any]:
    """A run under the same root with another mixture, another loss and a benchmark of a hostile name."""
    line = {"weight": 0.5, "planned_share": 0.5, "reads": 20, "documents": 9, "tokens": 480, "rows": 30, "epochs": 1.0}
    mixture = {"books": {**line, "realised_share": 0.25}, "web": {**line, "realised_share": 0.75}}
    training = {"steps": 10, "skipped_steps": 0, "tokens": 640, "first_loss": 6.0, "last_loss": 3.0, "tokens_s": 2000.0}
    training |= {"rollbacks": 0, "seconds": 0.32}
    leaks = {HOSTILE: {"items": 2, "leaked": 1, "clean": 1, "unmatchable": 0, "remains": 0}}
    facts = {"chunk": {"mixture": mixture}, "train": {"training": training}, "decontaminate": {"benchmarks": leaks}}
    made = make(tmp_path, facts=facts)
    record = {**made.record, "run_id": "20270116T080000Z-fedcba", "root": str(made_run.root), "recipe_name": "other"}
    folder = made_run.root / "runs" / record["run_id"]
    folder.mkdir(exist_ok=True)
    write_sealed(folder / "run.json", record)
    write_sealed(folder / "recipe.json", {"seed": 2, "sample": {"sources": [{"name": "web", "weight": 1}]}})
    recipe = {"seed": 1, "sample": {"sources": [{"name": "books"}, {"name": "web", "weight": 0.5}]}, "name": "made"}
    write_sealed(made_run.folder / "recipe.json", {**recipe, "name": None})
    return record


def test_stages_differ_by_their_bytes(made_run: Any, other: dict[str, Any]) -> None:
    found = compare(made_run.record, other)
    verdicts = {line["stage"]: line["verdict"] for line in found["stages"]}
    assert set(verdicts) == {"sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate"}
    assert set(verdicts.values()) == {"the same bytes"}, "facts of a report are no bytes of a table"
    early = {**other, "stages": other["stages"][:2]}
    verdicts = {line["stage"]: line["verdict"] for line in compare(made_run.record, early)["stages"]}
    assert (verdicts["clean"], verdicts["dedup"]) == ("the same bytes", "in one run only")


def test_numbers_are_beside_each_other(made_run: Any, other: dict[str, Any]) -> None:
    found = compare(made_run.record, other)
    assert found["mixture"] == [{"name": "books", "values": [0.5, 0.25]}, {"name": "web", "values": [0.5, 0.75]}]
    assert {"name": "final loss", "values": [3.3, 3.0]} in found["training"]
    assert {"name": "clean: gopher_words_min", "values": [4, 4]} in found["removed"]
    assert found["leaks"] == [{"name": "cloze", "values": [1, None]}, {"name": HOSTILE, "values": [None, 1]}]
    assert found["documents"] == [{"name": "web", "values": [8, 8]}, {"name": "books", "values": [9, 9]}]


def test_held_out_text_that_differs_is_compared_on_what_both_held_out(
    made_run: Any, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare(made_run.record, other)["heldout"] is None
    sets = [
        HeldOut({"bits_per_byte": {("web", b"1", 0, 8): bits, ("web", own, 0, 8): 8.0}})
        for bits, own in ((16.0, b"2"), (24.0, b"3"))
    ]
    monkeypatch.setattr(differing, "held_out", lambda artifacts: sets.pop(0))
    (line,) = compare(made_run.record, other)["heldout"] or []
    assert line == {
        "name": "bits per byte, mean of sources, common documents: 1",
        "documents": 1,
        "values": [2.0, 3.0],
    }


def test_a_difference_that_is_rounded_to_nothing_has_no_sign(made_run: Any, other: dict[str, Any]) -> None:
    shares = {"web": [0.5, 0.4999], "books": [0.25, 0.2], "notes": [0.1, 0.3], "code": [0.0, 0.0]}
    found = {**compare(made_run.record, other), "mixture": [{"name": n, "values": v} for n, v in shares.items()]}
    document = comparison_document(found, [made_run.record, other])  # pyright: ignore[reportArgumentType]
    (section,) = (one for one in document.sections if one.title == "Mixture")
    (table,) = (part for part in section.parts if isinstance(part, Table))
    assert [row[3] for row in table.rows] == ["0.0%", "-5.0%", "+20.0%", "0"]


def test_recipes_differ_setting_by_setting(made_run: Any, other: dict[str, Any]) -> None:
    assert compare(made_run.record, other)["recipe"] == [
        {"path": "sample.sources.books", "values": [{"name": "books"}, None]},
        {"path": "sample.sources.web.weight", "values": [0.5, 1]},
        {"path": "seed", "values": [1, 2]},
    ]
    assert list(differing_settings({"a": [1, 2]}, {"a": [1, 3]})) == [("a", [1, 2], [1, 3])]
    assert list(differing_settings({"a": {}}, {"a": {}})) == []


class Evaluated:
    """An evaluation that kept the scores of four items."""

    def __init__(self, right: list[int]) -> None:
        head = {"task": "t", "shots": 0, "state": "clean", "metric": "acc"}
        rows = [{**head, "item_id": str(number), "value": float(value)} for number, value in enumerate(right)]
        self._rows = pa.Table.from_pylist(rows, schema=ITEM_SCORES)

    def rows(self, table: str) -> int:
        return self._rows.num_rows

    def table(self, table: str) -> pa.Table:
        return self._rows


def test_scores_are_compared_item_by_item_where_both_kept_them() -> None:
    row = {"task": "t", "metric": "acc", "shots": 0, "subset": "all", "n": 4, "stderr": 0.25, "note": ""}
    scores = [[{**row, "value": 0.25}], [{**row, "value": 1.0}]]
    pair: list[Any] = [{"evaluate": Evaluated([1, 0, 0, 0])}, {"evaluate": Evaluated([1, 1, 1, 1])}]
    (line,) = score_differences(pair, scores)
    # Differences 0, 1, 1, 1: mean .75, standard deviation .5, so 1.96 * .25 to both sides.
    assert (line["mean"], line["how"], line["verdict"]) == (0.75, "item by item", "better")
    assert (line["low"], line["high"]) == (pytest.approx(0.260009), pytest.approx(1.239991))
    (line,) = score_differences([{}, {}], scores)
    # 1.96 * sqrt(2) * .25 = .693 < .75
    assert (line["how"], line["verdict"], line["low"]) == (
        "from standard errors",
        "better",
        pytest.approx(0.0570, abs=1e-4),
    )
    (line,) = score_differences([{}, {}], scores[::-1])
    assert line["verdict"] == "worse"
    (line,) = score_differences([{}, {}], [[{**row, "value": 0.25, "stderr": None}], scores[1]])
    assert (line["verdict"], line["low"]) == ("no difference", None)


def test_a_score_of_items_that_are_all_wrong_is_not_exact_in_a_comparison() -> None:
    """Of 3 items none is right, with Wilson's interval up to .56, against two, with a standard error of a third."""
    row = {"task": "t", "metric": "acc", "shots": 0, "subset": "all", "n": 3, "note": ""}
    pair = [[{**row, "value": 0.0, "stderr": 0.0}], [{**row, "value": 2 / 3, "stderr": 1 / 3}]]
    (line,) = score_differences([{}, {}], pair)  # pyright: ignore[reportArgumentType]
    # Below: 1.96 / 3 = .653 and .5615 in quadrature; above: .653 alone.
    assert line["verdict"] == "no difference"
    assert (line["low"], line["high"]) == (pytest.approx(0.6667 - 0.8614, abs=1e-3), pytest.approx(1.32, abs=1e-3))
    figure = scores_figure([line])
    assert figure is not None
    bar = figure["data"][0]["error_x"]
    assert (bar["array"], bar["arrayminus"]) == ([pytest.approx(0.653, abs=1e-3)], [pytest.approx(0.861, abs=1e-3)])


def test_tables_are_read_at_80_columns() -> None:
    line = {"task": "cloze", "metric": "acc", "shots": 0, "values": [0.517, 0.538], "n": 290, "mean": 0.021}
    line |= {"low": -0.048, "high": 0.09, "verdict": "no difference", "how": "item by item"}
    for how, columns in (("item by item", 7), ("from standard errors", 8)):
        _, table = comparison_page._scores({"scores": [{**line, "how": how}]})
        assert isinstance(table, Table)
        assert len(table.columns) == columns
        assert ("unpaired" in table.note) == (columns == 8)
        if columns == 7:
            out = io.StringIO()
            Console(file=out, width=80).print(table.rich())
            head, row, *_ = out.getvalue().splitlines()
            assert head.split() == ["benchmark", "metric", "first", "second", "difference", "items", "second", "is"]
            assert row.startswith("cloze, zero-shot  acc     51.7%   53.8%  +2.1 (-4.8 to +9.0)    290  no")
    assert [comparison_page._number(value) for value in (13560.4, 3.7351, 20.0)] == ["13,560", "3.735", "20"]


def test_losses_lie_over_each_other_and_their_difference_below(made_run: Any) -> None:
    artifacts = open_artifacts(made_run.record)
    figure = loss_figure([artifacts, artifacts], ["a", "b"])
    assert figure is not None
    first, second, apart = figure["data"]
    assert first["y"] == second["y"]
    assert set(apart["y"]) == {0.0}
    assert loss_figure([artifacts, {}], ["a", "b"]) is None
    assert pairs_figure([], ["a", "b"], ".1%", "x") is None
    assert scores_figure([]) is None


def test_the_page_is_one_file_that_runs_nothing_of_the_data(
    made_run: Any, other: dict[str, Any], tmp_path: Path
) -> None:
    comparison_document(compare(made_run.record, other), [made_run.record, other]).write_page(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script") == 3
    assert "http" not in page.partition('<script id="plotly"')[0].replace("http-equiv", "")
    for figure in ("loss", "scores", "bits", "mixture", "removed"):
        assert f'id="figure-{figure}"' in page
    for section in ("What differs", "Training", "Scores", "Held-out text", "Mixture", "Documents kept", "Leaked items"):
        assert f"<h2>{section}</h2>" in page
    assert ">50.0%</td>" in page
    assert ">-25.0%</td>" in page


def test_the_command_says_and_writes(made_run: Any, other: dict[str, Any], tmp_path: Path) -> None:
    root = ["--root", str(made_run.root)]
    reported = CliRunner().invoke(app, ["runs", "compare", "20270115", "20270116", *root])
    assert reported.exit_code == 0, reported.output
    page = made_run.root / "runs" / other["run_id"] / "compare-20270115T080000Z-abcdef.html"
    assert page.is_file()
    for words in ("the same bytes", "sample.sources.web.weight", "final loss", "no difference", str(page)):
        assert words in reported.output
    as_json = CliRunner().invoke(
        app, ["runs", "compare", "20270115", "20270116", "--json", "-o", str(tmp_path / "c.html"), *root]
    )
    assert json.loads(as_json.stdout)["page"] == str(tmp_path / "c.html")
    assert (tmp_path / "c.html").is_file()
