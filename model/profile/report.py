"""Find common problems in a profile, and format it as a table, as JSON and as an SVG chart."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from model.profile.cost_model import SMALL_SECONDS, PartCost, Shape, StepProfile
from model.profile.modules import BACKWARD, CLIPPING, FORWARD, HEAD, OPTIMIZER, PARTS, UPDATE

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

WIDTH, LEFT, RIGHT, ROW = 760, 170, 90, 28

_COLOURS = {FORWARD: "#0969da", BACKWARD: "#cf5a1c", UPDATE: "#57606a", "": "#afb8c1"}

_BAR = 24


@dataclass(frozen=True)
class Finding:
    """A problem: its name, the share of the step (0 to 1) or ratio concerned, and a message with a hint."""

    name: str
    value: float
    words: str


def findings_of(profile: StepProfile) -> list[Finding]:
    """Return all findings that apply, in a fixed order."""
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
        f"the head takes {share:.0%} of the arithmetic and {time:.0%} of the time: {shape.vocabulary:,} tokens at a"
        f" width of {shape.width} over {shape.layers} layers. With about {round(balanced):,} tokens it would take a"
        f" quarter of the arithmetic. Use a smaller vocabulary, or a wider or deeper network.",
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
    # Products with few rows read a whole weight matrix for little arithmetic, so that memory is their limit.
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
    """Return the FLOPs per byte of [rows, D] x [D, F]."""
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


def chart(profile: StepProfile) -> str:
    """Return an SVG chart with a bar for each part, and its milliseconds and share as text."""
    bars: list[tuple[str, list[tuple[str, float]]]] = [
        (part, [(cost.phase, cost.seconds) for cost in profile.of_part(part)])
        for part in PARTS
        if profile.of_part(part)
    ]
    bars += [(LOADER, [("", profile.loader_seconds)]), (BETWEEN, [("", profile.between_seconds)])]
    longest = max(sum(seconds for _, seconds in phases) for _, phases in bars) or 1.0
    scale = (WIDTH - LEFT - RIGHT - 60) / longest
    height = ROW * (len(bars) + 3)
    shapes = [
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, ROW, f"A step of {profile.tokens:,} tokens: {profile.seconds * 1e3:.1f} ms"),
    ]
    x = LEFT
    for word in (FORWARD, BACKWARD, UPDATE):
        shapes += [f'<rect x="{x}" y="{1.5 * ROW}" width="12" height="12" fill="{_COLOURS[word]}"/>']
        shapes += [_text(x + 18, 1.5 * ROW + 11, word)]
        x += 100
    for index, (name, phases) in enumerate(bars):
        top, x = ROW * (index + 2.4), float(LEFT)
        shapes.append(_text(16, top + 15, name))
        for phase, seconds in phases:
            wide = seconds * scale
            shapes.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="20" fill="{_COLOURS[phase]}"/>')
            x += wide
        total = sum(seconds for _, seconds in phases)
        shapes.append(_text(x + 8, top + 15, f"{total * 1e3:.2f} ms, {total / profile.seconds:.1%}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="13">{"".join(shapes)}</svg>\n'
    )


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#1f2328">{escape(words)}</text>'
