"""What settings ask of each other, and those that nothing would look at: told before the first step, with the cure.

Without PyTorch: recipes are checked by it.
"""

from typing import TYPE_CHECKING

from model.architecture import GPTConfig, NetworkConfig, times_as_wide
from model.parallel.checks import check_layout
from model.step_config import LengthWarmupConfig, ScheduleConfig

if TYPE_CHECKING:
    from model.config import TrainConfig


def check_read(train: "TrainConfig") -> None:
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


def check_together(model: NetworkConfig, train: "TrainConfig") -> None:
    """Raises ValueError where a network and how it is trained do not go together."""
    check_warmup(model, train.schedule)
    check_layout(model, train)
    check_lengths(model, train.length_warmup)
    check_read_by_network(model, train)
    check_transfer(model, train)


def check_transfer(model: NetworkConfig, train: "TrainConfig") -> None:
    """Raises ValueError where a rate is to hold for another width, and the optimizer has other rules than Adam's."""
    if times_as_wide(model) != 1.0 and train.optimizer.kind != "adamw":
        raise ValueError(
            f"model.mup_base_width scales rates by the rules for AdamW, and optimizer.kind is {train.optimizer.kind}."
            f" Set optimizer.kind = adamw, or leave model.mup_base_width out"
        )


def check_read_by_network(model: NetworkConfig, train: "TrainConfig") -> None:
    """Raises ValueError for a setting that networks of another kind alone look at."""
    if model.architecture != "bert" and _is_set(train, "masked_share"):
        raise ValueError(
            f"masked_share is {train.masked_share:g}, and a {model.architecture} has no hidden tokens: it is of a bert"
            f" alone. Leave masked_share out, or set model.architecture = bert"
        )


def _is_set(train: "TrainConfig", name: str) -> bool:
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
