"""The run page: whole, self-contained, safe with hostile documents, and there for runs that ended early."""

import base64
import gzip
import html
import io
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from flows.metrics.run_metrics import collect_metrics, describe_base_model
from flows.recipe.stages import STAGES
from flows.reports.charts.scores import chance_of
from flows.reports.charts.training import training_figure
from flows.reports.page.examples import SHOWN_OPEN, Removals, RemovedDocument, leaked_passages, removals
from flows.reports.page.page import _one_of_each, write_page
from flows.reports.page.render import environment, inline_script
from flows.reports.run_list import write_run_list
from flows.reports.summary import print_summary
from model.checksummed_json import write_sealed
from model.data.schema import EVENTS, METRICS, STEPS
from tasks.artifacts.manifest import read_manifest, write_manifest
from tasks.vocab.corpus import UNKNOWN_LANGUAGE

NEVER_CLOSED = {"meta", "link", "br", "img", "hr"}
PICTURES = (
    "funnel",
    "mixture",
    "removed",
    "duplicates",
    "leaks",
    "tokens",
    "training",
    "heat",
    "speed",
    "bits",
    "scores",
    "lineage",
)


class Reader(HTMLParser):
    """Collects elements, the text outside of scripts, and whether every element is closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.scripts += tag == "script"
        self.ids += filter(None, [named.get("id")])
        self.links += [value for key, value in attrs if key in ("src", "href") and value]
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text())
    assert reader.open == []
    reader.text = " ".join(reader.text.split())
    return reader


@pytest.fixture(scope="module")
def page(made_run: Any) -> Path:
    return write_page(made_run.folder, made_run.root)


def test_commands_in_remarks_are_shown_as_code():
    shown = environment().from_string("{{ remark | words }}").render(remark="see `data history A<B>`")
    assert shown == "see <code>data history A&lt;B&gt;</code>"


def test_a_whole_run_has_every_section_and_no_complaint(page: Path):
    reader = read(page)
    sections = [
        "pipeline",
        "funnel",
        "mixture",
        "sampling",
        "removals",
        "duplicates",
        "leaks",
        "vocabulary",
        "training",
        "heldout",
        "scores",
        "samples",
    ]
    assert [name for name in [*sections, "conservation", "provenance"] if name not in reader.ids] == []
    assert {f"figure-{name}" for name in PICTURES} <= set(reader.ids)
    assert "could not be made" not in reader.text
    assert "47% below the unigram" in reader.text
    shares = "web 50.0% and not 60.0% (other sources have more); books 50.0% and not 40.0%"
    assert f"{shares} (it replaces what other sources lack" in reader.text
    assert "At 0.8 and above 49 of 50 were found: recall 0.980 (95% interval 0.900 to 0.990)." in reader.text
    assert "48 of 50 injected items were found: recall 0.960 (95% interval 0.865 to 0.989)." in reader.text
    assert (
        "Of 50 reports, with 50 injected near misses, 49 were correct: precision 0.980 (0.895 to 0.996)." in reader.text
    )
    assert "all rights <b>reserved</b> · common, 12 documents" in reader.text
    assert "32 documents read = 1 rejected" in reader.text
    assert "of 32 documents those that sampling did not select, 1 not needed for the mixture." in reader.text
    assert "web: its weight asks for 6.00 epochs and max_epochs = 4 stops it." in reader.text
    assert "causal_lm in 40 rows of 17 tokens, best_fit, 0.25% padding." in reader.text
    assert "1602.252.00" in reader.text, "160 tokens, 2.25 epochs planned, 2.00 realised"
    assert "Skipped, web: messages without a text: 3." in reader.text


def test_the_page_of_the_demo_alone_says_what_a_longer_training_gives(
    page: Path, make: Callable[..., Any], tmp_path: Path
):
    made = make(tmp_path)
    write_sealed(made.folder / "run.json", {**made.record, "recipe_name": "quickstart"})
    assert "longer" in read(write_page(made.folder, made.root)).ids
    assert "longer" not in read(page).ids


def test_the_page_asks_the_network_for_nothing(page: Path):
    reader = read(page)
    assert [link for link in reader.links if not link.startswith("#")] == ["data:,"]
    assert {link.removeprefix("#") for link in reader.links if link.startswith("#")} <= set(reader.ids)
    style = re.search(r"<style>(.*?)</style>", page.read_text(), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_html_in_documents_is_shown_and_never_run(page: Path):
    reader = read(page)
    assert reader.scripts == 3, "figures, plotly and draw.js; none from a document"
    assert "<script>alert('from a document')</script>" in reader.text
    assert "a time <b>bold</b>" in reader.text
    hostile = "<script>alert('from a document')</script> & \"quoted\" text of a page"
    assert f"web/{hostile}.txt, record 0" in reader.text, "the name of a file"
    assert f"{hostile} as evidence" in reader.text


def test_html_in_the_names_of_sources_benchmarks_and_rules_is_shown_and_never_run(
    make: Callable[..., Any], tmp_path: Path
):
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    benchmark = {"items": 2, "leaked": 1, "clean": 1, "unmatchable": 0, "remains": 1}
    line = {"weight": 1.0, "planned_share": 1.0, "realised_share": 1.0, "reads": 20, "documents": 9, "tokens": 480}
    made = make(
        tmp_path,
        facts={
            "decontaminate": {"benchmarks": {hostile: benchmark}},
            "chunk": {"mixture": {hostile: {**line, "rows": 30, "epochs": 1.0}}},
        },
    )
    reader = read(write_page(made.folder, made.root))
    assert reader.scripts == 3
    assert "img" not in reader.tags
    assert hostile in reader.text
    assert "could not be made" not in reader.text


def test_names_cannot_reverse_a_line_of_the_page(make: Callable[..., Any], tmp_path: Path):
    benchmark = {"items": 2, "leaked": 1, "clean": 1, "unmatchable": 0, "remains": 1}
    made = make(tmp_path, facts={"decontaminate": {"benchmarks": {"a\u202egnp.exe\x1b[8m": benchmark}}})
    reader = read(write_page(made.folder, made.root))
    assert r"a\u202egnp.exe\u001b[8m" in reader.text
    assert "\u202e" not in reader.text


def test_a_figure_with_a_number_that_is_none_leaves_the_others_drawn():
    """A browser refuses NaN in JSON, and would draw none of them."""
    assert inline_script({"x": [1.5, float("nan"), float("-inf")]}) == '{"x": [1.5, null, null]}'


def test_the_library_that_draws_is_packed_and_whole(page: Path):
    packed = re.search(r'<script id="plotly" type="text/plain">(.*?)</script>', page.read_text(), re.DOTALL)
    assert packed is not None
    script = gzip.decompress(base64.b64decode(packed[1])).decode()
    assert "plotly.js v" in script[:200]
    assert page.stat().st_size < 2_600_000, "unpacked it was 5 MB"


def test_every_rule_shows_documents_that_it_removed(made_run: Any):
    from flows.metrics.stage_lines import open_artifacts

    found = removals(open_artifacts(made_run.record))
    assert {key: len(rows) for key, rows in found.items()} == {
        ("clean", "drop", "gopher_words_min"): 4,
        ("clean", "drop", "gopher_stop_words"): 2,
        ("dedup", "drop", "near_duplicate"): 3,
        ("dedup", "drop", "exact_duplicate"): 1,
        ("decontaminate", "cut", "leak"): 1,
        ("decontaminate", "drop", "too_many_pieces"): 1,
    }
    (example,) = found["dedup", "drop", "exact_duplicate"]
    assert example.path == "web/13.txt, record 0"
    assert example.excerpt.startswith("Text 13 of web.")


def test_what_each_rule_of_clean_removed_per_source_is_a_picture_and_a_table(page: Path):
    reader = read(page)
    assert "figure-removed" in reader.ids
    assert "cleaned" in reader.ids
    assert re.findall(r'<td class="title">(gopher_\w+)</td>.*data-name="web">(\d+)<', page.read_text()) == [
        ("gopher_words_min", "4"),
        ("gopher_stop_words", "2"),
    ]
    script = re.search(r'<script id="figures"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert script is not None
    figures = json.loads(script[1])
    (web,) = figures["removed"]["data"]
    rules = ["too_many_pieces", "exact_duplicate", "gopher_stop_words", "near_duplicate", "gopher_words_min"]
    assert (web["name"], web["y"], web["x"]) == ("web", rules, [1, 1, 2, 3, 4])
    assert web["customdata"] == [0.05, 0.05, 0.1, 0.15, 0.2], "of the 20 documents that were sampled"


def test_a_gap_beyond_chance_is_flagged(page: Path):
    reader = read(page)
    assert "Leaked items of cloze score significantly differently from clean ones." in reader.text
    assert "+100.0 ± 49.0 p = 0.004" in reader.text


def test_the_mean_over_sources_is_called_so(page: Path):
    reader = read(page)
    assert "bits per byte, held out, mean of the sources" in reader.text
    assert "The line all is the unweighted mean of the sources" in reader.text
    assert "all mean of the sources" in reader.text


def test_records_that_could_not_be_read_are_shown_by_reason(page: Path):
    reader = read(page)
    assert "rejected" in reader.ids
    section = page.read_text().partition('<section id="rejected">')[2].partition("</section>")[0]
    assert '<td class="title">invalid UTF-8 at byte …</td><td class="n" data-name="records">1</td>' in section
    assert "books/11.txt, record 0, byte 7" in section
    assert "smith@example.org" not in section


def test_text_around_a_leak_is_shown_without_personal_data(made_run: Any, monkeypatch: pytest.MonkeyPatch):
    from flows.metrics.stage_lines import open_artifacts

    artifacts = open_artifacts(made_run.record)
    (row,) = artifacts["decontaminate"].table("leaks").slice(0, 1).to_pylist()
    text = f"{'ann@example.org':{row['start']}}{'leak':{row['end'] - row['start']}} of bob@example.org"
    documents = {row["doc_id"]: {"doc_id": row["doc_id"], "source": "books", "text": text}}
    monkeypatch.setattr("flows.reports.page.examples.documents_of", lambda *words: documents)
    (passage,) = leaked_passages(artifacts)["cloze"]
    assert (passage.before.strip(), passage.leak.strip(), passage.after) == ("<email>", "leak", " of <email>")


def test_an_extended_base_is_reported_language_by_language(page: Path):
    reader = read(page)
    assert "A base vocabulary of 480 tokens, extended to 512." in reader.text
    section = page.read_text().partition('<section id="vocabulary">')[2].partition("</section>")[0]
    cells = re.findall(r'<td class="n" data-name="([^"]*)">(.*?)</td>', section)
    assert [re.sub("<.*?>", "", value) for _, value in cells] == [
        *("0.250 → 0.250", "1.25 → 1.25", "0", "0", "40", "0"),
        *("1.500 → 0.600", "-", "90.0% → 5.0%", "0", "0", "0"),
    ]
    assert "zh: 32 tokens added, all reachable, 2 only as intermediate merges; 1 never used" in reader.text
    assert "3 tokens of the base can never be produced." in reader.text


@pytest.mark.parametrize(
    ("unknown", "cells"),
    [
        ({}, ["3.50", "3.10"]),
        ({"unknown_share": {"books": 0.0, "web": 0.0}}, ["3.50", "3.10"]),
        ({"unknown_share": {"books": 0.0, "web": 0.0125}}, ["3.50", "0", "3.10", "1.25%"]),
    ],
)
def test_a_trained_vocabulary_is_reported_source_by_source(
    make: Callable[..., Any], tmp_path: Path, unknown: dict[str, Any], cells: list[str]
):
    reported = {"pieces": 512, "model_type": "wordpiece", "bytes_per_token": {"books": 3.5, "web": 3.1}, **unknown}
    made = make(tmp_path, facts={"vocab": {"vocabulary": reported}})
    whole = write_page(made.folder, made.root).read_text()
    section = whole.partition('<section id="vocabulary">')[2].partition("</section>")[0]
    assert "512 tokens (wordpiece), trained on this run" in section
    assert re.findall(r'<td class="n" data-name="[^"]*">(.*?)</td>', section) == cells
    assert "could not be made" not in whole


def test_documents_that_name_no_language_are_called_so(make: Callable[..., Any], tmp_path: Path, made_run: Any):
    vocabulary = collect_metrics(made_run.record)["vocabulary"]
    languages = {UNKNOWN_LANGUAGE: vocabulary["languages"]["zh"]}
    made = make(tmp_path, facts={"vocab": {"vocabulary": {**vocabulary, "languages": languages}}})
    assert '<td class="title">not given</td>' in write_page(made.folder, made.root).read_text()
    console = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(made.record, made.root, console)
    assert "not given 1.500 to 0.600" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("reported", "sentence"),
    [
        (
            {"new_rows": 1200, "start": "mean", "without_meaning": 7},
            "Training started from /models/base (weights 3f0c81d2a9b4) with 1,200 new rows, initialised as the mean of"
            " the rows of their old tokens; 7 of them, to which the base's ids give no meaning, near the mean of"
            " all; all weights were trained",
        ),
        (
            {"new_rows": 3, "start": "random", "without_meaning": 1},
            "Training started from /models/base (weights 3f0c81d2a9b4) with 3 new rows, initialised as noise, like"
            " those of a new network; all weights were trained",
        ),
        (
            {},
            "Training started from /models/base (weights 3f0c81d2a9b4), under its own vocabulary; all weights were"
            " trained",
        ),
    ],
)
def test_page_and_screen_say_from_which_model_training_went_on(
    make: Callable[..., Any], tmp_path: Path, reported: dict[str, Any], sentence: str
):
    made = make(tmp_path, facts={"train": {"base_model": {"weights": "3f0c81d2a9b4c5d6", **reported}}})
    write_sealed(made.folder / "recipe.json", {"train": {"base_model": "/models/base"}})
    reader = read(write_page(made.folder, made.root))
    assert f"{sentence}." in " ".join(reader.text.split())
    console = Console(file=io.StringIO(), width=400, color_system=None)
    print_summary(made.record, made.root, console)
    assert f"base model {sentence}" in " ".join(
        console.file.getvalue().split()  # pyright: ignore[reportAttributeAccessIssue]
    )
    only = describe_base_model(
        {"weights": "3f", "new_rows": 2, "start": "mean", "without_meaning": 0, "trainable": "new_rows"}
    )
    assert only.endswith("; only the new rows were trained")


def test_page_and_screen_say_what_the_gate_found(make: Callable[..., Any], tmp_path: Path):
    gate = {"rises": {"en": 0.031}}
    base = {"base_model": {"weights": "3f0c81d2a9b4c5d6", "new_rows": 2, "start": "mean", "without_meaning": 0}}
    made = make(tmp_path, facts={"train": base, "evaluate": {"gate": gate}}, max_rise=0.02)
    sentence = "Bits per byte relative to the base model: en +3.1%; the gate allows +2.0%: en did not pass"
    assert f"{sentence}." in " ".join(read(write_page(made.folder, made.root)).text.split())
    console = Console(file=io.StringIO(), width=400, color_system=None)
    print_summary(made.record, made.root, console)
    assert f"gate {sentence}" in " ".join(
        console.file.getvalue().split()  # pyright: ignore[reportAttributeAccessIssue]
    )


def test_a_leak_is_marked_between_its_surroundings(page: Path):
    marked = re.findall(r"<mark>(.*?)</mark>", page.read_text())
    assert marked == ["The leaked sentence stands here."]


@pytest.mark.parametrize("until", ["sample", "clean", "decontaminate", "vocab", "chunk", "train"])
def test_a_run_that_ended_early_has_a_page(until: str, make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path, until=until, failed="evaluate")
    reader = read(write_page(made.folder, made.root))
    assert "evaluate failed" in reader.text
    assert "InputError: <b>no such file</b>" in reader.text
    assert "could not be made" not in reader.text


def test_a_damaged_artifact_is_said_on_the_page_and_ends_nothing(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path)
    (entry,) = [entry for entry in made.record["stages"] if entry["stage"] == "evaluate"]
    scores = Path(entry["path"]) / "scores.arrow"
    scores.write_bytes(scores.read_bytes()[:-10] + b"0123456789")
    reader = read(write_page(made.folder, made.root))
    assert "IntegrityError: scores.arrow" in reader.text
    assert {"funnel", "mixture", "training", "conservation"} <= set(reader.ids)


def test_a_fact_of_another_version_is_said_on_the_page_and_ends_nothing(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path)
    (entry,) = [entry for entry in made.record["stages"] if entry["stage"] == "dedup"]
    manifest = read_manifest(Path(entry["path"]))
    manifest["report"]["facts"]["invented"] = 1
    write_manifest(Path(entry["path"]), manifest)
    reader = read(write_page(made.folder, made.root))
    assert "the manifest of dedup was written by another version" in reader.text
    assert {"funnel", "mixture", "training", "conservation"} <= set(reader.ids)


def test_the_same_run_gives_the_same_page(page: Path, made_run: Any):
    before = page.read_bytes()
    assert write_page(made_run.folder, made_run.root).read_bytes() == before


def test_steps_without_a_finite_value_are_gaps(made_run: Any):
    import pyarrow as pa

    measured = {
        "tokens": 4,
        "loss": float("nan"),
        "grad_norm": 1.0,
        "lr": 1e-3,
        "scale": 1.0,
        "largest_activations": [],
    }
    read = {"pos_start": 0, "pos_end": 4, "row_pieces": 1, "applied": True}
    at = {"step": 0, "attempt": 0}
    metrics = pa.Table.from_pylist([{**at, **measured}], schema=METRICS)
    figure = training_figure(metrics, pa.Table.from_pylist([{**at, **read}], schema=STEPS), EVENTS.empty_table())
    assert [trace["y"] for trace in figure["data"]] == [[None], [1.0], [1e-3]]
    assert "NaN" not in json.dumps(figure)


def test_chance_is_read_from_the_notes():
    assert chance_of([{"subset": "all", "note": "per bytes; chance 0.250; 200 of 320 items drawn"}]) == 0.25
    assert chance_of([{"subset": "all", "note": ""}]) is None


def test_data_within_a_script_cannot_end_it():
    assert inline_script("</script><!--") == '"\\u003c/script\\u003e\\u003c!--"'


def finish(made: Any) -> Path:
    """The page that a run makes at its end, with its place in the record."""
    page = write_page(made.folder, made.root)
    write_sealed(made.folder / "run.json", {**made.record, "page": str(page)})
    return page


def set_aside(made: Any, stage: str) -> Path:
    (entry,) = [entry for entry in made.record["stages"] if entry["stage"] == stage]
    artifact = Path(entry["path"])
    return artifact.rename(f"{artifact}.damaged-0f")


def test_a_page_is_not_replaced_by_one_that_shows_less(make: Callable[..., Any], tmp_path: Path, caplog: Any):
    made = make(tmp_path)
    page = finish(made)
    whole, findings = page.read_bytes(), (made.folder / "findings.json").read_bytes()
    aside = set_aside(made, "evaluate")
    assert write_page(made.folder, made.root) == page
    assert page.read_bytes() == whole
    assert (made.folder / "findings.json").read_bytes() == findings
    assert f"{page} is kept" in caplog.text
    aside.rename(str(aside).removesuffix(".damaged-0f"))
    page.write_text("an older page")
    assert write_page(made.folder, made.root).read_bytes() == whole, "it is written again when all artifacts exist"


def test_a_page_stays_while_an_artifact_is_damaged(make: Callable[..., Any], tmp_path: Path, caplog: Any):
    made = make(tmp_path)
    whole = finish(made).read_bytes()
    (entry,) = [entry for entry in made.record["stages"] if entry["stage"] == "evaluate"]
    scores = Path(entry["path"]) / "scores.arrow"
    scores.write_bytes(scores.read_bytes()[:-10] + b"0123456789")
    assert write_page(made.folder, made.root).read_bytes() == whole
    assert "is kept" in caplog.text


def test_the_report_of_a_copied_root_reads_and_names_that_root_alone(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path / "original")
    finish(made)
    copied = shutil.copytree(made.root, tmp_path / "copied")
    shutil.rmtree(made.root)
    done = CliRunner().invoke(app, ["runs", "report", "--root", str(copied), "--json"])
    reported = json.loads(done.stdout)
    assert reported["page"] == str(copied / "runs" / made.folder.name / "page.html")
    assert Path(reported["page"]).is_file()
    assert [line["stage"] for line in reported["findings"]["stages"] if "result" in line] == list(STAGES)
    assert "no longer exists" not in Path(reported["page"]).read_text()


def test_a_first_page_names_the_artifacts_that_are_gone(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path)
    aside = set_aside(made, "evaluate")
    reader = read(write_page(made.folder, made.root))
    assert "Some artifacts of this run are missing or damaged" in reader.text
    assert f"no longer exists; set aside as {aside.name}" in reader.text
    assert not (made.folder / "findings.json").exists()


def test_a_running_run_says_what_is_under_way_and_what_is_to_come(make: Callable[..., Any], tmp_path: Path):
    made = make(tmp_path, until="vocab")
    write_sealed(made.folder / "run.json", {**made.record, "state": "running", "finished": None})
    page = write_page(made.folder, made.root)
    outcomes = re.findall(r'<span class="took"[^>]*>.*<span class="([a-z-]+)">', page.read_text())
    assert outcomes == ["built"] * 5 + ["under-way", "to-come", "to-come"]


def test_of_each_rule_one_dropped_document_is_open_and_of_each_stage_before_a_second():
    def row(stage: str, doc_id: str) -> RemovedDocument:
        return RemovedDocument(stage, "rule", None, None, "", doc_id, path="", source="", excerpt="")

    def dropped(stage: str, *rules: str) -> Removals:
        return {(stage, "drop", rule): [row(stage, rule), row(stage, "another")] for rule in rules}

    few = dropped("clean", "a", "b") | dropped("dedup", "c") | {("clean", "edit", "d"): [row("clean", "d")]}
    assert [row.doc_id for row in _one_of_each(few)] == ["a", "b", "c"]
    many = dropped("clean", *"abcdefgh") | dropped("dedup", "i")
    assert [row.doc_id for row in _one_of_each(many)] == [*"abcdefgh"[: SHOWN_OPEN - 1], "i"]


def test_commands_on_pages_quote_the_root(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path / "my root")
    pages = [write_page(made.folder, made.root), write_run_list(made.root)]
    for text in (html.unescape(page.read_text()) for page in pages):
        assert text.count(f"--root '{made.root}'") == len(re.findall("--root '?/", text)) > 0
