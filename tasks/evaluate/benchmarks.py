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

from model.generate import generate_tokens
from model.scoring import choice_log_probabilities
from model.transformer import GPT
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
    spelled: bool = False
    """The likeliest tokens spell the answer; asked only of items without choices."""

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
    network: GPT,
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
            one = _score(network, tokenizer, item, pool.examples(item, shots), config.instruction, known)
            if one is not None:
                scored.append(one)
            done += 1
            if done % TOLD_ITEMS == 0:
                advance(done)
        rows += _rows(benchmark, shots, scored, len(evaluated), len(items), states, config.primary)
    advance(done)
    return rows


def _score(
    network: GPT,
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
    window = network.config.context
    if longest > window or not all(continuations):
        return None
    # The last token of a continuation is predicted, never read, so context + 1 tokens fit.
    room = window + 1 - longest
    prompt = build_prompt(item, examples, tokenizer, instruction=instruction, room=room)
    key = (item.item_id, prompt.ids)
    if key not in known:
        # Every choice sees the same context, whatever its own length: what does not fit is cut by the longest.
        seen = prompt.ids[-room:]
        values = choice_log_probabilities(network, seen, continuations)
        known[key] = Scored(item, tuple(values), prompt, item.free and spells(network, seen, continuations[0]))
    return known[key]


def spells(network: GPT, context: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether the likeliest token at every place after `context` is that of `answer`; most fail at the first."""
    return all(
        generate_tokens(network, context, max_new_tokens=length, temperature=0.0) == list(answer[:length])
        for length in sorted({1, len(answer)})
    )


def _rows(
    benchmark: str,
    shots: int,
    scored: Sequence[Scored],
    evaluated: int,
    available: int,
    states: dict[str, str],
    primary: str,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    overall = Counter(states.get(one.item.item_id, "unmatchable") for one in scored)
    shared = _shared_note(shots, scored, evaluated, available, overall)
    for free in (False, True):
        mine = [one for one in scored if one.item.free == free]
        if not mine:
            continue
        everything: float | None = None
        for subset in SUBSETS:
            part = [one for one in mine if subset in ("all", states.get(one.item.item_id, "unmatchable"))]
            notes = [_chance_note(part), *shared] if not free else list(shared)
            if free:
                rows += _free_rows(benchmark, shots, subset, part, notes)
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
    benchmark: str, shots: int, subset: str, part: Sequence[Scored], notes: list[str]
) -> list[dict[str, Any]]:
    size = sum(len(one.item.continuations[0].encode()) for one in part)
    bits = -sum(one.log_probabilities[0] for one in part) / math.log(2)
    share, stderr = accuracy([one.spelled for one in part])
    place = {"shots": shots, "subset": subset, "n": len(part)}
    exact_note = "; ".join(["likeliest tokens spell the answer", *notes])
    bits_note = "; ".join(["bits per byte of the given answer", *notes])
    return [
        score_row(benchmark, "exact", value=share, stderr=stderr, note=exact_note, **place),
        score_row(benchmark, "answer_bits_per_byte", value=bits / size if size else None, note=bits_note, **place),
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
