"""The machines that train one model together; which ranks are on which changes no bit of the result.

What the supervisor does where ranks fail; changes no bit of the result unless ranks are missing for a while.
"""

from typing import Annotated

from pydantic import Field, model_validator

from model.config import BaseConfig, Reach


class HostsConfig(BaseConfig):
    """Ranks spread evenly over several machines that see the same files."""

    count: int = Field(default=1, ge=1, le=4096)
    """Machines; `ranks` are those of all together."""
    address: Annotated[str | None, Reach.MACHINE] = Field(default=None, pattern=r"^[^\s:]+:\d{1,5}$")
    """`HOST:PORT` where the machines find each other. The first of them has this address and listens there."""
    wait_seconds: float = Field(default=30.0, gt=0)
    """With `restarts.fewer_ranks`: seconds that those who are there wait for the others before they go on alone."""
    silence_seconds: float = Field(default=15.0, gt=0)
    """Seconds without a sign after which a machine counts as gone."""

    @model_validator(mode="after")
    def _several_meet_somewhere(self) -> "HostsConfig":
        if self.count > 1 and self.address is None:
            raise ValueError("several hosts need an `address`, HOST:PORT of the first of them, where they meet")
        if self.count == 1 and self.address is not None:
            raise ValueError("a single host meets nobody; leave `address` out, or set `count`")
        return self


class RestartsConfig(BaseConfig):
    """When failed ranks are started again from the last checkpoint, and how often."""

    most: int = Field(default=8, ge=0, le=1000)
    """Restarts in a row without a new checkpoint after which training is given up; 0: none at all. Only a failing
    machine is worth one: killed processes, memory, disk, hangs."""
    pause_seconds: float = Field(default=1.0, ge=0)
    """Seconds before the first restart in a row; each further one waits twice as long, up to a minute."""
    fewer_ranks: bool = False
    """Whether copies of the model go on without a rank that fails again and again, until the next checkpoint. Sums over
    fewer ranks have other last bits, so the model is then no longer `exact`."""
