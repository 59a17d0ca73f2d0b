"""Limits that only end a stage. They change nothing of what a stage gives, so that they count in no identity.

A build asks while parts finish, in their order whoever works on them, and ends once no later part could help. It asks
again before it publishes, and of an artifact that is reused: a limit that was lowered since holds for it too.
"""

from tasks.artifacts.report import StageReport


class Limits:
    """What ends a stage; these let everything pass."""

    def check_so_far(self, report: StageReport) -> None:
        """Raise GuardError where the first parts, whose report this is, pass a limit whatever the others say."""

    def check(self, report: StageReport) -> None:
        """Raise GuardError where a whole stage, whose report this is, passes a limit."""
