"""How many rollbacks of the guard a training that is reused may have."""

from dataclasses import dataclass

from model.errors import Numerics
from tasks.artifacts.limits import Limits
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import TrainResult


@dataclass(frozen=True)
class RollbackLimits(Limits):
    """At most `most_rollbacks` rollbacks of the guard between two manual interventions, as during training."""

    most_rollbacks: int

    def check(self, report: StageReport) -> None:
        """Raise Numerics where the guard rolled back more often."""
        most = in_a_row = 0
        for decision in TrainResult.of(report).decisions or ():
            in_a_row = 0 if decision["by"] == "hand" else in_a_row + 1
            most = max(most, in_a_row)
        if most > self.most_rollbacks:
            raise Numerics(
                f"train: training diverged, and the guard rolled back {most} times, where train.guard.most_rollbacks is"
                f" {self.most_rollbacks}. Raise it to accept this model, or lower train.schedule.peak_lr."
            )
