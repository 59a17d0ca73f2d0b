"""A training that pauses: it came as far as it was asked to, and left a checkpoint from which it goes on.

Whoever compares many trainings stops the worse ones early and lets the better ones go on (Jamieson and Talwalkar 2016,
successive halving). A pause is no part of what is trained: paused or not, the same weights come out, bit for bit.
"""


class Paused(Exception):
    """No error: training paused after `step` of `steps` steps, where its loss was `loss` nats (None where unknown)."""

    def __init__(self, step: int, steps: int, loss: float | None) -> None:
        super().__init__(step, steps, loss)
        self.step = step
        self.steps = steps
        self.loss = loss

    def __str__(self) -> str:
        return f"paused after step {self.step} of {self.steps}; a checkpoint was written, from which training goes on"
