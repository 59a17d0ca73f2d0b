"""A profile as a table for people and as JSON for programs."""

from dataclasses import asdict
from typing import Any

from model.profile.findings import Finding
from model.profile.step import PartCost, StepProfile

BETWEEN, LOADER = "between operations", "loader"
_BAR = 24


def table(profile: StepProfile, findings: list[Finding]) -> str:
    """The step in rows, one a part and phase, with what it could have taken; then the findings."""
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
        "roofline: the share of the measured time that the part must take at least on this machine. Bytes count as if"
        " no cache held them,\nso a part that lives in one passes 100%. Operations were timed in steps that took"
        f" {profile.slowdown:.2f} times as long.",
        "",
    ]
    if findings:
        lines += [f"! {finding.name}: {finding.words}" for finding in findings]
    else:
        lines.append("no finding: the head, the rows, the operations and the batch fit each other")
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
    """The fields of `StepProfile` with derived ones, seconds and FLOPs in full."""
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
