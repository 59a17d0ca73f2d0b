"""How often the guard may have gone back in a training that is reused."""

from dataclasses import dataclass

from model.errors import Numerics
from tasks.artifacts.limits import Limits
from tasks.artifacts.report import StageReport


@dataclass(frozen=True)
class RollbackLimits(Limits):
    """At most `most_rollbacks` ways back of the guard between two words of a person, as while it trains."""

    most_rollbacks: int

    def check(self, report: StageReport) -> None:
        """Raise Numerics where the guard went back more often."""
        most = in_a_row = 0
        for decision in report.facts.get("decisions", ()):
            in_a_row = 0 if decision["by"] == "hand" else in_a_row + 1
            most = max(most, in_a_row)
        if most > self.most_rollbacks:
            raise Numerics(
                f"train: training diverged, and the guard has gone back {most} times, where train.guard.most_rollbacks"
                f" is {self.most_rollbacks}. Raise it to take this model, or lower train.schedule.peak_lr."
            )
