"""Where a stage's parts are worked on: threads or processes of this machine, or a Dask cluster of many."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import Reach
from tasks.common.config import StrictConfig

AUTO, THREADS, PROCESSES, DASK = "auto", "threads", "processes", "dask"


class Machines(StrictConfig):
    """What works on the parts of a stage. It changes no byte of the result."""

    executor: Literal["auto", "threads", "processes", "dask"] = AUTO
    """`auto` takes the cluster where an address is given, else threads where a stage's time goes into compiled code and
    processes elsewhere; `dask` hands parts to the workers of a Dask cluster, which see the artifact root under the same
    path."""

    address: Annotated[str | None, Reach.MACHINE] = Field(default=None, pattern=r"^(tcp|tls|ws|wss|ucx)://.+")
    """Address of the Dask cluster's scheduler, such as `tcp://10.0.0.1:8786`."""

    @model_validator(mode="after")
    def _address_fits(self) -> "Machines":
        if self.executor == DASK and self.address is None:
            raise ValueError('executor = "dask" needs the address of a scheduler: address = "tcp://10.0.0.1:8786"')
        if self.executor in (THREADS, PROCESSES) and self.address is not None:
            raise ValueError(f'address names a Dask cluster, and executor = "{self.executor}" uses none; say "dask"')
        return self

    def kind(self, *, in_threads: bool) -> str:
        """`threads`, `processes` or `dask`; `in_threads` says whether `auto` means threads."""
        if self.executor != AUTO:
            return self.executor
        if self.address is not None:
            return DASK
        return THREADS if in_threads else PROCESSES

    @property
    def is_cluster(self) -> bool:
        """Whether others than this machine write into the build's folder."""
        return self.address is not None
