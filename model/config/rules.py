"""Checks of settings that must be consistent with each other; their errors say what to change.

They run before the first step and import no PyTorch, since checking a recipe imports them.
"""

from pathlib import Path

from model.config.fields import PORTABLE_ENVIRONMENT, TrainFields
from model.config.network import GPTConfig, NetworkConfig, width_multiplier
from model.config.options import LengthWarmupConfig
from model.errors import RecipeError

INDEPENDENT_SETTINGS = ("vocab_size", "dropout", "z_loss", "balance", "init", "init_std")
"""Settings of a network that do not decide shape or meaning of its weights, or that are checked elsewhere."""


def check_unused_settings(train: TrainFields) -> None:
    """Raise ValueError for a setting that the value of another one makes meaningless."""
    if train.dtype != "float16" and _is_set(train, "loss_scale"):
        raise ValueError(
            f"loss_scale is set, and dtype is {train.dtype}: only the loss of float16 is scaled, whose small gradients"
            f" would become zero. Leave loss_scale out, or set dtype = float16"
        )
    if train.engine != "deepspeed" and _is_set(train, "zero_stage"):
        raise ValueError(
            f"zero_stage is {train.zero_stage}, and engine is {train.engine}, which partitions nothing over ranks."
            f" Leave zero_stage out, or set engine = deepspeed"
        )
    if train.device == "cpu" and not train.deterministic:
        raise ValueError(
            "deterministic is false, and device is cpu, whose kernels all repeat their sums. Leave deterministic out,"
            " or set device = cuda"
        )
    if train.trainable == "new_rows" and train.engine == "fsdp":
        raise ValueError(
            "trainable = new_rows trains one small table, whose moments every rank can hold, and engine is fsdp. Set"
            " engine = native, or trainable = all"
        )
    if train.trainable == "new_rows" and train.optimizer.kind == "muon":
        raise ValueError(
            "optimizer.kind is muon, which trains the matrices within blocks, and trainable = new_rows freezes them."
            " Set optimizer.kind = adamw, lamb or sgd, or trainable = all"
        )


def check_portable(train: TrainFields) -> None:
    """Raise ValueError for a setting whose arithmetic `numerics = "portable"` does not define."""
    if train.numerics != "portable":
        return
    is_auto = train.micro_batch_rows == "auto"
    kind = "lamb" if train.optimizer.kind == "lamb" else "adamw"
    refused = {
        "device": (train.device, "cpu"),
        "dtype": (train.dtype, "float32"),
        "engine": (train.engine, "native"),
        "tensor_parallel": (train.tensor_parallel, 1),
        "pipeline_parallel": (train.pipeline_parallel, 1),
        "compile": (train.compile, False),
        "recompute": (train.recompute, False),
        "micro_batch_rows": ("auto" if is_auto else "a number", "a number"),
        "optimizer.kind": (kind, "adamw"),
    }
    for name, (found, needed) in refused.items():
        if found != needed:
            raise ValueError(
                f"numerics is portable, and {name} is {str(found).lower()}, for which no arithmetic is defined that"
                f" every machine repeats. Set {name} to {str(needed).lower()}, or numerics = native"
            )
    for step in train.guard.ladder or ():
        if step.optimizer == "lamb" or step.dtype not in (None, "float32"):
            setting = f"dtype = {step.dtype}" if step.dtype else f"optimizer = {step.optimizer}"
            raise ValueError(
                f"numerics is portable, and a step of guard.ladder sets {setting}, for which no arithmetic is defined"
                f" that every machine repeats. Leave it out, or set numerics = native"
            )
    if fixed := sorted({one.partition("=")[0] for one in train.environment} & PORTABLE_ENVIRONMENT.keys()):
        raise ValueError(
            f"numerics is portable, which sets {fixed[0]} itself. Leave it out of environment, or set numerics = native"
        )


def check_ranks(train: TrainFields) -> None:
    """Raise ValueError where ranks, engine and optimizer are inconsistent, whatever the network."""
    together = train.tensor_parallel * train.pipeline_parallel
    if together == 1:
        return
    if train.engine == "deepspeed":
        raise ValueError(
            "the engines native and fsdp have tensor_parallel and pipeline_parallel; deepspeed partitions the model"
            " over the ranks instead. Set engine = native or fsdp, or leave both out"
        )
    if train.ranks % together:
        more = -(-train.ranks // together) * together
        raise ValueError(
            f"one copy of the model takes tensor_parallel {train.tensor_parallel} times pipeline_parallel"
            f" {train.pipeline_parallel} = {together} processes, and ranks is {train.ranks}. Set ranks = {more}"
        )
    if train.trainable == "new_rows":
        raise ValueError(
            "trainable = new_rows trains one small table, which cannot be divided. Leave tensor_parallel and"
            " pipeline_parallel out: ranks then share the batch"
        )
    if train.tensor_parallel > 1 and train.optimizer.kind == "muon":
        raise ValueError(
            f"optimizer.kind muon needs whole matrices, and tensor_parallel splits them. Set pipeline_parallel ="
            f" {train.tensor_parallel} instead, which keeps them whole, or optimizer.kind = adamw, lamb or sgd"
        )


def check_consistency(model: NetworkConfig, train: TrainFields) -> None:
    """Raise ValueError where settings of a network and of its training are inconsistent."""
    is_t_fixup = isinstance(model, GPTConfig) and model.init == "t_fixup"
    if is_t_fixup and train.schedule.warmup_share:
        # The point of T-Fixup is to need none (Huang et al. 2020).
        raise ValueError(
            f'model.init = "t_fixup" trains without warm-up, and schedule.warmup_share is'
            f" {train.schedule.warmup_share}. Set schedule.warmup_share = 0, or another init"
        )
    check_layout(model, train)
    check_lengths(model, train.length_warmup)
    if model.architecture != "bert" and _is_set(train, "masked_share"):
        raise ValueError(
            f"masked_share is {train.masked_share:g}, and a {model.architecture} has no masked tokens. Leave"
            f" masked_share out, or set model.architecture = bert"
        )
    if width_multiplier(model) != 1.0 and train.optimizer.kind != "adamw":
        raise ValueError(
            f"model.mup_base_width scales rates by the rules for AdamW, and optimizer.kind is {train.optimizer.kind}."
            f" Set optimizer.kind = adamw, or leave model.mup_base_width out"
        )
    check_experts(model, train)


def check_experts(model: NetworkConfig, train: TrainFields) -> None:
    """Raise ValueError for settings that do not combine with a mixture of experts."""
    if not isinstance(model, GPTConfig) or model.experts is None:
        return
    refused = {
        "tensor_parallel": (train.tensor_parallel, 1),
        "pipeline_parallel": (train.pipeline_parallel, 1),
        "engine": (train.engine, "native"),
        "compile": (train.compile, False),
        "optimizer.kind": (train.optimizer.kind if train.optimizer.kind in ("muon", "lamb") else "adamw", "adamw"),
    }
    for name, (found, needed) in refused.items():
        if found != needed:
            raise ValueError(
                f"model.experts is {model.experts}, and {name} is {found}, which does not take a mixture of experts."
                f" Set {name} = {str(needed).lower()}, or leave model.experts out"
            )
    if train.numerics == "portable":
        raise ValueError(
            f"numerics is portable, and model.experts is {model.experts}: its products have other shapes in each step,"
            f" and libraries are admitted by shape. Leave model.experts out, or set numerics = native"
        )


def check_layout(model: NetworkConfig, train: TrainFields) -> None:
    """Raise ValueError where the network cannot be divided among ranks as configured."""
    tensor, stages = train.tensor_parallel, train.pipeline_parallel
    if model.heads % tensor:
        fitting = max(n for n in range(1, tensor + 1) if model.heads % n == 0)
        raise ValueError(
            f"tensor_parallel {tensor} does not divide model.heads {model.heads}, and a head cannot be split. Set"
            f" tensor_parallel = {fitting}, or model.heads to a multiple of {tensor}"
        )
    kv_heads = model.kv_heads if isinstance(model, GPTConfig) else None
    if kv_heads is not None and kv_heads % tensor:
        fitting = max(n for n in range(1, tensor + 1) if kv_heads % n == 0 and model.heads % n == 0)
        raise ValueError(
            f"tensor_parallel {tensor} does not divide model.kv_heads {kv_heads}, and a head cannot be split. Set"
            f" tensor_parallel = {fitting}"
        )
    if tensor > 1 and isinstance(model, GPTConfig) and model.qk_norm == "all":
        raise ValueError(
            f'model.qk_norm = "all" normalises all heads together, and with tensor_parallel {tensor} a rank has some of'
            f' them. Set tensor_parallel = 1, or qk_norm = "head"'
        )
    blocks, where = model.layers, "model.layers"
    if model.architecture == "t5":
        blocks, where = 2 * model.layers, "the blocks of encoder and decoder"
    if blocks < stages:
        raise ValueError(
            f"pipeline_parallel {stages} needs more stages than there are blocks: {where} are {blocks}. Set"
            f" pipeline_parallel = {blocks} at most, or more layers"
        )


def check_lengths(model: NetworkConfig, warmup: LengthWarmupConfig) -> None:
    """Raise ValueError where length warm-up does not lead to the model's context."""
    if not warmup.share:
        return
    if model.architecture != "gpt":
        raise ValueError(
            f"length_warmup.share is {warmup.share}, and sequences of a {model.architecture} cannot be cut: they are"
            f" sentence pairs, or inputs and targets. Leave length_warmup out. A first run with short sequences is no"
            f" substitute: one that continues from its model (base_model) keeps its context"
        )
    pieces, left = divmod(model.context, warmup.start_length)
    if left or pieces & (pieces - 1) or not pieces:
        raise ValueError(
            f"length_warmup.start_length {warmup.start_length} does not double up to model.context {model.context};"
            f" choose the context divided by 2, 4, 8 and so on"
        )


def _is_set(train: TrainFields, name: str) -> bool:
    return getattr(train, name) != type(train).model_fields[name].default


def check_compatible_architecture(folder: Path, found: NetworkConfig, requested: NetworkConfig) -> None:
    """Raise RecipeError, with all keys to set, where the network `found` in `folder` is not the `requested` one, or the
    same with a shorter context."""
    if type(found) is not type(requested):
        has, wanted = (one.architecture for one in (found, requested))
        raise RecipeError(
            f"the model in {folder} is a {has}, and this run asks for a {wanted}. Set train.model.architecture ="
            f' "{has}" and the rest of train.model as it was trained.'
        )
    # Without a table of positions a network is the same for any length, and learns from shorter rows, too.
    free = "context" if not has_position_table(found) and requested.context < found.context else ""
    other = {
        name: getattr(found, name)
        for name in type(found).model_fields
        if name not in (*INDEPENDENT_SETTINGS, free) and getattr(found, name) != getattr(requested, name)
    }
    if other:
        has = ", ".join(f"{name} = {value}" for name, value in other.items())
        wanted = ", ".join(str(getattr(requested, name)) for name in other)
        hint = ", ".join(f"train.model.{name} = {value}" for name, value in other.items())
        raise RecipeError(
            f"the model in {folder} has {has}, and this run asks for {wanted}. Set {hint}, as it was trained."
        )


def has_position_table(config: NetworkConfig) -> bool:
    """Return whether a network learns a vector for each position, so that its weights have a length."""
    return config.architecture == "bert" or (config.architecture == "gpt" and config.positions == "learned")
