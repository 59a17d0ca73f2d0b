"""The page of a run while it works, what takes its place, and the list of runs."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.metrics.stage_lines import open_artifacts
from flows.reports import live
from flows.reports.live import Line, LivePage, begin_page, line_chart
from flows.reports.run_list import write_run_list
from model.checksummed_json import write_sealed
from tasks.artifacts.build import ProgressListener

STEP = {"kind": "step", "steps": 100, "lr": 0.1, "tokens": 1, "tokens_s": 1234}


def news(folder: Path) -> dict[str, Any]:
    """What the script gives to the page."""
    script = (folder / "live.js").read_text()
    assert script.startswith("bessemerLive({")
    return json.loads(script.removeprefix("bessemerLive(").rstrip().removesuffix(")"))


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def run_of(made: Any, **changes: Any) -> Any:
    record = SimpleNamespace(
        data={**made.record, **changes}, save=lambda: write_sealed(made.folder / "run.json", record.data)
    )
    context = SimpleNamespace(root=made.root)
    return SimpleNamespace(record=record, folder=made.folder, context=context, run_id=made.folder.name, failed=False)


@pytest.fixture
def page(make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A page of a run that has just begun, of which `again()` writes the script."""
    monkeypatch.setattr(LivePage, "_keep_writing", lambda self: None)
    made = make(tmp_path)
    shown = LivePage(ProgressListener())
    run = run_of(made, state="running", finished=None, stages=[], started=time.time() - 5)
    shown.begin(run)

    def again() -> str:
        shown._training.read(made.folder / "train.log")
        live._write_script(made.folder, {"at": time.time(), "html": str(shown._now())})
        return words(news(made.folder)["html"])

    return SimpleNamespace(made=made, run=run, shown=shown, again=again)


def test_a_run_has_a_page_before_anything_is_done(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "20260101T000000Z-abcdef"
    begin_page(folder, "<b>mine</b>", 0.0)
    html = (folder / "page.html").read_text()
    assert "&lt;b&gt;mine&lt;/b&gt;" in html
    assert 'script.src = "live.js?"' in html
    assert "http" not in html.replace("http-equiv", "")
    assert news(folder)["html"] == ""


def test_stages_are_shown_as_they_pass_with_the_time_that_is_left(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = page.run.record.data["started"] + 5.0
    monkeypatch.setattr(live.time, "time", lambda: now)
    assert "Stage 1 of 8, sample. Running for 5.0 s." in page.again()
    page.shown.finished("sample", open_artifacts(page.made.record)["sample"], 3.0)
    page.shown.progress("clean", 10, 100, "documents")
    monkeypatch.setattr(live.time, "time", lambda: now + 10.0)
    page.shown.progress("clean", 30, 100, "documents")
    text = page.again()
    assert "30 documents 3.0 s · reused" in text, "20 of the web and 10 books were sampled"
    assert "Stage 2 of 8, clean: 30%, about 35 s left in it." in text, "20 took 10 s, 70 are left"
    assert "30 of 100 documents 10 s · under way about 35 s left" in text
    assert text.count("to come") == 6


def test_a_run_of_a_trained_model_has_its_own_stage_alone(page: Any) -> None:
    page.run.record.data["asked"] = {"only": "finetune"}
    page.shown.progress("finetune", 10, 100, "steps")
    text = page.again()
    assert "Stage 1 of 1, finetune: 10%" in text
    assert "sample" not in text


def test_a_training_has_curves_and_texts(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Letters:
        eos, pad = 0, 1
        decode = decode_following = staticmethod(lambda ids: "".join(map(chr, ids)))

    monkeypatch.setattr(live, "open_tokenizer", lambda vocab: Letters)
    page.shown._vocab = object()
    row = {"source": "books", "rows": 1, "predictions": 1}
    lines = [
        {**STEP, "step": 1, "loss": 6.0},
        {"kind": "validation", "step": 1, "rows": [{**row, "nats_per_token": 6.5, "bits_per_byte": 4.0}]},
        {"kind": "sample", "step": 1, "prompt": [0, ord("a")], "tokens": [ord("<"), *[ord("\n")] * 9, ord("x"), 0]},
        {**STEP, "step": 50, "loss": 3.0},
        {"kind": "validation", "step": 50, "rows": [{**row, "nats_per_token": 3.5, "bits_per_byte": 2.5}]},
        {"kind": "sample", "step": 50, "prompt": [0, ord("a")], "tokens": [ord("b")]},
    ]
    text = "\n".join(map(json.dumps, lines))
    (page.made.folder / "train.log").write_text(f"a warning of a library\n{text}\n{text[:20]}")
    page.shown.note("train", "the input `documents` has <other> content")
    assert "<li>train: the input <code>documents</code> has &lt;other&gt; content</li>" in page.shown._now()
    shown = page.again()
    assert "step 50 of 100 · loss 3.000 · 1,234 tokens per second" in shown
    assert "books 2.500" in shown
    assert "a b after step 50 a &lt; x after step 1" in shown
    with (page.made.folder / "train.log").open("a") as log:
        back = {"kind": "event", "event": "rollback", "to_step": 10}
        log.write(f"{text[20:60]}\n{json.dumps(back)}\n")
    page.again()
    assert page.shown._training.losses == [(1, 6.0)]
    assert page.shown._training.bits == {"books": [(1, 4.0)]}


def test_the_progress_of_a_training_has_its_loss(tmp_path: Path) -> None:
    heard: list[str] = []

    class Heard(ProgressListener):
        def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
            heard.append(f"{stage} {done} of {total} {unit}")

    shown = LivePage(Heard())
    shown.progress("train", 1, 90, "steps")
    (tmp_path / "train.log").write_text('{"kind": "step", "step": 1, "steps": 90, "loss": 5.678}\n')
    shown._training.read(tmp_path / "train.log")
    shown.progress("train", 2, 90, "steps")
    shown.progress("evaluate", 3, 9, "items")
    assert heard == ["train 1 of 90 steps", "train 2 of 90 steps, loss 5.68", "evaluate 3 of 9 items"]


def test_long_curves_stay_small() -> None:
    points: list[tuple[float, float]] = []
    for step in range(10 * live.MAX_POINTS):
        live._add(points, step, 1.0)
    live._add(points, 0, float("inf"))
    assert live.MAX_POINTS / 2 <= len(points) <= live.MAX_POINTS
    chart = line_chart("loss", [Line(0, points)])
    assert chart is not None
    assert len(chart) < 10_000
    assert line_chart("loss", [Line(0, points[:1])]) is None


def test_the_report_takes_the_place_of_the_page(page: Any) -> None:
    run = run_of(page.made)
    path = page.shown.end(run)
    assert path == page.made.folder / "page.html"
    assert "live.js" not in path.read_text()
    assert news(page.made.folder) == {"page": "page.html"}
    assert (page.made.root / "runs" / "index.html").is_file()


def test_a_run_that_built_nothing_leads_to_the_page_of_the_earlier_one(page: Any) -> None:
    earlier = run_of(page.made)
    page.shown.end(earlier)
    folder = page.made.root / "runs" / "20270116T080000Z-abcdef"
    begin_page(folder, "made", 0.0)
    stages = [{**entry, "outcome": "reused"} for entry in earlier.record.data["stages"]]
    write_sealed(folder / "run.json", {**earlier.record.data, "run_id": folder.name, "stages": stages, "page": None})
    later = run_of(
        SimpleNamespace(
            root=page.made.root,
            folder=folder,
            record={**earlier.record.data, "run_id": folder.name, "stages": stages, "page": None},
        )
    )
    LivePage(ProgressListener()).end(later)
    assert news(folder) == {"page": "../20270115T080000Z-abcdef/page.html"}
    assert 'url=../20270115T080000Z-abcdef/page.html"' in (folder / "page.html").read_text()


def test_a_disk_that_is_full_ends_the_page_and_not_the_run(page: Any, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def full(*words: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live, "_write_script", full)
    begin_page(page.made.folder, "made", 0.0)
    page.shown.end(run_of(page.made))
    assert "the run goes on" in caplog.text


def test_the_list_of_runs_has_figures_pages_and_comparisons(page: Any) -> None:
    page.shown.end(run_of(page.made))
    command = "run made.toml --set seed=3 --set 'name=a b'"
    write_sealed(page.made.folder / "run.json", {**page.made.record, "command": command})
    (page.made.folder / "compare-20270114T080000Z-abcdef.html").write_text("")
    html = write_run_list(page.made.root).read_text()
    text = words(html)
    assert "made seed=3 name=a b 2027-01-15 08:00:00 UTC 20270115T080000Z-abcdef compared with 20270114T" in text
    assert "completed gpt 3.300 2.250 3.250 2.750 1 min 35 s" in text.replace("completed - ", "completed gpt ")
    assert 'href="20270115T080000Z-abcdef/page.html"' in html
    assert 'href="20270115T080000Z-abcdef/compare-20270114T080000Z-abcdef.html"' in html
