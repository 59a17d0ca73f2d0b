"""Which of all ranks a machine has in one launch, and how they find the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A machine among those that are there."""

    first: int
    """Its first rank; it has those behind it, up to `local` of them."""
    local: int
    size: int
    """Ranks of all machines together."""
    hosts: int = 1
    """Machines that are there."""
    store: str | None = None
    """`HOST:PORT/PREFIX` of the store through which ranks find each other; None where all are on this machine."""

    @property
    def ranks(self) -> range:
        """The machine's own."""
        return range(self.first, self.first + self.local)
