"""The table of an ablation, from runs that are written down here."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flows.experiments import component_ablation as components_report
from flows.experiments.ablation_report import Runs, ablation_table, write_ablation
from flows.experiments.studies import RunResult
from flows.metrics.heldout import HeldOut
from model.checksummed_json import read_sealed

CHANGES = {"wide": {"train.model.width": 64}, "broken": {"train.clip": 1}}
TASK = "cloze acc, zero-shot"


def run(loss: float, speed: float, right: dict[str, float], built: tuple[str, ...] = ("train",)) -> RunResult:
    values = {"bits per byte": loss, TASK: sum(right.values()) / len(right), "tokens a second": speed}
    return RunResult(values, {TASK, "tokens a second"}, {TASK: right}, built, "run")


RUNS = {
    "base": {1: run(3.0, 100, {"a": 0, "b": 0}, ("sample", "train")), 2: run(5.0, 120, {"a": 0, "b": 1})},
    "wide": {1: run(2.0, 50, {"a": 1, "b": 1}), 2: run(4.0, 70, {"a": 1, "b": 1})},
    "broken": {1: RunResult(cause="Numerics: no </script> number")},
}


def write(runs: Runs, folder: Path) -> dict[str, Any]:
    return write_ablation(folder, runs, CHANGES, ("train.seed",))


def spaced(path: Path) -> str:
    """Short cells of Markdown keep their words on one line."""
    return path.read_text().replace("\N{NO-BREAK SPACE}", " ")


def test_differences_are_the_seeds_and_the_items() -> None:
    found = ablation_table(RUNS, CHANGES)
    assert found["measures"] == ["bits per byte", TASK, "tokens a second"]
    base, wide, broken = found["lines"]
    assert (base["built"], wide["built"]) == (["sample", "train"], ["train"])
    bits = wide["measures"]["bits per byte"]
    assert (bits["value"], bits["base"], bits["difference"], bits["low"], bits["high"]) == (3.0, 4.0, -1.0, -1.0, -1.0)
    assert bits["verdict"] == "better"
    assert wide["measures"]["tokens a second"]["verdict"] == "worse"
    items = wide["measures"][TASK]["items"]
    assert (items["n"], items["difference"]) == (2, 0.75)
    assert broken["measures"] == {}


def held(bits: dict[tuple[str, bytes], float], metric: str = "bits_per_byte", vocabulary: str = "v") -> RunResult:
    """A run that held out documents of 8 bytes each."""
    documents = {(source, doc_id, 0, 8): value for (source, doc_id), value in bits.items()}
    return RunResult(
        {"bits per byte": 9.0, "perplexity": 90.0},
        heldout=HeldOut({metric: documents}),
        of_heldout={"bits per byte": "bits_per_byte", "perplexity": "perplexity"},
        of_tokens={"perplexity": vocabulary},
    )


def test_runs_that_held_out_other_text_are_compared_on_what_both_held_out(tmp_path: Path) -> None:
    base = held({("a", b"1"): 16.0, ("a", b"2"): 24.0, ("b", b"3"): 8.0})
    wide = held({("a", b"1"): 8.0, ("b", b"3"): 8.0, ("b", b"4"): 800.0})
    found = write({"base": {1: base}, "wide": {1: wide}}, tmp_path)
    line = found["lines"][1]["measures"]["bits per byte"]
    # Of source a the document 1 (16 and 8 bits of 8 bytes), of b the document 3: means 1.5 and 1 bit a byte.
    assert (line["documents"], line["difference"], line["value"]) == (2, 1.0 - 1.5, 9.0)
    reported = spaced(Path(found["markdown"]))
    assert "| wide | 9.0000 | 1 | -0.5000 |  | (on 2 documents) |" in reported
    assert "| wide | 90.0000 | 1 |  |  | not compared: other text |" in reported


def test_a_seed_without_common_documents_is_not_counted_among_those_compared() -> None:
    base = {1: held({("a", b"1"): 16.0, ("a", b"2"): 16.0}), 2: held({("a", b"3"): 16.0})}
    wide = {1: held({("a", b"1"): 8.0, ("a", b"4"): 8.0}), 2: held({("a", b"5"): 8.0})}
    line = ablation_table({"base": base, "wide": wide}, CHANGES)["lines"][1]["measures"]["bits per byte"]
    assert (line["n"], line["difference"], line["documents"]) == (1, -1.0, 1)


def test_perplexities_of_other_tokens_are_not_compared() -> None:
    same = {("a", b"1"): 16.0}
    runs = {"base": {1: held(same)}, "wide": {1: held(same, vocabulary="larger")}}
    line = ablation_table(runs, CHANGES)["lines"][1]["measures"]
    assert line["bits per byte"]["difference"] == 0.0
    assert "documents" not in line["bits per byte"]
    assert line["perplexity"] == {"value": 90.0, "n": 1, "not_compared": "other tokens"}


def test_the_table_is_written_as_text_as_json_and_as_a_page(tmp_path: Path) -> None:
    found = write(RUNS, tmp_path)
    reported = spaced(Path(found["markdown"]))
    assert "| wide | 3.0000 | 2 | -1.0000 | -1.0000 to -1.0000 | better |" in reported
    assert "- broken, seed 1, failed: Numerics" in reported
    assert read_sealed(Path(found["table"]), "")["lines"][1]["change"] == "wide"
    page = Path(found["page"]).read_text()
    figures = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert figures is not None
    assert set(json.loads(figures[1])) == {"measure0", "measure1", "measure2"}
    assert "no &lt;/script&gt; number" in page


def test_the_outcome_names_runs_that_failed(tmp_path: Path) -> None:
    broken = {1: RunResult(cause="Numerics: x", run_id="b")}
    assert write(RUNS, tmp_path)["outcome"] == "2 changes, 2 seeds; 1 of 5 runs failed"
    assert write({"base": broken, "broken": broken}, tmp_path)["outcome"] == "1 change, 1 seed; 2 of 2 runs failed"
    assert write({"base": RUNS["base"], "wide": RUNS["wide"]}, tmp_path)["outcome"] == "1 change, 2 seeds"


def test_parts_are_written_dearest_first(tmp_path: Path) -> None:
    def line(part: str, more: float, **besides: object) -> dict[str, object]:
        shared = {"parameters": 90, "bits_per_byte": 2 + more, "more": more, "stderr": 0.1}
        return {"part": part, **shared, **besides}

    found = {
        "run_id": "run",
        "parameters": 100,
        "bits_per_byte": 2.0,
        "documents": 3,
        "bytes": 1000,
        "alone": [line("layer 0 head 0", 0.25, kind="head"), line("layer 1 head 0", 0.5, kind="head")],
        "curves": {"head": [line("whole", 0.0), line("1 head", 0.25)], "layer": [line("whole", 0.0)]},
    }
    paths = components_report.write_components(found, tmp_path)
    assert read_sealed(Path(paths["table"]), "") == found
    reported = spaced(Path(paths["markdown"]))
    assert reported.index("layer 1 head 0") < reported.index("layer 0 head 0")
    assert "| layer 1 head 0 | 90 | 2.5000 | +0.5000 | ± 0.1960 |" in reported
    assert "figure-size" in Path(paths["page"]).read_text()


@pytest.mark.parametrize("seeds", [{}, {1: RunResult(cause="Bug: x")}])
def test_without_a_base_there_are_values_and_no_differences(seeds: dict[int, RunResult]) -> None:
    _, wide = ablation_table({"base": seeds, "wide": RUNS["wide"]}, CHANGES)["lines"]
    assert wide["measures"]["bits per byte"] == {"value": 3.0, "n": 2}


def elements(page: str) -> list[str]:
    """The names of a page's elements, as a parser sees them."""
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append(tag)
    parser.feed(page)
    return found


def test_names_of_changes_are_shown_and_never_run(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)>"
    calm, wild = (
        Path(write({"base": RUNS["base"], name: RUNS["wide"]}, tmp_path)["page"]).read_text()
        for name in ("calm", hostile)
    )
    assert elements(wild) == elements(calm)
    assert "script" in elements(calm)
    assert html.escape(hostile) in wild
