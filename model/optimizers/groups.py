"""Which parameters are treated alike: matrices, the hidden ones among them, and all that is no matrix or a table."""

from dataclasses import dataclass

from torch import nn

TABLES = ("embedding", "new_rows")
"""Names of what is looked up begin so, in all networks."""


@dataclass(frozen=True)
class Groups:
    """Everything in a network that learns, in the order of its parameters."""

    matrices: list[nn.Parameter]
    """Decayed and penalised: all matrices but tables that are looked up."""
    hidden: list[nn.Parameter]
    """Those of the matrices that stand in blocks: neither embedding nor head."""
    others: list[nn.Parameter]
    """Norms, biases, and tables that are looked up."""


def grouped(network: nn.Module) -> Groups:
    """The parameters of a network by how they are treated; what does not learn is in no group."""
    learning = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    matrices = {name: p for name, p in learning if p.dim() >= 2 and not name.startswith(TABLES)}
    return Groups(
        matrices=list(matrices.values()),
        hidden=[p for name, p in matrices.items() if name.partition(".")[0].endswith("blocks")],
        others=[p for name, p in learning if name not in matrices],
    )
