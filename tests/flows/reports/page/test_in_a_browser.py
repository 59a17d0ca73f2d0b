"""The page in a real browser: nothing is wider than a phone, every picture is drawn, and a point of the loss leads to
the documents of its step. Screenshots go to the folder that BESSEMER_SCREENSHOTS names, else to pytest's own.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.experiments import ablation_report
from flows.experiments import component_ablation as components_report
from flows.experiments import scaling_law as ladder_report
from flows.experiments.trials import RunResult
from flows.metrics.stage_lines import open_artifacts
from flows.reports.charts import scores
from flows.reports.charts.figure import figure
from flows.reports.live import LivePage, _write_script, begin_page
from flows.reports.page.page import write_page
from flows.reports.run_list import write_run_list
from model.checksummed_json import write_sealed
from tasks.artifacts.build import ProgressListener

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.prove, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SECONDS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


def opened(browser: Any, page: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    """The page once every figure is drawn, and what went wrong in it."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    shown = context.new_page()
    shown.set_default_timeout(SECONDS)
    wrong: list[str] = []
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    shown.on("dialog", lambda dialog: (wrong.append("a dialog"), dialog.dismiss()))
    shown.on("request", lambda asked: wrong.append(asked.url) if asked.url.startswith("http") else None)
    shown.goto(page.resolve().as_uri())
    shown.wait_for_function("[...document.querySelectorAll('.plot')].every(place => place.querySelector('.main-svg'))")
    return shown, wrong


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_picture_is_drawn_and_nothing_is_wider_than_the_screen(
    made_run: Any, browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    shown, wrong = opened(browser, write_page(made_run.folder, made_run.root), width, scheme)
    assert shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    for place in shown.query_selector_all("details"):
        place.evaluate("one => { one.open = true }")
    assert shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    folder = Path(os.environ.get("BESSEMER_SCREENSHOTS", tmp_path))
    shown.screenshot(path=folder / f"page-{width}-{scheme}.png", full_page=True)
    assert wrong == []


def test_the_legend_of_a_low_figure_does_not_scroll_on_a_phone(
    made_run: Any, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "figure", lambda data, height, **layout: figure(data, 120, **layout))
    shown, _ = opened(browser, write_page(made_run.folder, made_run.root), 390, "light")
    legend = "document.querySelector('#figure-scores .legend .{}').getBBox().height"
    assert shown.evaluate(legend.format("scrollbox")) > 50
    assert shown.evaluate(legend.format("scrollbar")) == 0


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_renews_itself_until_the_report_takes_its_place(
    made_run: Any, browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    folder = tmp_path / "runs" / made_run.folder.name
    page = LivePage(ProgressListener())
    record = {**made_run.record, "state": "running", "stages": [], "started": time.time()}
    page._record, page._folder = record, folder
    begin_page(folder, "made", record["started"], page._now())
    late = re.sub(r"heard = [\d.]+", "heard = 1", (folder / "page.html").read_text())
    (folder / "page.html").write_text(late)
    shown, wrong = opened(browser, folder / "page.html", width, scheme)
    assert shown.inner_text("#state") == "running", "a page that is opened late has yet to hear of its run"
    assert "Stage 1 of 8, sample" in shown.inner_text("#live")
    for stage, artifact in open_artifacts(made_run.record).items():
        if stage in ("sample", "clean", "dedup"):
            page.finished(stage, artifact, 1.0)
    page.progress("decontaminate", 3, 10, "parts")
    page._training.last = {"step": 40, "steps": 100, "loss": 3.0, "tokens_s": 1000}
    page._training.losses = [(step, 8.0 - step / 8) for step in range(40)]
    page._training.bits = {"books": [(10, 3.0), (20, 2.5)], "web": [(10, 4.0), (20, 3.5)]}
    _write_script(folder, {"at": time.time(), "html": str(page._now())})
    shown.wait_for_function("document.getElementById('live').innerText.includes('3 of 10 parts')")
    assert shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    pictures = Path(os.environ.get("BESSEMER_SCREENSHOTS", tmp_path))
    shown.screenshot(path=pictures / f"live-{width}-{scheme}.png", full_page=True)
    _write_script(folder, {"at": time.time() - 120, "html": str(page._now())})
    shown.wait_for_function("!document.getElementById('late').hidden")
    assert "run the same command to go on" in shown.inner_text("#late")
    (folder / "page.html").write_bytes(write_page(made_run.folder, made_run.root).read_bytes())
    _write_script(folder, {"page": "page.html"})
    shown.wait_for_function("document.getElementById('pipeline') !== null")
    assert wrong == []


@pytest.mark.parametrize("width", [390, 1440])
def test_the_list_of_runs_writes_the_command_that_compares_two(
    make: Any, browser: Any, tmp_path: Path, width: int
) -> None:
    made = make(tmp_path)
    write_sealed(made.root / "runs" / "earlier" / "run.json", {**made.record, "run_id": "earlier"})
    shown, wrong = opened(browser, write_run_list(made.root), width, "light")
    for box in shown.query_selector_all("input"):
        box.check()
    assert f"bessemer runs compare {made.folder.name} earlier --root" in shown.inner_text("#compare")
    assert shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shown.screenshot(path=Path(os.environ.get("BESSEMER_SCREENSHOTS", tmp_path)) / f"runs-{width}.png", full_page=True)
    assert wrong == []


def ladder(folder: Path) -> None:
    sizes = [{"width": width, "layers": 2, "heads": 2} for width in (16, 32, 64, 128)]
    rungs = [
        ladder_report.ScalePoint(
            f"2 layers of {size['width']}",
            weights := 24 * size["width"] ** 2,
            20 * weights,
            {seed: RunResult(values={"bits per byte": 1.5 + (20 + seed / 100) * weights**-0.3}) for seed in (1, 2)},
        )
        for size in sizes
    ]
    ladder_report.write_ladder(folder, "bits per byte", 20.0, rungs)


def ablation(folder: Path) -> None:
    runs = {
        change: {seed: RunResult(values={"bits per byte": loss + seed / 10}, built=("train",)) for seed in (1, 2)}
        for change, loss in (("base", 3.0), ("wide", 2.0))
    }
    ablation_report.write_ablation(folder, runs, {"wide": {"train.model.width": 64}}, ("train.seed",))


def parts(folder: Path) -> None:
    def line(part: str, more: float) -> dict[str, Any]:
        of = {"parameters": 90, "bits_per_byte": 2 + more, "more": more, "stderr": 0.1}
        return {"part": part, "kind": "head", **of}

    curves = {"head": [line("whole", 0.0), line("1 head", 0.25)], "layer": [line("whole", 0.0)]}
    whole = {"run_id": "run", "parameters": 100, "bits_per_byte": 2.0, "documents": 3, "bytes": 1000}
    components_report.write_components({**whole, "alone": [line("layer 0 head 0", 0.25)], "curves": curves}, folder)


@pytest.mark.parametrize("write", [ladder, ablation, parts])
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_of_many_runs_are_drawn_too(browser: Any, tmp_path: Path, write: Any, width: int) -> None:
    write(tmp_path)
    (page,) = tmp_path.rglob("*.html")
    shown, wrong = opened(browser, page, width, "light")
    assert shown.query_selector_all(".plot .main-svg")
    assert shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shown.screenshot(path=Path(os.environ.get("BESSEMER_SCREENSHOTS", tmp_path)) / f"{write.__name__}-{width}.png")
    assert wrong == []


def test_a_point_of_the_loss_leads_to_the_documents_of_its_step(made_run: Any, browser: Any) -> None:
    shown, wrong = opened(browser, write_page(made_run.folder, made_run.root), 1440, "light")
    assert not shown.is_visible("#step-7")
    shown.evaluate("document.getElementById('figure-training').emit('plotly_click', { points: [{ customdata: 7 }] })")
    assert shown.is_visible("#step-7 .example")
    assert "bessemer data step 20270115T080000Z-abcdef 7 --root" in shown.inner_text("#step-command")
    assert [one.get_attribute("data-step") for one in shown.query_selector_all("details.step[open]")] == ["7"]
    assert wrong == []


def test_print_is_light_and_has_every_picture(made_run: Any, browser: Any, tmp_path: Path) -> None:
    shown, wrong = opened(browser, write_page(made_run.folder, made_run.root), 1440, "dark")
    shown.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    paper = "getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()"
    assert shown.evaluate(paper) == "#ffffff"
    assert shown.evaluate("[...document.querySelectorAll('.plot .main-svg')].every(one => one.clientWidth <= 660)")
    shown.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert shown.evaluate(paper) == "#151413"
    printed = shown.pdf(path=tmp_path / "page.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert wrong == []
