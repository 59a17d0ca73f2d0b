"""Progress of a run in a terminal: one bar for each stage, why the stage runs, and its outcome."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from flows.metrics.escaping import escape_output, escaped
from tasks.artifacts.artifact import ACCEPTED, BUILT, REPRODUCED, REUSED, Artifact
from tasks.artifacts.build import ProgressListener

QUIET_SECONDS = 10.0
"""Seconds between progress lines where no bar can be drawn, as in a log or a pipe."""

OUTCOME_STYLES = {BUILT: "green", REUSED: "cyan", ACCEPTED: "yellow", REPRODUCED: "magenta"}


class ProgressBars(ProgressListener):
    """Show live bars in a terminal and plain lines elsewhere; a context manager around a run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = _Bars(
            SpinnerColumn(finished_text="[green]ok"),
            TextColumn("{task.description:<15}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}
        self._label_width = len("decontaminate ")

    def __enter__(self) -> "ProgressBars":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def progress(self, stage: str, done: int, total: int | None, unit: str) -> None:
        if not self.console.is_terminal:
            now = time.monotonic()
            if now - self._last_line.setdefault(stage, now) >= QUIET_SECONDS:
                self._last_line[stage] = now
                self._print(stage, Text(f"{done:,}{f' of {total:,}' if total else ''} {unit}", style="dim"))
            return
        if stage not in self._bars:
            self._bars[stage] = self._progress.add_task(stage, total=total, unit=unit)
        self._progress.update(self._bars[stage], completed=done, total=total, unit=unit)

    def note(self, stage: str, sentence: str) -> None:
        self._print(stage, Text(escaped(sentence), style="dim"))

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        if stage in self._bars:
            self._progress.remove_task(self._bars.pop(stage))
        text = Text(f"{artifact.outcome} ", style=OUTCOME_STYLES[artifact.outcome])
        text.append(f"{artifact.identity[:12]} in {seconds:.1f} s", style="dim")
        self._print(stage, text)

    def _print(self, stage: str, text: Text) -> None:
        # Names of trials in searches and ablations are longer than those of stages.
        self._label_width = max(self._label_width, len(stage))
        line = Text(f"{stage:<{self._label_width}} ", style="bold")
        line.append_text(text)
        self._progress.console.print(line)


class _Bars(Progress):
    """Progress bars that escape control sequences in all output printed while they are drawn."""

    def start(self) -> None:
        super().start()
        if not self.disable:
            escape_output()


@contextmanager
def bytes_bar(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of bytes with rate and time left, and yield its `progress(done, total)`; silent without a terminal."""
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)
