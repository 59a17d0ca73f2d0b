"""Which examples are held out to choose the epoch: whole groups by a hash, of each label its share."""

from collections import Counter
from collections.abc import Mapping, Sequence

import blake3

from model.errors import InputError
from model.finetune.config import Task
from model.finetune.examples import Example

Split = tuple[list[Example], list[Example]]


def held_out(examples: Sequence[Example], share: float, task: Task) -> Split:
    """What is learnt from, and about `share` of the examples that are not: whole groups, chosen by a hash of the group.

    The choice depends on the examples alone, so all seeds learn from the same ones. Of a classification each label
    gives its share of groups, the whole rounded as near as whole groups let it; of other kinds more examples move none
    over. InputError where one side would be empty.
    """
    groups = _held_out_of_labels(examples, share) if task.kind == "classification" else None
    kept: list[Example] = []
    out: list[Example] = []
    for example in examples:
        is_out = _drawn(example.group) < share if groups is None else example.group in groups
        (out if is_out else kept).append(example)
    if not kept or not out:
        raise InputError(
            f"task {task.name}: of {len(examples)} examples {len(out)} would be held out to choose the epoch, and"
            f" {len(kept)} learnt from. Give more examples, another development_share, or a file `development`"
        )
    return kept, out


def _held_out_of_labels(examples: Sequence[Example], share: float) -> set[str]:
    """Groups, the first of each label in the order of their hashes; a group counts for its most frequent label."""
    labels: dict[str, Counter[str]] = {}
    for example in examples:
        labels.setdefault(example.group, Counter())[str(example.answer)] += 1
    of_label: dict[str, list[str]] = {}
    for group, counts in labels.items():
        label = min(counts, key=lambda one: (-counts[one], one))
        of_label.setdefault(label, []).append(group)
    quota = _quotas({label: len(groups) for label, groups in of_label.items()}, share)
    return {group for label, groups in of_label.items() for group in sorted(groups, key=_drawn)[: quota[label]]}


def _quotas(counts: Mapping[str, int], share: float) -> dict[str, int]:
    """`share` of each count as a whole number, at least one in all: the largest remainders are rounded up. No label is
    held out as a whole."""
    wanted = {label: share * count for label, count in counts.items()}
    given = {label: min(int(want), counts[label] - 1) for label, want in wanted.items()}
    left = max(1, round(sum(wanted.values()))) - sum(given.values())
    can_give = [label for label in counts if given[label] < counts[label] - 1]
    for label in sorted(can_give, key=lambda one: (given[one] - wanted[one], one))[: max(0, left)]:
        given[label] += 1
    return given


def _drawn(group: str) -> float:
    """A number in [0, 1) that depends on the group alone."""
    return int.from_bytes(blake3.blake3(f"held out\x1f{group}".encode()).digest(length=8), "little") / 2**64
