"""What parts cost, from the operations of several steps."""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from model.profile.machine import Machine
from model.profile.parts import PARTS, PHASES
from model.profile.recording import Operation
from model.profile.step import SMALL_SECONDS, PartCost


def costs_of(steps: list[list[Operation]], machine: Machine) -> tuple[PartCost, ...]:
    """One cost for each part and phase that ran: the operations of the first step, the median seconds of each."""
    seconds = _seconds_by_occurrence(steps)
    mine: dict[tuple[str, str], list[Operation]] = {}
    for key, operation in _with_occurrence(steps[0]):
        median = statistics.median(seconds[key])
        mine.setdefault((operation.part, operation.phase), []).append(replace(operation, seconds=median))
    return tuple(_cost(mine[part, phase], machine) for part in PARTS for phase in PHASES if (part, phase) in mine)


def _cost(operations: list[Operation], machine: Machine) -> PartCost:
    return PartCost(
        part=operations[0].part,
        phase=operations[0].phase,
        seconds=sum(one.seconds for one in operations),
        bound_seconds=sum(machine.bound_seconds(one.flops, one.bytes) for one in operations),
        flops=sum(one.flops for one in operations),
        bytes=sum(one.bytes for one in operations),
        operations=len(operations),
        small_seconds=sum(one.seconds for one in operations if one.seconds < SMALL_SECONDS),
    )


def _seconds_by_occurrence(steps: list[list[Operation]]) -> dict[tuple, list[float]]:
    """Seconds that each step took for an operation. Steps differ where one clips its gradient and another does not."""
    seconds: dict[tuple, list[float]] = {}
    for operations in steps:
        for key, operation in _with_occurrence(operations):
            seconds.setdefault(key, []).append(operation.seconds)
    return seconds


def _with_occurrence(operations: list[Operation]) -> Iterator[tuple[tuple, Operation]]:
    """Each operation with what names it in any step: part, phase, name, and how many like it came before."""
    before: Counter[tuple[str, str, str]] = Counter()
    for operation in operations:
        like = (operation.part, operation.phase, operation.name)
        yield (*like, before[like]), operation
        before[like] += 1


def scaled(cost: PartCost, factor: float) -> PartCost:
    """The same work in other seconds."""
    return replace(cost, seconds=cost.seconds * factor, small_seconds=cost.small_seconds * factor)
