"""Settings of the launch: machines, and restarts of failed ranks.

They change no bit of the result, unless training continues with fewer ranks for a while.
"""

from typing import Annotated

from pydantic import Field, model_validator

from model.config import BaseConfig, Reach


class HostsConfig(BaseConfig):
    """Ranks spread evenly over several machines that see the same files."""

    count: int = Field(default=1, ge=1, le=4096)
    """Machines; `ranks` counts those of all machines."""
    address: Annotated[str | None, Reach.MACHINE] = Field(default=None, pattern=r"^[^\s:]+:\d{1,5}$")
    """`HOST:PORT` of the first machine, which listens there for the others."""
    wait_seconds: float = Field(default=30.0, gt=0)
    """With `restarts.fewer_ranks`: seconds that machines wait for missing ones before they continue without them."""
    silence_seconds: float = Field(default=15.0, gt=0)
    """Seconds without a heartbeat after which a machine counts as lost."""

    @model_validator(mode="after")
    def _several_hosts_have_an_address(self) -> "HostsConfig":
        if self.count > 1 and self.address is None:
            raise ValueError("several hosts need an `address`, HOST:PORT of the first of them")
        if self.count == 1 and self.address is not None:
            raise ValueError("a single host needs no `address`; leave it out, or set `count`")
        return self


class RestartsConfig(BaseConfig):
    """When failed ranks are restarted from the last checkpoint, and how often."""

    most: int = Field(default=8, ge=0, le=1000)
    """Restarts without a new checkpoint after which training fails; 0: no restarts. Only failures of the machine are
    retried: killed processes, memory, disk, hangs."""
    pause_seconds: float = Field(default=1.0, ge=0)
    """Seconds before the first restart; each further one without a new checkpoint waits twice as long, up to a
    minute."""
    fewer_ranks: bool = False
    """Whether training continues without a replica (the `tensor_parallel` times `pipeline_parallel` ranks that compute
    one share of the batch) or a host that fails repeatedly, and takes it back after the next checkpoint. Sums over
    fewer ranks have other last bits, so the model is then not `exact`."""
