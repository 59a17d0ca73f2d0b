"""What the supervisor does where ranks fail; changes no bit of the result unless ranks are missing for a while."""

from pydantic import Field

from model.strict import Strict


class RestartsConfig(Strict):
    """When failed ranks are started again from the last checkpoint, and how often."""

    most: int = Field(default=8, ge=0, le=1000)
    """Restarts in a row without a new checkpoint after which training is given up; 0: none at all. Only a failing
    machine is worth one: killed processes, memory, disk, hangs."""
    pause_seconds: float = Field(default=1.0, ge=0)
    """Seconds before the first restart in a row; each further one waits twice as long, up to a minute."""
    fewer_ranks: bool = False
    """Whether copies of the model go on without a rank that fails again and again, until the next checkpoint. Sums over
    fewer ranks have other last bits, so the model is then no longer `exact`."""
