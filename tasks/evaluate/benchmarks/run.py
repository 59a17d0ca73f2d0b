"""Benchmark scores: every item in the form of its benchmark, on all, clean and leaked items.

One metric is declared as primary before the run. It is kept for every item (ITEM_SCORES), so that two models can be
compared on the same items, and leaked items are compared with clean ones by it (GAPS).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from model.errors import InputError
from tasks.common.numeric import seed64
from tasks.evaluate.benchmarks.generative import ExtractionTask, GenerationTask, SummaryTask, TranslationTask
from tasks.evaluate.benchmarks.items import ExamplePool, Item, shuffle_items
from tasks.evaluate.benchmarks.likelihood import NO_TEXT, LikelihoodScorer
from tasks.evaluate.benchmarks.multiple_choice import ClozeTask, MultipleChoiceTask, PartialScoringTask, Task
from tasks.evaluate.benchmarks.prompts import Requester, Response
from tasks.evaluate.comparison import ContaminationGap, measure_gap
from tasks.evaluate.config import PRIMARY_METRICS, EvaluateConfig, Scoring
from tasks.evaluate.scores import NO_MEASUREMENT, Scores, score_row
from tasks.tokenizer.base import Tokenizer

SUBSETS = ("all", "clean", "leaked")

FEW_CLEAN = 50
"""With fewer clean items than this the clean score says little."""

PROGRESS_ITEMS = 32

GENERATIVE = ("generation", "extraction", "translation", "summary")
"""Forms in which a network generates its answer."""

MULTIPLE_CHOICE = ("choice", "pairs", "partial")
"""Forms in which the likeliest of several texts is the answer."""


def benchmark_scores(
    scorer: LikelihoodScorer,
    tokenizer: Tokenizer,
    benchmark: str,
    items: Sequence[Item],
    leak_states: dict[str, str],
    config: EvaluateConfig,
    *,
    advance: Callable[[int, int], None],
) -> Scores:
    """Return the scores of every number of shots, subset and metric; a row without a value for each form in which the
    network cannot be scored. `advance` is called with the items done and all of them, over all shots."""
    scoring = config.benchmarks.get(benchmark, Scoring())
    order = shuffle_items(items, benchmark, config.seed)
    evaluated = order[: config.max_items]
    requester = Requester(scorer, tokenizer, scoring, config.instruction)
    shot_counts = scoring.shots or config.shots
    pool = ExamplePool(order) if max(shot_counts) and not scorer.declined else None
    scores = Scores()
    done = 0
    for shots in shot_counts:
        for name, mine in group_by_form(evaluated, scoring).items():
            task = make_task(name, scoring, config.primary, scorer)
            if why := scorer.declined or (NO_TEXT if name in GENERATIVE and not scorer.can_generate else ""):
                scores.rows.append(
                    score_row(benchmark, task.metric, NO_MEASUREMENT, n=len(mine), shots=shots, note=why)
                )
                continue
            _check_form(benchmark, items, scoring)
            answered: list[Response] = []
            for begin in range(0, len(mine), PROGRESS_ITEMS):
                some = mine[begin : begin + PROGRESS_ITEMS]
                asked = [(item, pool.examples(item, shots) if pool and shots else ()) for item in some]
                answered += [one for one in task.request(requester, asked) if one is not None]
                done += len(some)
                advance(done, len(evaluated) * len(shot_counts))
            responses = TaskResponses(benchmark, shots, answered, leak_states, len(mine), len(evaluated), len(items))
            _add(scores, responses, task, scorer.note, seed64(config.seed, "evaluate", "gap", f"{benchmark}/{shots}"))
    return scores


def _check_form(benchmark: str, items: Sequence[Item], scoring: Scoring) -> None:
    """Raise InputError for items with one choice: the likeliest of one is always right."""
    if scoring.form in MULTIPLE_CHOICE and (wrong := next((item for item in items if len(item.choices) < 2), None)):
        raise InputError(
            f"evaluate.benchmarks.{benchmark}: form = {scoring.form} compares choices, and the item `{wrong.item_id}`"
            f" has none to compare. Set form = cloze, generation or extraction, or name the field of its choices in the"
            f" benchmark's `fields`."
        )


def group_by_form(items: Sequence[Item], scoring: Scoring) -> dict[str, list[Item]]:
    """Return the items by form: the declared one, else `choice` or `cloze` by whether they have choices."""
    by_form: dict[str, list[Item]] = {}
    for item in items:
        by_form.setdefault(scoring.form or ("cloze" if item.free else "choice"), []).append(item)
    return dict(sorted(by_form.items()))


def make_task(name: str, scoring: Scoring, default_primary: str, scorer: LikelihoodScorer) -> Task:
    """Return the task of this form with the declared primary metric."""
    default = default_primary if name == "choice" else PRIMARY_METRICS[name][0]
    primary = scoring.primary if scoring.primary in PRIMARY_METRICS[name] else default
    if name == "partial":
        return PartialScoringTask()
    if name == "cloze":
        return ClozeTask(can_generate=scorer.can_generate, bits_metric=scorer.bits_metric)
    if name == "generation":
        return GenerationTask(scoring)
    if name == "extraction":
        return ExtractionTask(primary)
    if name == "translation":
        return TranslationTask(scoring)
    if name == "summary":
        return SummaryTask(primary)
    return MultipleChoiceTask(PRIMARY_METRICS[name], primary)


@dataclass(frozen=True)
class TaskResponses:
    """The responses to the items of one form with one number of shots."""

    benchmark: str
    shots: int
    answered: Sequence[Response]
    leak_states: dict[str, str]
    requested: int
    evaluated: int
    available: int

    def state(self, response: Response) -> str:
        return self.leak_states.get(response.item.item_id, "unmatchable")

    def part(self, subset: str) -> list[Response]:
        return [response for response in self.answered if subset in ("all", self.state(response))]

    @property
    def notes(self) -> list[str]:
        """What the notes of all rows have in common."""
        notes: list[str] = []
        if self.available > self.evaluated:
            notes.append(f"{self.evaluated} of {self.available} items drawn")
        count = len(self.answered)
        if self.shots:
            used = sum(response.prompt.shots for response in self.answered) / count if count else 0.0
            fewer = sum(response.prompt.shots < self.shots for response in self.answered)
            room = f": {fewer} of {count} items leave room for less than {self.shots}" if fewer else ""
            notes.append(f"{used:.2f} examples on average{room}")
        if cut := sum(not response.prompt.fits for response in self.answered):
            notes.append(f"{cut} contexts cut to the window")
        if lost := self.requested - count:
            notes.append(f"{lost} items not scored: a choice is empty or longer than the window")
        if crossing := sum(response.crossing for response in self.answered):
            texts = sum(len(response.log_probabilities) for response in self.answered)
            notes.append(
                f"{crossing} of {texts} choices share a token with their context where both are encoded together;"
                f" encoded apart"
            )
        if unmatchable := Counter(map(self.state, self.answered))["unmatchable"]:
            notes.append(
                f"{unmatchable} unmatchable items count in `all` only; leaks of the other"
                f" {1 - unmatchable / count:.1%} can be seen, unless rephrased or translated"
            )
        return notes


def _add(scores: Scores, responses: TaskResponses, task: Task, scorer_note: str, seed: int) -> None:
    """Add the rows of one form with one number of shots to `scores`."""
    values: dict[str, list[float]] = {}
    for response in responses.answered:
        value, state = task.value(response), responses.state(response)
        if value is not None:
            values.setdefault(state, []).append(value)
            scores.items.append(
                {
                    "task": responses.benchmark,
                    "item_id": response.item.item_id,
                    "shots": responses.shots,
                    "state": state,
                    "metric": task.metric,
                    "value": value,
                }
            )
    gap = measure_gap(values.get("leaked", []), values.get("clean", []), seed)
    if gap is not None:
        scores.gaps.append(
            {
                "task": responses.benchmark,
                "metric": task.metric,
                "shots": responses.shots,
                "leaked_n": len(values["leaked"]),
                "clean_n": len(values["clean"]),
                "difference": gap.difference,
                "stderr": gap.stderr,
                "p": gap.p,
                "beyond_chance": gap.is_significant,
            }
        )
    shared = [scorer_note, *responses.notes] if scorer_note else responses.notes
    for subset in SUBSETS:
        part = responses.part(subset)
        is_few = subset == "clean" and len(part) < FEW_CLEAN
        warnings = [f"fewer than {FEW_CLEAN} clean items"] if is_few else []
        warnings += [_describe_gap(gap)] if subset != "all" else []
        for found in task.metrics(part):
            extra = warnings if found.metric == task.metric else []
            scores.rows.append(
                score_row(
                    responses.benchmark,
                    found.metric,
                    found.measured,
                    n=len(part),
                    shots=responses.shots,
                    subset=subset,
                    note="; ".join(filter(None, [found.note, *shared, *extra])),
                )
            )


def _describe_gap(gap: ContaminationGap | None) -> str:
    if gap is None or not gap.is_significant:
        return ""
    side = "above" if gap.difference > 0 else "below"
    return f"leaked items score {abs(gap.difference):.3f} {side} clean ones, beyond chance (p {gap.p:.4f})"
