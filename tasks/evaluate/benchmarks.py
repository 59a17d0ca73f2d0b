"""Benchmarks by likelihood: the choice that the model finds likeliest after the context is its answer.

Per choice: the sum of log p of its tokens, also divided by its characters and by its UTF-8 bytes (of the text that is
scored, the blank before it included). One of the three is declared primary and called `acc`. An item without choices
counts as right (`exact`) when the likeliest token at each place spells its answer, as LAMBADA is scored (Paperno et
al., 2016); its answer's bits per byte tell more of a weak model. Standard errors are sqrt(p (1 - p) / (n - 1)).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.evaluate.choices import Choices
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.prompts import ExamplePool, Item, Prompt, build_prompt, chosen_items
from tasks.evaluate.score_rows import score_row
from tasks.tokenizer import Tokenizer

NORMALISERS: dict[str, Callable[[str], int]] = {
    "sum": lambda text: 1,
    "chars": len,
    "bytes": lambda text: len(text.encode()),
}
SUBSETS = ("all", "clean", "leaked")
FEW_CLEAN = 50
"""Below this many clean items the clean score says little."""
TOLD_ITEMS = 16


@dataclass(frozen=True)
class Scored:
    """One item under one number of shots: log p of each choice, and the prompt it was asked with."""

    item: Item
    log_probabilities: tuple[float, ...]
    prompt: Prompt
    spelled: bool | None = None
    """Whether the likeliest tokens spell the answer; asked only of items without choices, and not of a BERT."""

    def right(self, normaliser: str) -> bool:
        """Whether the likeliest choice under the normaliser is the right one; the first of equals counts."""
        length = NORMALISERS[normaliser]
        scores = [
            log_probability / length(text)
            for log_probability, text in zip(self.log_probabilities, self.item.continuations, strict=True)
        ]
        return scores.index(max(scores)) == self.item.answer


def items_of(table: pa.Table, benchmark: str) -> list[Item]:
    """The items of one benchmark from ITEMS."""
    return [
        Item(
            item_id=row["item_id"],
            lang=row["lang"],
            context=row["context"],
            choices=tuple(row["choices"]) or (row["answer"],),
            answer=int(row["answer"]) if row["choices"] else 0,
            match_text=row["match_text"],
            free=not row["choices"],
        )
        for row in table.to_pylist()
        if row["benchmark"] == benchmark
    ]


def leak_states(leaks: pa.Table, benchmark: str) -> dict[str, str]:
    """Item id -> leaked, clean or unmatchable; one leak makes an item leaked."""
    states: dict[str, str] = {}
    for row in leaks.select(["benchmark", "item_id", "state"]).to_pylist():
        if row["benchmark"] == benchmark and states.get(row["item_id"]) != "leaked":
            states[row["item_id"]] = row["state"]
    return states


def benchmark_scores(
    choices: Choices,
    tokenizer: Tokenizer,
    benchmark: str,
    items: Sequence[Item],
    states: dict[str, str],
    config: EvaluateConfig,
    *,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Rows of SCORES for every number of shots, subset and metric. `advance` hears items done, over all shots."""
    order = chosen_items(items, benchmark, config.seed)
    evaluated = order[: config.max_items]
    pool = ExamplePool(order)
    rows: list[dict[str, Any]] = []
    known: dict[tuple[str, tuple[int, ...]], Scored] = {}
    done = 0
    for shots in config.shots:
        scored: list[Scored] = []
        for item in evaluated:
            one = _score(choices, tokenizer, item, pool.examples(item, shots), config.instruction, known)
            if one is not None:
                scored.append(one)
            done += 1
            if done % TOLD_ITEMS == 0:
                advance(done)
        rows += _rows(benchmark, shots, scored, len(evaluated), len(items), states, config.primary, choices)
    advance(done)
    return rows


def declined_scores(benchmark: str, items: Sequence[Item], config: EvaluateConfig, why: str) -> list[dict[str, Any]]:
    """A row without a value for every number of shots, where the network cannot be asked."""
    evaluated = min(len(items), config.max_items)
    metrics = {"exact" if item.free else "acc" for item in items}
    return [
        score_row(benchmark, metric, n=evaluated, value=None, shots=shots, note=why)
        for shots in config.shots
        for metric in sorted(metrics)
    ]


def _score(
    choices: Choices,
    tokenizer: Tokenizer,
    item: Item,
    examples: Sequence[Item],
    instruction: str,
    known: dict[tuple[str, tuple[int, ...]], Scored],
) -> Scored | None:
    """The item after as many examples as fit; None where a choice is empty or leaves no room for any context.

    Where no more examples fit than with fewer shots, the prompt is the same, and its result is taken from `known`.
    """
    encode = tokenizer.encode_following if item.context else tokenizer.encode
    continuations = [encode(text) for text in item.continuations]
    longest = max(map(len, continuations))
    if longest > choices.longest or not all(continuations):
        return None
    room = choices.room(longest)
    unread = 0 if choices.opens else 1
    prompt = build_prompt(item, examples, tokenizer, instruction=instruction, room=room + unread)
    key = (item.item_id, prompt.ids)
    if key not in known:
        # Every choice sees the same context, whatever its own length: what does not fit is cut by the longest.
        text = prompt.ids[unread:]
        seen = text[max(0, len(text) - room) :]
        values = choices.score(seen, continuations)
        spelled = choices.spelled(seen, continuations[0]) if item.free and choices.spells else None
        known[key] = Scored(item, tuple(values), prompt, spelled)
    return known[key]


def _rows(
    benchmark: str,
    shots: int,
    scored: Sequence[Scored],
    evaluated: int,
    available: int,
    states: dict[str, str],
    primary: str,
    choices: Choices,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    overall = Counter(states.get(one.item.item_id, "unmatchable") for one in scored)
    how = [choices.note] if choices.note else []
    shared = [*how, *_shared_note(shots, scored, evaluated, available, overall)]
    for free in (False, True):
        mine = [one for one in scored if one.item.free == free]
        if not mine:
            continue
        everything: float | None = None
        for subset in SUBSETS:
            part = [one for one in mine if subset in ("all", states.get(one.item.item_id, "unmatchable"))]
            notes = [_chance_note(part), *shared] if not free else list(shared)
            if free:
                rows += _free_rows(benchmark, shots, subset, part, notes, choices)
                continue
            for metric, normaliser in _metrics(primary).items():
                value, stderr = accuracy([one.right(normaliser) for one in part])
                if metric == "acc" and subset == "all":
                    everything = value
                warnings = _clean_warnings(part, value, stderr, everything) if subset == "clean" else []
                note = "; ".join([f"per {normaliser}", *notes, *(warnings if metric == "acc" else [])])
                numbers = {"shots": shots, "subset": subset, "n": len(part), "value": value, "stderr": stderr}
                rows.append(score_row(benchmark, metric, note=note, **numbers))
    return rows


def _metrics(primary: str) -> dict[str, str]:
    return {"acc": primary, **{f"acc_{name}": name for name in NORMALISERS if name != primary}}


def accuracy(right: Sequence[bool]) -> tuple[float | None, float | None]:
    """Share of right answers and its standard error; None where there are too few items."""
    n = len(right)
    if n == 0:
        return None, None
    p = sum(right) / n
    return p, math.sqrt(p * (1 - p) / (n - 1)) if n > 1 else None


def _free_rows(
    benchmark: str, shots: int, subset: str, part: Sequence[Scored], notes: list[str], choices: Choices
) -> list[dict[str, Any]]:
    size = sum(len(one.item.continuations[0].encode()) for one in part)
    bits = -sum(one.log_probabilities[0] for one in part) / math.log(2)
    share, stderr = accuracy([one.spelled for one in part if one.spelled is not None])
    place = {"shots": shots, "subset": subset, "n": len(part)}
    told = "likeliest tokens spell the answer" if choices.spells else "declined: a BERT writes no text"
    exact_note = "; ".join([told, *notes])
    bits_note = "; ".join([f"{'' if choices.spells else 'pseudo-'}bits per byte of the given answer", *notes])
    return [
        score_row(benchmark, "exact", value=share, stderr=stderr, note=exact_note, **place),
        score_row(benchmark, choices.bits_metric, value=bits / size if size else None, note=bits_note, **place),
    ]


def _chance_note(part: Sequence[Scored]) -> str:
    if not part:
        return "no items"
    return f"chance {sum(1 / len(one.item.choices) for one in part) / len(part):.3f}"


def _shared_note(
    shots: int, scored: Sequence[Scored], evaluated: int, available: int, states: Counter[str]
) -> list[str]:
    notes: list[str] = []
    if available > evaluated:
        notes.append(f"{evaluated} of {available} items drawn")
    if shots:
        used = sum(one.prompt.shots for one in scored) / len(scored) if scored else 0.0
        fewer = sum(one.prompt.shots < shots for one in scored)
        room = f": {fewer} of {len(scored)} items leave room for less than {shots}" if fewer else ""
        notes.append(f"{used:.2f} examples on average{room}")
    if cut := sum(not one.prompt.fits for one in scored):
        notes.append(f"{cut} contexts cut to the window")
    if lost := evaluated - len(scored):
        notes.append(f"{lost} items not scored: a choice is empty or longer than the window")
    if states["unmatchable"]:
        notes.append(f"{states['unmatchable']} unmatchable items count in `all` only")
    return notes


def _clean_warnings(
    part: Sequence[Scored], value: float | None, stderr: float | None, everything: float | None
) -> list[str]:
    warnings = [f"fewer than {FEW_CLEAN} clean items"] if len(part) < FEW_CLEAN else []
    if value is not None and stderr is not None and everything is not None and abs(value - everything) > 2 * stderr:
        warnings.append("differs from `all` by more than two standard errors")
    return warnings
