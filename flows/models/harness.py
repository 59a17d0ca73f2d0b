"""Evaluate a model with EleutherAI's lm-evaluation-harness, for scores that are comparable with published ones.

The harness requests the log-likelihood of a continuation, the log-likelihood of a whole text, or a generated text.
Context and continuation are encoded separately, as in the evaluate stage; the harness's own models encode both together
and split by the context's length, which scores some continuations from a wrong token on.

Needs the extra `lmeval`. Nothing is downloaded: tasks are YAML files of a folder, and their data local files.
"""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from model.errors import BessemerError, InputError
from model.inference.scoring import text_nats
from model.nn.gpt import GPT
from tasks.evaluate.benchmarks.likelihood import CausalScorer
from tasks.models.load import Trained
from tasks.tokenizer.base import Tokenizer

MAX_TOKENS = 256
"""Generated tokens where a task has no limit, as in the harness's own models."""


class HarnessModel(LM):
    """A GPT behind the harness's model interface."""

    def __init__(self, network: GPT, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._network, self._tokenizer = network, tokenizer
        self._scorer = CausalScorer(network)

    @property
    def tokenizer_name(self) -> str:
        """Name of the vocabulary in the harness's caches."""
        return self._tokenizer.digest

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation after its context, and whether greedy decoding gives it."""
        found: list[tuple[float, bool]] = []
        for request in requests:
            context, continuation = _arguments(request)
            # A space at the end of a context belongs to the continuation, as in the harness.
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
        """Return the log-likelihood of each text after the token that texts follow, with every token predicted once."""
        texts = [self._tokenizer.encode(str(request.args[0])) for request in requests]
        return [-nats for nats in text_nats(self._network, texts, self._tokenizer.opening)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return the greedily decoded text after each context, up to the first of its stop strings."""
        found: list[str] = []
        for request in requests:
            context, settings = _arguments(request)
            if settings.get("do_sample", False) or settings.get("temperature", 0.0):
                raise InputError("harness: only greedy decoding is supported; set do_sample to false in the task")
            stops = settings.get("until") or []
            most = min(int(settings.get("max_gen_toks", MAX_TOKENS)), self._scorer.max_choice_tokens // 2)
            seen = self._seen(context, self._scorer.max_prompt_tokens(most))
            stops = [stops] if isinstance(stops, str) else list(stops)
            found += self._scorer.generate_texts([seen], self._tokenizer, most, [stop for stop in stops if stop])
        return found

    def _seen(self, context: str, most: int) -> Sequence[int]:
        ids = (self._tokenizer.opening, *self._tokenizer.encode(context))
        return ids[max(0, len(ids) - most) :]


def harness_scores(
    trained: Trained, folder: Path, tasks: Sequence[str], *, shots: int | None = None, limit: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return the value of each task and metric, for tasks whose YAML files are in `folder`.

    Raises InputError for a model that is not a GPT, for a task that the folder does not have, and for one that the
    harness cannot load or format.
    """
    if not isinstance(trained.network, GPT):
        raise InputError(
            f"harness: a {trained.network.config.architecture} has no likelihood of a continuation. Its benchmarks are"
            f" those of the evaluate stage."
        )
    if not folder.is_dir():
        raise InputError(f"harness: --folder {folder} is no folder. Name the one with the YAML files of the tasks.")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    for task in tasks:
        if task not in manager.all_tasks:
            raise InputError(
                f"harness: {folder} has no task `{task}` (it has {', '.join(sorted(manager.all_tasks)) or 'none'})."
            )
    model = HarnessModel(trained.network, trained.tokenizer)
    try:
        found = evaluate(model, manager, tasks, shots=shots, limit=limit)
    except BessemerError:
        raise
    except Exception as error:
        if _passed_model(error):
            raise
        raise InputError(
            f"harness: {', '.join(tasks)}: the harness cannot load or format it: {type(error).__name__}: {error}. Check"
            f" the YAML files and their data; relative paths in `data_files` count from the folder where the command"
            f" runs ({Path.cwd()})."
        ) from error
    return {task: dict(figures) for task, figures in found["results"].items()}


def _passed_model(error: BaseException) -> bool:
    """Return whether the error comes from the scoring of our model, not from the harness's reading of the tasks."""
    (_, *inner) = traceback.extract_tb(error.__traceback__)
    return any(frame.filename == __file__ and frame.name != evaluate.__name__ for frame in inner)


def evaluate(
    model: LM, manager: TaskManager, tasks: Sequence[str], *, shots: int | None = None, limit: int | None = None
) -> dict[str, Any]:
    """Return all results of the harness with samples, without its bootstrap, which takes by far the longest."""
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
    assert found is not None, "only the first process has the results"
    return dict(found)


def _arguments(request: Instance) -> tuple[Any, Any]:
    """Return the context of a request, and its continuation or settings."""
    context, argument = request.args  # pyright: ignore[reportAssignmentType]  # typed as empty
    return context, argument
