"""What cannot be laid out over ranks is told before the first step, with the cure. Without PyTorch: recipes are checked
by it."""

from typing import TYPE_CHECKING

from model.architecture import NetworkConfig

if TYPE_CHECKING:
    from model.config import TrainConfig


def check_ranks(train: "TrainConfig") -> None:
    """Raises ValueError where ranks, engine and optimizer do not go together, whatever the network."""
    together = train.tensor_parallel * train.pipeline_parallel
    if together == 1:
        return
    if train.engine == "deepspeed":
        raise ValueError(
            "tensor_parallel and pipeline_parallel are the native engine's, and DeepSpeed's ZeRO spreads the model over"
            " the ranks in a way of its own. Set engine = native, or leave both out"
        )
    if train.ranks % together:
        more = -(-train.ranks // together) * together
        raise ValueError(
            f"tensor_parallel {train.tensor_parallel} times pipeline_parallel {train.pipeline_parallel} are the"
            f" {together} processes that hold one copy of the model, and ranks is {train.ranks}. Set ranks = {more}"
        )
    if train.trainable == "new_rows":
        raise ValueError(
            "trainable = new_rows trains one small table, which is not cut up. Leave tensor_parallel and"
            " pipeline_parallel out: ranks alone share the batch"
        )
    if train.tensor_parallel > 1 and train.optimizer.kind in ("lamb", "muon"):
        raise ValueError(
            f"optimizer.kind {train.optimizer.kind} looks at whole matrices, and tensor_parallel cuts them. Set"
            f" pipeline_parallel = {train.tensor_parallel} instead, which leaves them whole, or optimizer.kind = adamw"
            f" or sgd"
        )


def check_layout(model: NetworkConfig, train: "TrainConfig") -> None:
    """Raises ValueError where the network cannot be shared as asked."""
    tensor, stages = train.tensor_parallel, train.pipeline_parallel
    if model.heads % tensor:
        fitting = max(n for n in range(1, tensor + 1) if model.heads % n == 0)
        raise ValueError(
            f"tensor_parallel {tensor} does not divide model.heads {model.heads}, and a head is not cut. Set"
            f" tensor_parallel = {fitting}, or model.heads to a multiple of {tensor}"
        )
    if tensor > 1 and model.dropout:
        raise ValueError(
            f"model.dropout is {model.dropout:g}, and ranks that cut matrices (tensor_parallel {tensor}) would have to"
            f" drop the same of the stream and something else of each head. Set model.dropout = 0, or pipeline_parallel"
            f" instead of tensor_parallel"
        )
    blocks, where = model.layers, "model.layers"
    if model.architecture == "t5":
        blocks, where = 2 * model.layers, "the blocks of encoder and decoder"
    if blocks < stages:
        raise ValueError(
            f"pipeline_parallel {stages} asks for more stages than there are blocks: {where} are {blocks}. Set"
            f" pipeline_parallel = {blocks} at most, or more layers"
        )
