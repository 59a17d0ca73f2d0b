"""The machines that train one model together; which ranks are on which changes no bit of the result."""

from typing import Annotated

from pydantic import Field, model_validator

from model.strict import Reach, Strict


class HostsConfig(Strict):
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
