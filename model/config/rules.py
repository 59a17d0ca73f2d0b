"""What settings ask of each other, and those that nothing would look at: told before the first step, with the cure.

Without PyTorch: recipes are checked by it.

What cannot be laid out over ranks is told before the first step, with the cure. Without PyTorch: recipes are checked
by it.

Whether a run can go on from a trained network under its settings, told without opening the weights.
"""

from pathlib import Path

from model.config import BaseConfig
from model.config.fields import TrainFields
from model.config.network import GPTConfig, NetworkConfig, times_as_wide
from model.config.options import LengthWarmupConfig, ScheduleConfig
from model.errors import RecipeError


def check_unused_settings(train: TrainFields) -> None:
    """Raises ValueError for a setting that means something only beside another value of a second one."""
    if train.dtype != "float16" and _is_set(train, "loss_scale"):
        raise ValueError(
            f"loss_scale is set, and dtype is {train.dtype}: only the loss of float16 is scaled, whose small gradients"
            f" would become zero. Leave loss_scale out, or set dtype = float16"
        )
    if train.engine != "deepspeed" and _is_set(train, "zero_stage"):
        raise ValueError(
            f"zero_stage is {train.zero_stage}, and engine is {train.engine}, which spreads nothing over the ranks."
            f" Leave zero_stage out, or set engine = deepspeed"
        )
    if train.trainable == "new_rows" and train.optimizer.kind == "muon":
        raise ValueError(
            "optimizer.kind is muon, which steps the matrices within blocks, and trainable = new_rows leaves them as"
            " they are. Set optimizer.kind = adamw, lamb or sgd, or trainable = all"
        )


def check_consistency(model: NetworkConfig, train: TrainFields) -> None:
    """Raises ValueError where a network and how it is trained do not go together."""
    check_warmup(model, train.schedule)
    check_layout(model, train)
    check_lengths(model, train.length_warmup)
    check_network_settings(model, train)
    check_transfer(model, train)


def check_transfer(model: NetworkConfig, train: TrainFields) -> None:
    """Raises ValueError where a rate is to hold for another width, and the optimizer has other rules than Adam's."""
    if times_as_wide(model) != 1.0 and train.optimizer.kind != "adamw":
        raise ValueError(
            f"model.mup_base_width scales rates by the rules for AdamW, and optimizer.kind is {train.optimizer.kind}."
            f" Set optimizer.kind = adamw, or leave model.mup_base_width out"
        )


def check_network_settings(model: NetworkConfig, train: TrainFields) -> None:
    """Raises ValueError for a setting that networks of another kind alone look at."""
    if model.architecture != "bert" and _is_set(train, "masked_share"):
        raise ValueError(
            f"masked_share is {train.masked_share:g}, and a {model.architecture} has no hidden tokens: it is of a bert"
            f" alone. Leave masked_share out, or set model.architecture = bert"
        )


def _is_set(train: TrainFields, name: str) -> bool:
    return getattr(train, name) != type(train).model_fields[name].default


def check_warmup(model: NetworkConfig, schedule: ScheduleConfig) -> None:
    """Raises ValueError for a warm-up beside T-Fixup, whose point is to need none (Huang et al. 2020)."""
    if isinstance(model, GPTConfig) and model.init == "t_fixup" and schedule.warmup_share:
        raise ValueError(
            f'model.init = "t_fixup" trains without warm-up, and schedule.warmup_share is {schedule.warmup_share:g}.'
            f" Set schedule.warmup_share = 0, or another init"
        )


def check_lengths(model: NetworkConfig, warmup: LengthWarmupConfig) -> None:
    """Raises ValueError where rows cannot grow from the length that is asked for to the model's context."""
    if not warmup.share:
        return
    if model.architecture != "gpt":
        raise ValueError(
            f"length_warmup.share is {warmup.share:g}, and rows of a {model.architecture} mean something as a whole:"
            f" two stretches to compare, holes and what fills them. No piece of one is a row. Leave length_warmup"
            f" out. Short rows cannot come first in a run of their own either: one that goes on from its model"
            f" (base_model) keeps its context"
        )
    pieces, left = divmod(model.context, warmup.start_length)
    if left or pieces & (pieces - 1) or not pieces:
        raise ValueError(
            f"length_warmup.start_length {warmup.start_length} does not double up to model.context {model.context};"
            f" choose the context divided by 2, 4, 8 and so on"
        )


def check_ranks(train: TrainFields) -> None:
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


def check_layout(model: NetworkConfig, train: TrainFields) -> None:
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


INDEPENDENT_SETTINGS = ("vocab_size", "dropout", "z_loss", "init", "init_std")
"""Settings of a network that say nothing of the shape or meaning of its weights, or that are looked at apart."""


def check_compatible_architecture(folder: Path, found: BaseConfig, asked: BaseConfig) -> None:
    """Raise RecipeError where the network `found` in `folder` is not the one `asked` for; tells all that is to be
    set."""
    if type(found) is not type(asked):
        has, wanted = (getattr(one, "architecture", "another network") for one in (found, asked))
        raise RecipeError(
            f"the model in {folder} is a {has}, and this run asks for a {wanted}. Set train.model.architecture ="
            f' "{has}" and the rest of train.model as it was trained.'
        )
    other = {
        name: getattr(found, name)
        for name in type(found).model_fields
        if name not in INDEPENDENT_SETTINGS and getattr(found, name) != getattr(asked, name)
    }
    if other:
        has = ", ".join(f"{name} = {value}" for name, value in other.items())
        wanted = ", ".join(str(getattr(asked, name)) for name in other)
        cure = ", ".join(f"train.model.{name} = {value}" for name, value in other.items())
        raise RecipeError(
            f"the model in {folder} has {has}, and this run asks for {wanted}. Set {cure}, as it was trained."
        )
