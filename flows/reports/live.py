"""The page of a run while it works: `page.html` from its beginning, which the report of the run replaces at its end.

The page loads the script `live.js` beside it every two seconds, because browsers load scripts from `file:` addresses,
and nothing else. A thread of the run writes that script, atomically: what the run's listener heard, and what the
trainer wrote to `train.log`. The page is a view of the run: a failure here never ends it. A script that is no longer
renewed means that the process was killed, and the page says so.
"""

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from flows.metrics.formatting import format_count, format_duration
from flows.metrics.stage_lines import SKIPPED, TO_COME, UNDER_WAY, asked_stages, stage_result, stages_of
from flows.reports.charts.figure import thin
from flows.reports.page.page import address, write_run_page
from flows.reports.page.render import environment, fill, inline_script
from flows.reports.run_list import write_run_list
from flows.runs.context import CURRENT_LISTENER, heard_by
from flows.runs.record import PAGE, RunData
from model.distributed.messages import Message, Sample, StepDone
from model.files import write_atomically
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener
from tasks.tokenizer.open import open_tokenizer
from tasks.train.stage import LOG_FILE

if TYPE_CHECKING:
    from flows.runs.run import StageRun
    from tasks.tokenizer.base import Tokenizer

log = logging.getLogger(__name__)

SCRIPT = "live.js"

SECONDS = 2.0
"""Between two versions of the script."""

SHARE = 0.01
"""Most of the time that writing the script may take; the pause grows with the writing."""

SILENCE_SECONDS = 60
"""Age of the script from which on the page says that the run was interrupted."""

MAX_POINTS = 2000
"""Points that are kept of a curve; of more, every second is left out."""

MAX_SAMPLES, SHOWN_SAMPLES, MAX_NOTES = 64, 4, 6

CURVE_WIDTH, CURVE_HEIGHT, CURVE_POINTS = 600, 160, 300

TINY = 1e-6
"""Least value that a logarithmic axis shows."""

COLOURS = 8
"""Colours that `style.css` has for lines."""


@dataclass(frozen=True)
class Line:
    """A line of a chart: its number of a colour, and points (x, y)."""

    colour: int
    points: Sequence[tuple[float, float]]
    pale: bool = False


@dataclass
class _Work:
    """Progress of a stage; `first` is when and at which count it was first heard of."""

    done: int
    total: int | None
    unit: str
    first: tuple[float, int]


@dataclass(frozen=True)
class StageProgress:
    """A line of the page's list of stages; `left` and `share` are of what is known to be there."""

    name: str
    state: str
    amount: str = ""
    seconds: float | None = None
    share: float | None = None
    left: float | None = None


@dataclass
class _Training:
    """What the trainer wrote to its log."""

    last: StepDone | None = None
    losses: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    held_out: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    bits: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    samples: list[Sample] = field(default_factory=list[Sample])
    read_bytes: int = 0

    def read(self, path: Path) -> None:
        """Read the lines that were written since the last call."""
        if not path.is_file():
            return
        with path.open("rb") as stream:
            stream.seek(self.read_bytes)
            whole, end, _ = stream.read().rpartition(b"\n")
        self.read_bytes += len(whole) + len(end)
        for line in whole.splitlines():
            if line.startswith(b'{"kind"'):
                with suppress(ValueError, KeyError):
                    self._take(json.loads(line))

    def _take(self, message: Message) -> None:
        if message["kind"] == "step":
            self.last = message
            _add(self.losses, message["step"], message["loss"])
        elif message["kind"] == "validation":
            rows = message["rows"]
            nats = [found for row in rows if (found := row["nats_per_token"]) is not None]
            if rows and len(nats) == len(rows):
                _add(self.held_out, message["step"], sum(nats) / len(nats))
            for row in rows:
                if row["bits_per_byte"] is not None:
                    _add(self.bits.setdefault(row["source"], []), message["step"], row["bits_per_byte"])
        elif message["kind"] == "sample":
            self.samples.append(message)
            if len(self.samples) > MAX_SAMPLES:
                self.samples[:] = self.samples[::2]
        elif message["kind"] == "event" and message["event"] == "rollback":
            for points in (self.losses, self.held_out, *self.bits.values()):
                points[:] = [point for point in points if point[0] <= message["to_step"]]


def _add(points: list[tuple[float, float]], x: float, y: float) -> None:
    if math.isfinite(y):
        points.append((x, y))
    if len(points) > MAX_POINTS:
        points[:] = points[::2]


class LivePage(ProgressListener):
    """Writes the page of one run while it works, and passes all calls on to another listener."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener
        self._record: RunData
        self._folder = Path()
        self._work: dict[str, _Work] = {}
        self._made: dict[str, StageProgress] = {}
        self._notes: list[str] = []
        self._training = _Training()
        self._vocab: Artifact | None = None
        self._tokenizer: Tokenizer | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="live-page", daemon=True)

    def begin(self, run: "StageRun") -> None:
        """Write the page of a run that begins, and keep its script up to date from here on."""
        self._record, self._folder = run.record.data, run.folder
        begin_page(self._folder, self._record["recipe_name"], self._record["started"], self._now())
        self._thread.start()

    def end(self, run: "StageRun") -> Path:
        """Write the report of the run in place of the page, and the list of the root's runs; return the report's
        path."""
        self.close()
        page = write_run_page(run)
        with _view_only():
            _write_script(run.folder, {"page": address(page, run.folder)})
            write_run_list(run.context.root)
        return page

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        known = self._work.get(stage)
        first = known.first if known is not None else (time.time(), done)
        self._work[stage] = _Work(done, total, unit, first)
        last = self._training.last if stage == "train" else None
        self._listener.progress(stage, done, total, unit if last is None else f"{unit}, loss {last['loss']:.2f}")

    def note(self, stage: str, sentence: str) -> None:
        self._notes = [f"{stage}: {sentence}", *self._notes[: MAX_NOTES - 1]]
        self._listener.note(stage, sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        result = stage_result(stage, artifact, artifact.report)
        amount = f"{result['amount']:,} {result['unit']}"
        self._made[stage] = StageProgress(stage, artifact.outcome, amount, seconds, share=1.0)
        if stage == "vocab":
            self._vocab = artifact
        self._listener.finished(stage, artifact, seconds)

    def _keep_writing(self) -> None:
        with _view_only():
            pause = 0.0
            while not self._ended.wait(pause):
                began = time.thread_time()
                self._training.read(self._folder / LOG_FILE)
                _write_script(self._folder, {"at": time.time(), "html": str(self._now())})
                pause = min(max(SECONDS, (time.thread_time() - began) / SHARE), SILENCE_SECONDS / 3)

    def _now(self) -> Markup:
        """Return the part of the page that changes."""
        now = time.time()
        made, asked = dict(self._made), asked_stages(self._record)
        at = next((stage for stage in asked if stage not in made), None)
        stages = [self._line(stage, stage in asked, stage == at, now) for stage in stages_of(self._record)]
        training = self._training
        # The latest of the samples, the first, and some between them.
        shown = reversed(thin(len(training.samples), SHOWN_SAMPLES))
        view = {
            "headline": _headline(stages, asked, now - self._record["started"]),
            "stages": stages,
            "training": self._training_view(training.last) if training.last else None,
            "samples": [self._text(training.samples[place]) for place in shown],
            "notes": list(self._notes),
        }
        return Markup(environment().get_template("sections/now.html").render(**view))  # autoescaped

    def _line(self, stage: str, asked: bool, is_current: bool, now: float) -> StageProgress:
        if stage in self._made:
            return self._made[stage]
        work = self._work.get(stage)
        if not is_current or work is None:
            return StageProgress(stage, UNDER_WAY if is_current else TO_COME if asked else SKIPPED)
        seconds = now - work.first[0]
        if not work.total:
            return StageProgress(stage, UNDER_WAY, f"{work.done:,} {work.unit}", seconds)
        newly_done = work.done - work.first[1]
        return StageProgress(
            stage,
            UNDER_WAY,
            f"{work.done:,} of {work.total:,} {work.unit}",
            seconds,
            share=min(work.done / work.total, 1.0),
            left=seconds * (work.total - work.done) / newly_done if newly_done > 0 else None,
        )

    def _training_view(self, last: StepDone) -> dict[str, object]:
        found = self._training
        named = sorted(found.bits.items())
        coloured = [(number % COLOURS, points) for number, (_, points) in enumerate(named)]
        losses = Line(0, found.losses, pale=True), Line(0, _smooth(found.losses)), Line(1, found.held_out)
        return {
            **last,
            "chart": line_chart("training loss and held-out loss by step", losses),
            "held_out": bool(found.held_out),
            "bits": [{"source": source, "value": points[-1][1]} for source, points in named],
            "bits_chart": line_chart("bits per byte of held-out text by step", [Line(*one) for one in coloured]),
        }

    def _text(self, sample: Sample) -> dict[str, object]:
        if self._tokenizer is None:
            assert self._vocab is not None, "training began without a vocabulary"
            self._tokenizer = open_tokenizer(self._vocab)
        special = {self._tokenizer.eos, self._tokenizer.pad}
        prompt, text = (
            [token for token in ids if token not in special] for ids in (sample["prompt"], sample["tokens"])
        )
        written = {"prompt": self._tokenizer.decode(prompt), "text": self._tokenizer.decode_following(text)}
        # A network that has only learnt to end lines would fill the screen.
        return {"step": sample["step"], **{key: re.sub(r"\n{3,}", "\n\n", value) for key, value in written.items()}}


@contextmanager
def live_page() -> Iterator[LivePage]:
    """Keep a page of the run that is started inside this block."""
    page = LivePage(CURRENT_LISTENER.get())
    with closing(page), heard_by(page):
        yield page


def begin_page(folder: Path, name: str, started: float, now: Markup = Markup()) -> None:  # noqa: B008  # immutable
    """Write the page of a run that begins into its folder."""
    with _view_only():
        view = {"name": name, "run_id": folder.name, "started": started, "now": now, "at": time.time()}
        html = fill("live.html", {**view, "silence": SILENCE_SECONDS, "figures": {}})
        write_atomically(folder / PAGE, html.encode("utf-8", errors="replace"))
        _write_script(folder, {"at": time.time(), "html": str(now)})


@contextmanager
def _view_only() -> Iterator[None]:
    """Log what goes wrong: the run goes on without its page."""
    try:
        yield
    except Exception as error:
        log.warning("the live page is not renewed any more; the run goes on: %r", error)


def _write_script(folder: Path, news: dict[str, object]) -> None:
    temporary = folder / f".{SCRIPT}.tmp"
    temporary.write_text(f"bessemerLive({inline_script(news)})\n", encoding="utf-8", errors="replace")
    os.replace(temporary, folder / SCRIPT)  # Not durable: the next version follows in two seconds.


def _headline(stages: Sequence[StageProgress], asked: Sequence[str], seconds: float) -> str:
    current = next((line for line in stages if line.state == UNDER_WAY), None)
    if current is None:
        return f"All stages are done, after {format_duration(seconds)}; the report is being written."
    text = f"Stage {asked.index(current.name) + 1} of {len(asked)}, {current.name}"
    text += f": {current.share:.0%}" if current.share is not None else ""
    text += f", about {format_duration(current.left)} left in it" if current.left is not None else ""
    return f"{text}. Running for {format_duration(seconds)}."


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the mean of each fortieth of the points at its middle: a single step's loss depends much on its rows."""
    width = math.ceil(len(points) / 40) or 1
    parts = [points[start : start + width] for start in range(0, len(points), width)]
    return [(part[len(part) // 2][0], sum(y for _, y in part) / len(part)) for part in parts]


def line_chart(words: str, lines: Sequence[Line]) -> Markup | None:
    """Return lines of positive values over one x axis, and a logarithmic y axis, as HTML whose SVG takes the width of
    its place; None with fewer than two points."""
    shown = [
        (line, [line.points[place] for place in thin(len(line.points), CURVE_POINTS)]) for line in lines if line.points
    ]
    if not any(len(points) > 1 for _, points in shown):
        return None
    x = [point[0] for _, points in shown for point in points]
    y = [point[1] for line, points in shown if not line.pale for point in points]
    low, high = max(min(y), TINY), max(*y, 2 * TINY)
    across, up = CURVE_WIDTH / ((max(x) - min(x)) or 1.0), CURVE_HEIGHT / (math.log(high / low) or 1.0)

    def path(points: Sequence[tuple[float, float]]) -> str:
        places = ((a, min(max(b, low), high)) for a, b in points)
        return " ".join(f"{(a - min(x)) * across:.1f},{math.log(high / b) * up:.1f}" for a, b in places)

    drawn = "".join(
        f'<polyline class="line l{line.colour}{" pale" if line.pale else ""}" points="{path(points)}"/>'
        for line, points in shown
    )
    svg = f'<svg viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}" preserveAspectRatio="none">{drawn}</svg>'
    ticks = f"<span>{high:.3g}</span><span>{math.sqrt(low * high):.3g}</span><span>{low:.3g}</span>"
    ends = f"<span>step {format_count(min(x))}</span><span>step {format_count(max(x))}</span>"
    return Markup(  # numbers and our own words
        f'<div class="curve" role="img" aria-label="{words}"><div class="ticks">{ticks}</div>{svg}'
        f'<div class="ends">{ends}</div></div>'
    )
