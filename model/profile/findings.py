"""What is wrong with a step, in words: the classic findings, each with its figure and its cure."""

from dataclasses import dataclass

from model.profile.parts import CLIPPING, HEAD, OPTIMIZER
from model.profile.step import SMALL_SECONDS, Shape, StepProfile

HEAD_SHARE = 0.4
"""Of the arithmetic. The head of GPT-2's smallest network, 50,257 pieces at a width of 768, has 27%."""
BALANCED_HEAD_SHARE = 0.25
PADDING_SHARE = 0.05
SMALL_SHARE = 0.3
UPDATE_SHARE = 0.15
LOADER_SHARE = 0.05
QUIET_SLOWDOWN = 0.97
"""Timing operations makes a step slower; where the timed ones were faster, the machine was what differed."""


@dataclass(frozen=True)
class Finding:
    """Its name, the share of the step (0 to 1) or the ratio that is wrong, and what to do."""

    name: str
    value: float
    words: str


def findings_of(profile: StepProfile) -> list[Finding]:
    """All that apply, in a fixed order."""
    found = (
        _oversized_head(profile),
        _padding(profile),
        _small_operations(profile),
        _small_batch(profile),
        _small_micro_batch(profile),
        _slow_loader(profile),
        _busy_machine(profile),
    )
    return [finding for finding in found if finding is not None]


def _oversized_head(profile: StepProfile) -> Finding | None:
    head = sum(cost.flops for cost in profile.of_part(HEAD))
    share = head / profile.flops
    if share <= HEAD_SHARE:
        return None
    shape = profile.shape
    time = sum(cost.seconds for cost in profile.of_part(HEAD)) / profile.seconds
    rest = profile.flops - head
    balanced = shape.vocabulary * rest / head * BALANCED_HEAD_SHARE / (1 - BALANCED_HEAD_SHARE)
    return Finding(
        "oversized head",
        share,
        f"the head takes {share:.0%} of the arithmetic and {time:.0%} of the time: {shape.vocabulary:,} pieces at a"
        f" width of {shape.width} over {shape.layers} layers. With about {round(balanced):,} pieces it would take a"
        f" quarter of the arithmetic. Take a smaller vocabulary, or a wider or deeper network.",
    )


def _padding(profile: StepProfile) -> Finding | None:
    if profile.padding_share <= PADDING_SHARE:
        return None
    return Finding(
        "padding",
        profile.padding_share,
        f"{profile.padding_share:.0%} of the rows' tokens are padding, and are computed all the same. Let chunk fill"
        f' its rows (chunk.packing = "best_fit" or "concat"), or shorten the context to the length of the documents.',
    )


def _small_operations(profile: StepProfile) -> Finding | None:
    small = sum(cost.small_seconds for cost in profile.parts)
    share = (small + profile.between_seconds) / profile.seconds
    if share <= SMALL_SHARE:
        return None
    count = sum(cost.operations for cost in profile.parts)
    return Finding(
        "small operations",
        share,
        f"{share:.0%} of the step is spent between its {count:,} operations or in those shorter than"
        f" {SMALL_SECONDS * 1e6:.0f} microseconds. Give each more to do: more rows in a micro-batch, a wider network"
        f" with fewer layers, or a compiled one.",
    )


def _small_batch(profile: StepProfile) -> Finding | None:
    update = sum(cost.seconds for name in (CLIPPING, OPTIMIZER) for cost in profile.of_part(name))
    share = update / profile.seconds
    if share <= UPDATE_SHARE:
        return None
    return Finding(
        "small batch",
        share,
        f"{share:.0%} of the step is the update of the weights, which costs the same for any number of tokens and comes"
        f" after {profile.tokens:,} of them. Raise train.batch_rows, and the learning rate with it.",
    )


def _small_micro_batch(profile: StepProfile) -> Finding | None:
    """Products with few rows read a matrix of weights for little arithmetic: memory is their limit."""
    shape, ridge = profile.shape, profile.machine.ridge
    rows = shape.micro_batch_rows * shape.context
    intensity = _intensity(rows, shape)
    if intensity >= ridge or _intensity(2**40, shape) < ridge or shape.micro_batch_rows == shape.batch_rows:
        return None
    return Finding(
        "small micro-batch",
        intensity / ridge,
        f"a micro-batch of {rows:,} tokens gives the MLP's products {intensity:.1f} FLOPs for each byte, and this"
        f" machine needs {ridge:.1f} to be busy with arithmetic. Raise train.micro_batch_rows.",
    )


def _intensity(rows: float, shape: Shape) -> float:
    """FLOPs per byte of [rows, D] x [D, F]."""
    width, hidden = shape.width, shape.hidden
    elements = rows * width + width * hidden + rows * hidden
    return 2.0 * rows * width * hidden / (elements * shape.element_bytes)


def _slow_loader(profile: StepProfile) -> Finding | None:
    share = profile.loader_seconds / profile.seconds
    if share <= LOADER_SHARE:
        return None
    return Finding(
        "slow loader",
        share,
        f"{share:.0%} of the step waits for its rows. Put the artifact of chunk on a faster disk; the first steps after"
        f" a start read it from disk, later ones from memory.",
    )


def _busy_machine(profile: StepProfile) -> Finding | None:
    if profile.slowdown >= QUIET_SLOWDOWN:
        return None
    return Finding(
        "busy machine",
        profile.slowdown,
        f"steps whose operations were timed took {profile.slowdown:.2f} times as long as plain ones, though timing only"
        f" adds: others used the processor. The time between operations is not to be trusted; measure again alone, with"
        f" more --steps, or with train.threads = 1, which counts this process's own time.",
    )
