"""Where a rank stands among data x tensor x pipeline (Narayanan et al. 2021, section 3.1).

Ranks that cut the same matrices talk most, four times a block, and have neighbouring numbers; ranks of following stages
talk least, and are farthest apart.
"""

from dataclasses import dataclass
from functools import partial

from torch.distributed.device_mesh import init_device_mesh

from model.config import TrainConfig
from model.ranks import Ranks


@dataclass(frozen=True)
class Layout:
    """One rank, seen from each of the groups that it belongs to."""

    data: Ranks
    """Ranks that hold the same part of the model and read other rows."""
    tensor: Ranks
    """Ranks that hold other parts of the same matrices and read the same rows."""
    pipeline: Ranks
    """Ranks that hold other layers and read the same rows, in the order of the layers."""


def world_rank(train: TrainConfig, stage: int, data: int, tensor: int) -> int:
    """Number of the rank with these places among all."""
    return (stage * train.data_parallel + data) * train.tensor_parallel + tensor


def lay_out(train: TrainConfig, device: str) -> Layout:
    """Make the groups; all ranks call it together, once."""
    sizes = (train.pipeline_parallel, train.data_parallel, train.tensor_parallel)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    groups = {name: mesh.get_group(name) for name in ("data", "tensor", "pipeline")}
    made = {name: partial(Ranks, mesh.get_local_rank(name), mesh[name].size()) for name in groups}
    return Layout(**{name: made[name](group=group) for name, group in groups.items()})
