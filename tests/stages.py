"""What stages declare."""

import importlib

from tasks.artifacts.build import Stage


def roots_of(stage: str) -> tuple[str, ...]:
    """Return the roots of the code that counts for a stage."""
    module = importlib.import_module(f"tasks.{stage}.stage")
    (declared,) = (value for value in vars(module).values() if isinstance(value, Stage))
    return declared.roots
