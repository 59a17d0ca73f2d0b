"""Which part of each weight a rank holds: by tensor rank, pipeline stage and data rank.

Matrices are divided among tensor ranks (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3): queries,
keys and values by heads, the MLP's first matrices by hidden units, output projections by the same units, tables of the
vocabulary by tokens. Blocks are divided among pipeline stages (`model/nn/stages.py`). With FSDP what is left is divided
among data ranks by rows.

Ranks that divide the same matrices communicate most and have neighbouring numbers; ranks of successive stages
communicate least, and are farthest apart (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 3.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.config.network import NetworkConfig
from model.config.train import TrainConfig
from model.distributed.process_group import rank_rows
from model.engines.base import Box
from model.nn.stages import stages_holding

COLUMN_PARALLEL = (
    *(f"{kind}attention_{part}" for kind in ("", "cross_") for part in ("query", "key", "value")),
    "mlp_gate",
    "mlp_in",
)
"""Layers whose outputs are divided."""

ROW_PARALLEL = ("attention_out", "cross_attention_out", "mlp_out")
"""Layers whose inputs are divided."""


@dataclass(frozen=True)
class Place:
    """The place of a rank in a layout."""

    train: TrainConfig
    rank: int

    @property
    def tensor(self) -> int:
        """Number among the ranks that divide the same matrices."""
        return self.rank % self.train.tensor_parallel

    @property
    def data(self) -> int:
        """Number of the copy of the model."""
        return self.train.replica(self.rank)

    @property
    def stage(self) -> int:
        """Number of the pipeline stage."""
        return self.rank // (self.train.tensor_parallel * self.train.data_parallel)

    def part(self, name: str, shape: Sequence[int]) -> Box:
        """Return the part of a weight of its stage that the rank holds, as `torch.chunk` divides."""
        box = [slice(0, length) for length in shape]
        dimension = sharded_dimension(name)
        if dimension is not None:
            box[dimension] = slice(*rank_rows(shape[dimension], self.tensor, self.train.tensor_parallel))
        if self.train.engine == "fsdp":
            begin, end = rank_rows(box[0].stop - box[0].start, self.data, self.train.data_parallel)
            box[0] = slice(box[0].start + begin, box[0].start + end)
        return tuple(box)

    def is_writer(self, name: str, config: NetworkConfig) -> bool:
        """Return whether this rank's part of a weight is the first of its copies."""
        is_first = self.data == 0 or self.train.engine == "fsdp"
        is_part = self.tensor == 0 or sharded_dimension(name) is not None
        return is_first and is_part and self.stage == stages_holding(name, config, self.train.pipeline_parallel)[0]


def sharded_dimension(name: str) -> int | None:
    """Return the dimension of a weight that tensor ranks divide; None where each holds it whole."""
    module, _, kind = name.rpartition(".")
    layer = module.rpartition(".")[2] or name
    if layer in COLUMN_PARALLEL or layer in ("embedding", "head", "head_bias", "masked_head_bias"):
        return 0
    if (layer in ROW_PARALLEL and kind == "weight") or layer.endswith("_distances"):
        return 1
    return None
