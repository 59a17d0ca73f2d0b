"""Benchmarks: every item asked in the form of its benchmark, and scores on all, clean and leaked items.

One figure is declared as primary before the run. It is kept for every item (ITEM_SCORES), so that two models can be
compared on the same items, and leaked items are held against clean ones by it (GAPS).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.errors import InputError
from tasks.common.numeric import seed64
from tasks.evaluate.benchmarks.generative import ExtractionForm, GenerationForm, SummaryForm, TranslationForm
from tasks.evaluate.benchmarks.items import ExamplePool, Item, chosen_items
from tasks.evaluate.benchmarks.likelihood import Choices
from tasks.evaluate.benchmarks.multiple_choice import ClozeForm, PartialForm, TaskForm, choice_form
from tasks.evaluate.benchmarks.prompts import Answered, Asker
from tasks.evaluate.comparison import Gap, gap
from tasks.evaluate.config import PRIMARIES, EvaluateConfig, Scoring
from tasks.evaluate.scores import score_row
from tasks.tokenizer.base import Tokenizer

SUBSETS = ("all", "clean", "leaked")

FEW_CLEAN = 50
"""Below this many clean items the clean score says little."""

TOLD_ITEMS = 16

WRITTEN = ("generation", "extraction", "translation", "summary")
"""Forms that a network answers by writing."""

COMPARED = ("choice", "pairs", "partial")
"""Forms in which the likeliest of several texts is the answer."""


@dataclass
class BenchmarkScores:
    """Rows of SCORES, ITEM_SCORES and GAPS; of held-out text DOCUMENT_SCORES."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)


def benchmark_scores(
    choices: Choices,
    tokenizer: Tokenizer,
    benchmark: str,
    items: Sequence[Item],
    states: dict[str, str],
    config: EvaluateConfig,
    *,
    advance: Callable[[int], None],
) -> BenchmarkScores:
    """Every number of shots, subset and metric. `advance` hears items done, over all shots."""
    scoring = config.benchmarks.get(benchmark, Scoring())
    order = chosen_items(items, benchmark, config.seed)
    evaluated = order[: config.max_items]
    asker = Asker(choices, tokenizer, scoring, config.instruction)
    shots_asked = scoring.shots or config.shots
    pool = ExamplePool(order) if max(shots_asked) else None
    found = BenchmarkScores()
    _check_form(benchmark, items, scoring)
    done = 0
    for shots in shots_asked:
        for name, mine in by_form(evaluated, scoring).items():
            form = task_form(name, scoring, config.primary, choices)
            if name in WRITTEN and not choices.spells:
                why = "declined: a BERT writes no text"
                found.rows.append(score_row(benchmark, form.metric, n=len(mine), value=None, shots=shots, note=why))
                continue
            answered: list[Answered] = []
            for item in mine:
                one = form.ask(asker, item, pool.examples(item, shots) if pool and shots else ())
                if one is not None:
                    answered.append(one)
                done += 1
                if done % TOLD_ITEMS == 0:
                    advance(done)
            told = Asked(benchmark, shots, answered, states, len(mine), len(evaluated), len(items))
            _add(found, told, form, choices.note, seed64(config.seed, "evaluate", "gap", f"{benchmark}/{shots}"))
    advance(done)
    return found


def declined_scores(benchmark: str, items: Sequence[Item], config: EvaluateConfig, why: str) -> list[dict[str, Any]]:
    """A row without a value for every number of shots, where the network cannot be asked."""
    scoring = config.benchmarks.get(benchmark, Scoring())
    evaluated = min(len(items), config.max_items)
    metrics = {_metric_of(form, scoring) for form in by_form(items, scoring)}
    return [
        score_row(benchmark, metric, n=evaluated, value=None, shots=shots, note=why)
        for shots in scoring.shots or config.shots
        for metric in sorted(metrics)
    ]


def _check_form(benchmark: str, items: Sequence[Item], scoring: Scoring) -> None:
    """Of a single choice the likeliest is always right."""
    if scoring.form in COMPARED and (wrong := next((item for item in items if len(item.choices) < 2), None)):
        raise InputError(
            f"evaluate.benchmarks.{benchmark}: form = {scoring.form} compares choices, and the item `{wrong.item_id}`"
            f" has none to compare. Set form = cloze, generation or extraction, or say in the benchmark's `fields`"
            f" where its choices stand."
        )


def by_form(items: Sequence[Item], scoring: Scoring) -> dict[str, list[Item]]:
    """The items under the form that each is asked in: the declared one, else by whether it has choices."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(scoring.form or ("cloze" if item.free else "choice"), []).append(item)
    return dict(sorted(found.items()))


def task_form(name: str, scoring: Scoring, default_primary: str, choices: Choices) -> TaskForm:
    """The form of this name with the figure that is declared as primary."""
    default = default_primary if name == "choice" else PRIMARIES[name][0]
    primary = scoring.primary if scoring.primary in PRIMARIES[name] else default
    if name == "partial":
        return PartialForm()
    if name == "cloze":
        return ClozeForm(spells=choices.spells, bits_metric=choices.bits_metric)
    if name == "generation":
        return GenerationForm(scoring)
    if name == "extraction":
        return ExtractionForm(primary)
    if name == "translation":
        return TranslationForm(scoring)
    if name == "summary":
        return SummaryForm(primary)
    return choice_form(name, primary)


def _metric_of(form: str, scoring: Scoring) -> str:
    if form in COMPARED:
        return "acc"
    return scoring.primary if scoring.primary in PRIMARIES[form] else PRIMARIES[form][0]


@dataclass(frozen=True)
class Asked:
    """What was asked of one form under one number of shots, and of how many items."""

    benchmark: str
    shots: int
    answered: Sequence[Answered]
    states: dict[str, str]
    asked: int
    evaluated: int
    available: int

    def state(self, answered: Answered) -> str:
        return self.states.get(answered.item.item_id, "unmatchable")

    def part(self, subset: str) -> list[Answered]:
        return [one for one in self.answered if subset in ("all", self.state(one))]

    @property
    def notes(self) -> list[str]:
        """What all rows share."""
        notes: list[str] = []
        if self.available > self.evaluated:
            notes.append(f"{self.evaluated} of {self.available} items drawn")
        count = len(self.answered)
        if self.shots:
            used = sum(one.prompt.shots for one in self.answered) / count if count else 0.0
            fewer = sum(one.prompt.shots < self.shots for one in self.answered)
            room = f": {fewer} of {count} items leave room for less than {self.shots}" if fewer else ""
            notes.append(f"{used:.2f} examples on average{room}")
        if cut := sum(not one.prompt.fits for one in self.answered):
            notes.append(f"{cut} contexts cut to the window")
        if lost := self.asked - count:
            notes.append(f"{lost} items not scored: a choice is empty or longer than the window")
        if crossing := sum(one.crossing for one in self.answered):
            texts = sum(len(one.log_probabilities) for one in self.answered)
            notes.append(
                f"{crossing} of {texts} choices share a token with their context where both are encoded together;"
                f" encoded apart"
            )
        if unmatchable := Counter(map(self.state, self.answered))["unmatchable"]:
            notes.append(f"{unmatchable} unmatchable items count in `all` only")
        return notes


def _add(found: BenchmarkScores, told: Asked, form: TaskForm, how: str, seed: int) -> None:
    """The rows of one form under one number of shots."""
    place = {"task": told.benchmark, "shots": told.shots, "metric": form.metric}
    values: dict[str, list[float]] = {}
    for one in told.answered:
        value = form.value(one)
        if value is not None:
            values.setdefault(told.state(one), []).append(value)
            found.items.append({**place, "item_id": one.item.item_id, "state": told.state(one), "value": value})
    between = gap(values.get("leaked", []), values.get("clean", []), seed)
    if between is not None:
        sizes = {"leaked_n": len(values["leaked"]), "clean_n": len(values["clean"])}
        numbers = {"difference": between.difference, "stderr": between.stderr, "p": between.p}
        found.gaps.append({**place, **sizes, **numbers, "beyond_chance": between.beyond_chance})
    shared = [how, *told.notes] if how else told.notes
    for subset in SUBSETS:
        part = told.part(subset)
        warnings = [_few_clean(part)] if subset == "clean" else []
        warnings += [_gap_told(between)] if subset != "all" else []
        for figure in form.figures(part):
            extra = warnings if figure.metric == form.metric else []
            note = "; ".join(filter(None, [figure.note, *shared, *extra]))
            numbers = {"n": len(part), "value": figure.value, "stderr": figure.stderr}
            found.rows.append(
                score_row(told.benchmark, figure.metric, shots=told.shots, subset=subset, note=note, **numbers)
            )


def _few_clean(part: Sequence[Answered]) -> str:
    return f"fewer than {FEW_CLEAN} clean items" if len(part) < FEW_CLEAN else ""


def _gap_told(between: Gap | None) -> str:
    if between is None or not between.beyond_chance:
        return ""
    side = "above" if between.difference > 0 else "below"
    return f"leaked items score {abs(between.difference):.3f} {side} clean ones, beyond chance (p {between.p:.4f})"
