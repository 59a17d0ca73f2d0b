"""Find common problems in a profile, and format it as a table and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from model.profile.modules import CLIPPING, EMBEDDING, HEAD, OPTIMIZER, SMALL_SECONDS, PartCost
from model.profile.step import Shape, StepProfile

HEAD_SHARE = 0.4
"""Share of the arithmetic. The head of GPT-2's smallest network, 50,257 tokens at a width of 768, has 27%."""

BALANCED_HEAD_SHARE = 0.25

PADDING_SHARE = 0.05

SMALL_SHARE = 0.3

UPDATE_SHARE = 0.15

LOADER_SHARE = 0.05

QUIET_SLOWDOWN = 0.97
"""Timing operations makes a step slower; where timed steps were faster, other processes used the machine."""

BETWEEN, LOADER = "between operations", "loader"

_BAR = 24


@dataclass(frozen=True)
class Finding:
    """A problem: its name, the share of the step (0 to 1) or ratio concerned, and a message with a hint."""

    name: str
    value: float
    words: str


def findings_of(profile: StepProfile) -> list[Finding]:
    """Return all findings that apply, in a fixed order."""
    return list(_findings(profile))


def _findings(profile: StepProfile) -> Iterator[Finding]:
    shape, ridge = profile.shape, profile.machine.ridge
    if (share := _arithmetic_of(profile, HEAD)) > HEAD_SHARE:
        odds = BALANCED_HEAD_SHARE / (1 - BALANCED_HEAD_SHARE)
        balanced = round(shape.vocabulary * (1 - share) / share * odds)
        yield Finding(
            "oversized head",
            share,
            f"the head takes {share:.0%} of the arithmetic and {_share_of(profile, HEAD):.0%} of the time:"
            f" {shape.vocabulary:,} tokens at a width of {shape.width} over {shape.layers} layers. With about"
            f" {balanced:,} tokens it would take a quarter of the arithmetic. Use a smaller vocabulary, or a wider or"
            f" deeper network.",
        )
    if profile.padding_share > PADDING_SHARE:
        yield Finding(
            "padding",
            profile.padding_share,
            f"{profile.padding_share:.0%} of the rows' tokens are padding, and are computed all the same. Let chunk"
            f' fill its rows (chunk.packing = "best_fit" or "concat"), or shorten the context to the length of the'
            f" documents.",
        )
    small = sum(cost.small_seconds for cost in profile.parts)
    if (share := (small + profile.between_seconds) / profile.seconds) > SMALL_SHARE:
        yield Finding(
            "small operations",
            share,
            f"{share:.0%} of the step is spent between its {sum(cost.operations for cost in profile.parts):,}"
            f" operations or in those shorter than {SMALL_SECONDS * 1e6:.0f} microseconds. Give each more to do: more"
            f" rows in a micro-batch, a wider network with fewer layers, or a compiled one.",
        )
    if (share := _share_of(profile, CLIPPING, OPTIMIZER)) > UPDATE_SHARE:
        yield Finding(
            "small batch",
            share,
            f"{share:.0%} of the step is the update of the weights, which costs the same for any number of tokens and"
            f" comes after {profile.tokens:,} of them. Raise train.batch_rows, and the learning rate with it.",
        )
    # Products with few rows read a whole weight matrix for little arithmetic, so that memory is their limit.
    rows = shape.micro_batch_rows * shape.context
    intensity = _intensity(rows, shape)
    if intensity < ridge <= _intensity(2**40, shape) and shape.micro_batch_rows < shape.batch_rows:
        yield Finding(
            "small micro-batch",
            intensity / ridge,
            f"a micro-batch of {rows:,} tokens gives the MLP's products {intensity:.1f} FLOPs for each byte, and this"
            f" machine needs {ridge:.1f} to be busy with arithmetic. Raise train.micro_batch_rows.",
        )
    if (share := profile.loader_seconds / profile.seconds) > LOADER_SHARE:
        yield Finding(
            "slow loader",
            share,
            f"{share:.0%} of the step waits for its rows. Put the artifact of chunk on a faster disk; the first steps"
            f" after a start read it from disk, later ones from memory.",
        )
    if profile.slowdown < QUIET_SLOWDOWN:
        yield Finding(
            "busy machine",
            profile.slowdown,
            f"steps whose operations were timed took {profile.slowdown:.2f} times as long as plain ones, though timing"
            f" only adds: others used the processor. The time between operations is not to be trusted; measure again"
            f" alone, with more --steps, or with train.threads = 1, which counts this process's own time.",
        )


def _share_of(profile: StepProfile, *parts: str) -> float:
    """Return the share of the step's time that parts take."""
    return sum(cost.seconds for part in parts for cost in profile.of_part(part)) / profile.seconds


def _intensity(rows: float, shape: Shape) -> float:
    """Return the FLOPs per byte of [rows, D] x [D, F]."""
    width, hidden = shape.width, shape.hidden
    elements = rows * width + width * hidden + rows * hidden
    return 2.0 * rows * width * hidden / (elements * shape.element_bytes)


def table(profile: StepProfile, findings: list[Finding]) -> str:
    """Return a table with a row for each part and phase and its share of the roofline, followed by the findings."""
    machine = profile.machine
    longest = max((cost.seconds for cost in profile.parts), default=0.0) or 1.0
    heading = (
        f"{'part':<19}{'phase':<9}{'ms':>9}{'share':>7}{'GFLOP':>9}{'MB':>9}{'FLOP/B':>8}{'roofline':>10}{'calls':>7}"
    )
    lines = [
        f"a step of {profile.tokens:,} tokens: {profile.seconds * 1e3:.1f} ms,"
        f" {profile.tokens / profile.seconds:,.0f} tokens/s"
        f" ({profile.flops / 1e9:.2f} GFLOP ran, the model's own are {profile.model_flops / 1e9:.2f})",
        f"this machine: {machine.flops_s / 1e9:,.0f} GFLOP/s ({machine.dtype} products, threads: {machine.threads}),"
        f" {machine.bytes_s / 1e9:.1f} GB/s (copies); {machine.ridge:.1f} FLOP/B keep it busy",
        f"head and embedding: {_arithmetic_of(profile, HEAD, EMBEDDING):.1%} of the arithmetic,"
        f" {_share_of(profile, HEAD, EMBEDDING):.1%} of the time",
        "",
        heading,
        *(_row(cost, profile.seconds, longest) for cost in profile.parts),
        _rest(LOADER, profile.loader_seconds, profile.seconds),
        _rest(BETWEEN, profile.between_seconds, profile.seconds),
        "",
        "roofline: the least time that the part can take on this machine, as a share of the measured time. Bytes are"
        " counted without a cache,\nso a part whose data stays in one exceeds 100%. Operations were timed in steps"
        f" that took {profile.slowdown:.2f} times as long.",
        "",
    ]
    if findings:
        lines += [f"! {finding.name}: {finding.words}" for finding in findings]
    else:
        lines.append("no finding: head, rows, operations and batch are balanced")
    return "\n".join(lines)


def _arithmetic_of(profile: StepProfile, *parts: str) -> float:
    """Return the share of the step's FLOPs that parts take."""
    return sum(cost.flops for part in parts for cost in profile.of_part(part)) / profile.flops


def _row(cost: PartCost, step_seconds: float, longest: float) -> str:
    intensity = f"{cost.flops / cost.bytes:.1f}" if cost.flops and cost.bytes else "-"
    roofline = f"{cost.bound_seconds / cost.seconds:.0%}" if cost.seconds else "-"
    return (
        f"{cost.part:<19}{cost.phase:<9}{cost.seconds * 1e3:>9.2f}{cost.seconds / step_seconds:>7.1%}"
        f"{cost.flops / 1e9:>9.3f}{cost.bytes / 1e6:>9.1f}{intensity:>8}{roofline:>10}{cost.operations:>7}"
        f"  {'#' * round(_BAR * cost.seconds / longest)}"
    )


def _rest(name: str, seconds: float, step_seconds: float) -> str:
    return f"{name:<28}{seconds * 1e3:>9.2f}{seconds / step_seconds:>7.1%}"


def as_json(profile: StepProfile, findings: list[Finding]) -> dict[str, Any]:
    """Return the fields of `StepProfile` with derived ones."""
    described = asdict(profile)
    for described_cost, cost in zip(described["parts"], profile.parts, strict=True):
        described_cost["share"] = cost.seconds / profile.seconds
        described_cost["intensity"] = cost.flops / cost.bytes if cost.bytes else None
        described_cost["of_roofline"] = cost.bound_seconds / cost.seconds if cost.seconds else None
    return described | {
        "flops": profile.flops,
        "tokens_s": profile.tokens / profile.seconds,
        "findings": [asdict(finding) for finding in findings],
    }
