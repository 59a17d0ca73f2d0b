"""Settings of the executor: threads or processes of this machine, or a Dask cluster."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import Reach
from tasks.common.config import StrictConfig

AUTO, THREADS, PROCESSES, DASK = "auto", "threads", "processes", "dask"


class Machines(StrictConfig):
    """What processes the parts of a stage. It changes no byte of the result."""

    executor: Literal["auto", "threads", "processes", "dask"] = AUTO
    """`auto` uses the cluster if an address is given, else threads for stages that spend their time in compiled code
    and processes for the others; `dask` gives parts to the workers of a Dask cluster, which must see the artifact root
    under the same path."""

    address: Annotated[str | None, Reach.MACHINE] = Field(default=None, pattern=r"^(tcp|tls|ws|wss|ucx)://.+")
    """Address of the Dask cluster's scheduler, such as `tcp://10.0.0.1:8786`."""

    @model_validator(mode="after")
    def _address_fits(self) -> "Machines":
        if self.executor == DASK and self.address is None:
            raise ValueError('executor = "dask" needs the address of a scheduler: address = "tcp://10.0.0.1:8786"')
        if self.executor in (THREADS, PROCESSES) and self.address is not None:
            raise ValueError(f'address names a Dask cluster, and executor = "{self.executor}" uses none; set "dask"')
        return self

    def kind(self, *, in_threads: bool) -> str:
        """Return `threads`, `processes` or `dask`; `in_threads` says whether `auto` means threads."""
        if self.executor != AUTO:
            return self.executor
        if self.address is not None:
            return DASK
        return THREADS if in_threads else PROCESSES

    @property
    def is_cluster(self) -> bool:
        """Whether other machines write into the build's folder."""
        return self.address is not None
