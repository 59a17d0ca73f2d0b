"""The pilot's bars: live while a stage works, and only the notes that change what the plan means."""

from flows.terminal import ProgressBars
from tasks.artifact import Artifact


class PilotBars(ProgressBars):
    """Bars without the sentences that a run would leave on the screen."""

    def note(self, stage: str, sentence: str) -> None:
        if not sentence.startswith("building "):
            super().note(f"pilot {stage}", sentence)

    def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
        if stage in self._bars:
            self._progress.remove_task(self._bars.pop(stage))
