"""Our models under EleutherAI's lm-evaluation-harness, for tasks and figures that are to be laid beside others' own.

The harness asks three things of a model: how likely a text is after another, how likely a whole text is, and what it
writes. Context and continuation are encoded apart, as in our own scoring; the harness's own models encode both together
and cut by the context's length, which scores some continuations from a wrong place on.

Needs the extra `lmeval`. Nothing is downloaded: tasks are YAML files of a folder, their data local files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from flows.models.load import Trained
from model.errors import InputError
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from tasks.evaluate.benchmarks.likelihood import CausalScorer
from tasks.tokenizer.base import Tokenizer

MOST_TOKENS = 256
"""That are written where a task names no limit, as in the harness's own models."""


class HarnessModel(LM):
    """A GPT of ours as the harness sees a model."""

    def __init__(self, network: GPT, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._network, self._tokenizer = network, tokenizer
        self._scorer = CausalScorer(network)

    @property
    def tokenizer_name(self) -> str:
        """Names the vocabulary in the harness's caches."""
        return self._tokenizer.digest

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Sum of ln p of each continuation after its context, and whether it is the likeliest text there."""
        found: list[tuple[float, bool]] = []
        for request in requests:
            context, continuation = _two(request)
            # A blank at the end of a context belongs to what follows, as the harness has it.
            stripped = context.rstrip(" ")
            continuation = context[len(stripped) :] + continuation
            encode = self._tokenizer.encode_following if stripped else self._tokenizer.encode
            ids = encode(continuation)
            if not ids or len(ids) > self._scorer.max_choice_tokens:
                raise InputError(
                    f"harness: the continuation {continuation[:60]!r} has {len(ids)} tokens, and the model scores 1 to"
                    f" {self._scorer.max_choice_tokens}. Leave such items out of the task."
                )
            seen = self._seen(stripped, self._scorer.max_prompt_tokens(len(ids)))
            found.append((self._scorer.score(seen, [ids])[0], self._scorer.is_greedy(seen, ids)))
        return found

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Sum of ln p of all tokens of each text, alone behind the end-of-text token, each predicted once."""
        texts = [self._tokenizer.encode(str(request.args[0])) for request in requests]
        return [-nats for nats in text_nats(self._network, texts, self._tokenizer.eos)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The likeliest text behind each context, up to the first of its stop strings."""
        found: list[str] = []
        for request in requests:
            context, settings = _two(request)
            if settings.get("do_sample", False) or settings.get("temperature", 0.0):
                raise InputError("harness: only the likeliest text is written here; set do_sample to false in the task")
            stops = settings.get("until") or []
            most = min(int(settings.get("max_gen_toks", MOST_TOKENS)), self._scorer.max_choice_tokens // 2)
            seen = self._seen(context, self._scorer.max_prompt_tokens(most))
            stops = [stops] if isinstance(stops, str) else list(stops)
            found.append(self._scorer.generate(seen, self._tokenizer, most, [stop for stop in stops if stop]))
        return found

    def _seen(self, context: str, room: int) -> Sequence[int]:
        ids = (self._tokenizer.eos, *self._tokenizer.encode(context))
        return ids[max(0, len(ids) - room) :]


def harness_scores(
    trained: Trained, folder: Path, tasks: Sequence[str], *, shots: int | None = None, limit: int | None = None
) -> dict[str, dict[str, Any]]:
    """Task -> metric -> value, of the tasks whose YAML files lie in `folder`.

    Raises InputError for a model that is no GPT, and for a task that the folder does not have.
    """
    if not isinstance(trained.network, GPT):
        raise InputError(
            f"harness: a {trained.network.config.architecture} does not tell how likely a text is after another. Its"
            f" benchmarks are those of the evaluate stage."
        )
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    for task in tasks:
        if task not in manager.all_tasks:
            raise InputError(
                f"harness: {folder} has no task `{task}` (it has {', '.join(sorted(manager.all_tasks)) or 'none'})."
            )
    found = evaluate(HarnessModel(trained.network, trained.tokenizer), manager, tasks, shots=shots, limit=limit)
    return {task: dict(figures) for task, figures in found["results"].items()}


def evaluate(
    model: LM, manager: TaskManager, tasks: Sequence[str], *, shots: int | None = None, limit: int | None = None
) -> dict[str, Any]:
    """All that the harness tells, samples too; without its bootstrap, which takes the longest by far."""
    found = simple_evaluate(
        model=model,
        tasks=list(tasks),
        task_manager=manager,
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=0,
        log_samples=True,
        verbosity="ERROR",
    )
    assert found is not None, "the first process has the results"
    return dict(found)


def _two(request: Instance) -> tuple[Any, Any]:
    """The context of a request, and what is asked about it."""
    context, asked = request.args  # pyright: ignore[reportAssignmentType]  # typed as empty
    return context, asked
