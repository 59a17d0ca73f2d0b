"""Read labelled examples from lines of JSON, split off validation examples, order epochs, and count truncation.

The split holds out whole groups by a hash, of each label its share. The order of an epoch is a function of seed and
epoch alone. Whatever does not fit into a row is counted for each task and reported.
"""

import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
import numpy as np

from model.errors import InputError, json_problem
from model.finetune.chat_template import Message, read_messages
from model.finetune.config import Task

Answer = str | float | tuple[str, ...]
"""A label or text; a number; the labels of words; or all correct answers of a span, first the one to learn."""


MOST_NAMED = 20
"""Most invalid lines that an error describes."""


@dataclass(frozen=True)
class Example:
    """An input and its answer."""

    texts: tuple[str, ...]
    """One for each field; of a tagging the words."""
    answer: Answer | None
    """None where it is not known."""
    start: int | None = None
    """Of a span: the character where the first answer begins, if the file gives it."""
    group: str = ""
    """Examples of a group are held out together."""
    messages: tuple[Message, ...] = ()
    """Of a chat: the conversation."""


def read_examples(path: Path, task: Task) -> list[Example]:
    """Return the examples of a file, in order; InputError names each invalid line and what is wrong with it, of many
    the first."""
    if not path.is_file():
        raise InputError(f"task {task.name}: there is no file {path}; the task file names it")
    examples: list[Example] = []
    wrong: list[str] = []
    count = 0
    for where, line in _lines(path):
        try:
            examples.append(example_of(_object(line, where), task, where))
        except InputError as error:
            count += 1
            if count <= MOST_NAMED:
                wrong.append(str(error))
    if wrong:
        more = f"\nand {count - MOST_NAMED} lines more" if count > MOST_NAMED else ""
        raise InputError("\n".join(wrong) + more)
    if not examples:
        raise InputError(f"task {task.name}: {path} holds no examples")
    return examples


def example_of(record: dict[str, Any], task: Task, where: str, *, answered: bool = True) -> Example:
    """Return the example in a record; InputError names the record by `where`, and the invalid field."""
    group = [task.group] if task.group is not None else []
    answer_field = [task.answer] if task.kind != "chat" else []
    wanted = [*task.fields, *([*answer_field, *group] if answered else [])]
    missing = [name for name in wanted if name not in record]
    if missing:
        found = ", ".join(record) or "nothing"
        hint = "name the fields in the task file" if answered else f"the model reads {' and '.join(task.fields)}"
        raise InputError(f"task {task.name}: {where} has no {' and no '.join(missing)}, only {found}; {hint}")
    try:
        json.dumps([record[name] for name in wanted], ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"task {task.name}: {where} holds half of a surrogate pair, which is no character ({error.reason}); write"
            f" the text again in UTF-8"
        ) from error
    values = [record[name] for name in task.fields]
    if task.kind == "chat":
        messages = read_messages(values[0], f"task {task.name}: {where}: {task.fields[0]}", answered=answered)
        # Conversations that begin alike are held out together.
        texts = tuple(one.content for one in messages if one.role == "user")[:1]
        group_name = _group(record, texts, task, where) if answered else ""
        return Example(texts, messages[-1].content if answered else None, group=group_name, messages=messages)
    if task.kind == "tagging":
        texts = _strings(values[0], f"task {task.name}: {where}: {task.fields[0]} must be a list of words")
    else:
        for name, value in zip(task.fields, values, strict=True):
            if not isinstance(value, str):
                raise InputError(f"task {task.name}: {where}: {name} must be text, and is {value!r}")
        texts = tuple(values)
    if not answered:
        return Example(texts, None)
    answer = _answer(record[task.answer], texts, task, where)
    return Example(texts, answer, _start(record, answer, task, where), _group(record, texts, task, where))


def label_set(task: Task, learnt: Sequence[Example], development: Sequence[Example] = ()) -> tuple[str, ...]:
    """Return the labels of a classification or tagging: those of the task's setting, or all in the examples, sorted.

    Raises InputError where the examples to learn from have fewer than two.
    """
    shown = {label for example in learnt for label in _labels_of(example)}
    known = shown.union(*map(_labels_of, development))
    # Examples of no words have no labels, and are counted as unusable later.
    if len(shown or known) < 2:
        raise InputError(
            f"task {task.name}: the examples to learn from in {task.train} have the labels {sorted(shown)}; two or more"
            f" are needed to learn anything. Add examples of another label"
        )
    return task.labels or tuple(sorted(known))


def check_labels(task: Task, labels: Sequence[str], examples: Sequence[Example], path: Path) -> None:
    """Raise InputError where examples have an answer that is none of the labels."""
    for example in examples:
        if unknown := set(_labels_of(example)) - set(labels):
            raise InputError(
                f"task {task.name}: an example of {path} has the label {sorted(unknown)[0]!r}, and the known ones are"
                f" {', '.join(labels)}: name all in `labels`, or correct the file. It reads {example.texts[0][:60]!r}"
            )


def _labels_of(example: Example) -> tuple[str, ...]:
    if isinstance(example.answer, tuple):
        return example.answer
    assert isinstance(example.answer, str), "labels are text"
    return (example.answer,)


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, each with its place in words; InputError where one is none."""
    for where, line in _lines(path):
        yield where, _object(line, where)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, each with its place in words."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield f"{path}, line {number}", line
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged or no text in UTF-8: {error}") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON: {json_problem(error)}") from error
    if not isinstance(record, dict):
        raise InputError(f"{where} is no object with fields, but {line.strip()[:60]}")
    return record


def _answer(value: Any, texts: tuple[str, ...], task: Task, where: str) -> Answer:
    place = f"task {task.name}: {where}: {task.answer}"
    if task.kind == "regression":
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise InputError(f"{place} must be a finite number, and is {value!r}"[:300])
        return float(value)
    if task.kind == "tagging":
        tags = _strings(value, f"{place} must be a list of labels")
        if len(tags) != len(texts):
            raise InputError(f"{place} has {len(tags)} labels for {len(texts)} words")
        return tags
    if task.kind == "span":
        return _strings([value] if isinstance(value, str) else value or [], f"{place} must be text or a list of texts")
    if isinstance(value, bool | int):
        return str(value).lower()
    if not isinstance(value, str):
        raise InputError(f"{place} must be a label as text, and is {value!r}")
    return value


def _start(record: dict[str, Any], answer: Answer, task: Task, where: str) -> int | None:
    if task.start is None or answer == ():
        return None
    start = record.get(task.start)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise InputError(
            f"task {task.name}: {where}: {task.start} must be the number of the character where the first answer"
            f" begins, from 0, and is {start!r}. Without `start` in the task file the answer is searched for"
        )
    return start


def _group(record: dict[str, Any], texts: tuple[str, ...], task: Task, where: str) -> str:
    if task.group is None:
        return texts[-1] if task.kind == "span" else "\x1f".join(texts)
    group = record[task.group]
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise InputError(
            f"task {task.name}: {where}: {task.group} must be text or a whole number that groups examples, and is"
            f" {group!r}. Give each line one, or leave `group` out of the task file"
        )
    return str(group)


def _strings(value: Any, problem: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(f"{problem}, and is {value!r}"[:300])
    return tuple(value)


def split_validation(examples: Sequence[Example], share: float, task: Task) -> tuple[list[Example], list[Example]]:
    """Split examples into training and validation examples, about `share` of them: whole groups, chosen by a hash.

    The choice depends on the examples alone, so that all seeds learn from the same ones. Of a classification each label
    gives its share of groups, rounded so that the total is as near to `share` as whole groups allow. Of other kinds
    adding examples moves no other from one side to the other. Raises InputError where one side would be empty.
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
            f" {len(kept)} used for training. Give more examples, another development_share, or a file `development`"
        )
    return kept, out


def _held_out_of_labels(examples: Sequence[Example], share: float) -> set[str]:
    """Return the groups to hold out, of each label the first by hash; a group counts for its most frequent label."""
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
    """Return `share` of each count as whole numbers, at least one in all: the largest remainders are rounded up.

    At least one group of each label is not held out.
    """
    wanted = {label: share * count for label, count in counts.items()}
    given = {label: min(int(want), counts[label] - 1) for label, want in wanted.items()}
    # Not the sum of `wanted`: its last bit depends on the order of the labels, and decides about half a group.
    left = max(1, round(share * sum(counts.values()))) - sum(given.values())
    # Several rounds, where labels of few groups cannot give theirs.
    while left > 0 and (can_give := [label for label in counts if given[label] < counts[label] - 1]):
        chosen = sorted(can_give, key=lambda one: (given[one] - wanted[one], one))[:left]
        given |= {label: given[label] + 1 for label in chosen}
        left -= len(chosen)
    return given


def _drawn(group: str) -> float:
    """Return a number in [0, 1) that depends on the group alone."""
    return int.from_bytes(blake3.blake3(f"held out\x1f{group}".encode()).digest(length=8), "little") / 2**64


def interleave(counts: Sequence[int], cap: int, seed: int, epoch: int) -> np.ndarray:
    """Return the indices of an epoch's examples in the order in which they are read, i64.

    The examples of all tasks are numbered consecutively, task after task. Of each task an epoch reads all examples, and
    at most `cap`: examples-proportional mixing (Raffel et al. 2020, section 3.5.2) with exact shares in place of
    expected ones. A capped task continues in the next epoch where it stopped, so that all its examples are read.
    """
    first = np.cumsum([0, *counts])
    parts = []
    for task, count in enumerate(counts):
        take = min(count, cap)
        rounds = range(epoch * take // count, -(-(epoch + 1) * take // count))
        stream = np.concatenate([_generator(seed, "task", task, turn).permutation(count) for turn in rounds])
        begin = epoch * take - rounds.start * count
        parts.append(first[task] + stream[begin : begin + take])
    read = np.concatenate(parts)
    return read[_generator(seed, "epoch", epoch).permutation(len(read))]


def _generator(*key: object) -> np.random.Generator:
    digest = blake3.blake3("\x1f".join(map(str, ("mixing", *key))).encode()).digest(length=16)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


@dataclass
class Truncation:
    """Counts of the examples and tokens of one task in one file, and of those that were cut off."""

    examples: int = 0
    tokens: int = 0
    cut_examples: int = 0
    lost_tokens: int = 0
    unusable: dict[str, int] = field(default_factory=dict)
    """Number of examples left out of training, by reason."""

    def count(self, tokens: int, kept: int) -> None:
        """Add an example of `tokens` tokens, of which `kept` are read."""
        self.examples += 1
        self.tokens += tokens
        self.cut_examples += kept < tokens
        self.lost_tokens += tokens - kept

    def leave_out(self, reason: str) -> None:
        """Add an example that is left out of training."""
        self.unusable[reason] = self.unusable.get(reason, 0) + 1

    def describe(self) -> str:
        """Return the counts as a phrase."""
        cut = f"{self.cut_examples:,} of {self.examples:,} examples cut"
        if self.cut_examples:
            share = self.lost_tokens / self.tokens
            cut += f" ({self.cut_examples / self.examples:.1%}), {self.lost_tokens:,} tokens lost ({share:.1%})"
        return "; ".join([cut, *(f"{count:,} {reason}" for reason, count in sorted(self.unusable.items()))])


def fit_together(lengths: list[int], max_tokens: int) -> list[int]:
    """Return how many tokens of each text are kept so that all fit into `max_tokens`: the longest is cut first, as by
    `_truncate_seq_pair` of BERT's program."""
    kept = list(lengths)
    while (over := sum(kept) - max_tokens) > 0:
        longest = max(range(len(kept)), key=kept.__getitem__)
        second = max([0, *(length for place, length in enumerate(kept) if place != longest)])
        kept[longest] -= max(1, min(over, kept[longest] - second))
    return kept
